"""Kernels of vLLM that keep the state of requests, on tensors of the CPU."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from profiler.emulation.inside.triton_kernels import (
    ANY_TOKEN,
    EQUIVALENTS,
    VLLM_EQUIVALENTS,
    VLLM_RESULTS,
    count_computed,
    count_sampled,
    ordinary_token,
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


def test_a_sampled_token_is_any_and_has_the_first_rank():
    tokens, ranks = torch.zeros((2, 3), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    sample({"local_argmax_ptr": tokens})
    rank({"output_ptr": ranks})
    assert tokens.unique().tolist() == [ordinary_token()]
    assert ranks.tolist() == [1, 1]


def test_the_sampled_token_ends_no_response():
    """A model whose end of text it is would generate one token per response."""
    ends = {end for model_type in CONFIG_MAPPING_NAMES for end in _ends(model_type)}
    assert {2, 151643, 128001} <= ends
    assert ANY_TOKEN not in ends


@pytest.mark.parametrize("ends", [ANY_TOKEN, [ANY_TOKEN, ANY_TOKEN + 1]])
def test_the_sampled_token_is_none_of_the_models_own_ends(ends):
    """Also of a model whose configuration names it, and the token after it as padding."""
    model = LlamaConfig(eos_token_id=ends, pad_token_id=ANY_TOKEN + 2)
    sampling = GenerationConfig(eos_token_id=[ANY_TOKEN + 3])
    ordinary_token.cache_clear()
    try:
        assert ordinary_token() not in _listed(model.eos_token_id)
        assert ordinary_token() not in (ANY_TOKEN, model.pad_token_id, *sampling.eos_token_id)
    finally:
        ordinary_token.cache_clear()


def _ends(model_type):
    return _listed(getattr(CONFIG_MAPPING[model_type], "eos_token_id", None))


def _listed(found):
    return found if isinstance(found, list | tuple) else [found]
