"""Kernels of vLLM that keep the state of requests, on tensors of the CPU."""

import torch
from transformers import LlamaConfig

from profiler.emulation.inside.triton_kernels import (
    EQUIVALENTS,
    SPECIAL_TOKENS,
    VLLM_EQUIVALENTS,
    VLLM_RESULTS,
    count_computed,
    count_sampled,
    place_tokens,
    rank,
    sample,
    write_staged,
)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_kernel_is_computed_or_its_results_are_named():
    assert set(VLLM_EQUIVALENTS) <= set(EQUIVALENTS)
    assert not set(VLLM_EQUIVALENTS) & set(VLLM_RESULTS)


def test_rows_that_the_host_has_collected_are_written():
    table = torch.zeros((3, 4), dtype=torch.int32)
    given = {
        "MULTI_GROUP": False,
        "output_ptr": table,
        "output_stride": 4,
        "write_indices_ptr": ints(2, 0),
        "write_starts_ptr": ints(1, 0),
        "write_contents_ptr": ints(7, 8, 9),
        "write_cu_lens_ptr": ints(2, 3),
    }
    write_staged(given)
    assert table.tolist() == [[9, 0, 0, 0], [0, 0, 0, 0], [0, 7, 8, 0]]
    write_staged({**given, "MULTI_GROUP": True, "output_ptr": None})


def test_a_step_counts_tokens_of_a_prompt_in_two_parts_and_of_a_decoding_request():
    """Request 5 has computed 4 of 10 prompt tokens and gets 3 more; request 1 is decoding."""
    computed, total = ints(0, 12, 0, 0, 0, 4), ints(0, 13, 0, 0, 0, 10)
    requests, starts = ints(5, 1), ints(0, 3, 4)
    positions, lengths = torch.full((6,), -1), ints(-1, -1, -1)
    place_tokens(
        {
            "idx_mapping_ptr": requests,
            "query_start_loc_ptr": starts,
            "num_computed_tokens_ptr": computed,
            "pos_ptr": positions,
            "seq_lens_ptr": lengths,
        }
    )
    assert lengths.tolist() == [7, 13, 0]
    assert positions.tolist() == [4, 5, 6, 12, -1, -1]
    sampled, rejected = ints(1, 1), ints(-1, -1)
    count_sampled(
        {
            "num_sampled_ptr": sampled,
            "num_rejected_ptr": rejected,
            "seq_lens_ptr": lengths,
            "cu_num_logits_ptr": ints(0, 1, 2),
            "idx_mapping_ptr": requests,
            "prefill_len_ptr": ints(0, 8, 0, 0, 0, 10),
        }
    )
    assert (sampled.tolist(), rejected.tolist()) == ([0, 1], [0, 0])
    count_computed(
        {
            "idx_mapping_ptr": requests,
            "num_sampled_ptr": sampled,
            "num_rejected_ptr": rejected,
            "query_start_loc_ptr": starts,
            "num_computed_tokens_ptr": computed,
            "total_len_ptr": total,
        }
    )
    assert (computed[[5, 1]].tolist(), total[[5, 1]].tolist()) == ([7, 13], [10, 14])


def test_a_sampled_token_ends_no_response_and_has_the_first_rank():
    """Not even one of a model whose end of text is where a token is looked for."""
    SPECIAL_TOKENS.forget()
    SPECIAL_TOKENS.look()
    first = SPECIAL_TOKENS.ordinary()
    model = LlamaConfig(eos_token_id=first, vocab_size=min(SPECIAL_TOKENS.vocabularies, default=256))
    tokens, ranks = torch.zeros((2, 3), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    SPECIAL_TOKENS.forget()
    sample({"local_argmax_ptr": tokens})
    rank({"output_ptr": ranks})
    (token,) = tokens.unique().tolist()
    assert token not in SPECIAL_TOKENS.tokens
    assert token != model.eos_token_id
    assert ranks.tolist() == [1, 1]
