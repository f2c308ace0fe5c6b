"""Kernels of vLLM 0.31 that keep the state of its requests on the card, computed on the CPU.

The engine reads how many tokens a step has sampled, and which. The counts follow from the lengths of the prompts; a
sampled token is any token, stated as an assumption.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import count
from typing import Any

Arguments = Mapping[str, Any]

ANY_TOKEN = 100
"""The token that is sampled if it ends no text: memory does not depend on which one it is.

Ends of text of the configurations in transformers 5.23: 2 (116 classes, Llama 2 and Mistral among them), 1, 3, 0, 11,
53, 102, 106, and above 300. Where it is one of a model's, the next one is taken.
"""

_CONFIGS = (("transformers.configuration_utils", "PreTrainedConfig"), ("transformers", "GenerationConfig"))
_ENDS = ("eos_token_id", "pad_token_id")

_STATE = "vllm.v1.worker.gpu"


def write_staged(arguments: Arguments) -> None:
    """Write rows that the host has collected. The tables of blocks, which are written together, steer nothing."""
    if arguments["MULTI_GROUP"]:
        return
    flat, stride = arguments["output_ptr"].view(-1), arguments["output_stride"]
    contents, begin = arguments["write_contents_ptr"], 0
    places = zip(
        arguments["write_indices_ptr"].tolist(),
        arguments["write_starts_ptr"].tolist(),
        arguments["write_cu_lens_ptr"].tolist(),
        strict=True,
    )
    for row, start, end in places:
        at = row * stride + start
        flat[at : at + end - begin] = contents[begin:end]
        begin = end


def place_tokens(arguments: Arguments) -> None:
    """Set the length of each sequence and the positions of its new tokens."""
    requests, starts = arguments["idx_mapping_ptr"].tolist(), arguments["query_start_loc_ptr"].tolist()
    lengths, positions = arguments["seq_lens_ptr"], arguments["pos_ptr"]
    lengths[len(requests) :] = 0
    for number, request in enumerate(requests):
        done, begin, end = int(arguments["num_computed_tokens_ptr"][request]), starts[number], starts[number + 1]
        lengths[number] = done + end - begin
        positions[begin:end] = done + positions.new_ones(end - begin).cumsum(0) - 1


def count_sampled(arguments: Arguments) -> None:
    """Count the tokens that are sampled: none while a prompt is not complete."""
    requests = arguments["idx_mapping_ptr"].long()
    lengths = arguments["seq_lens_ptr"][: len(requests)]
    whole = (lengths >= arguments["prefill_len_ptr"][requests]).int()
    sampled, bounds = arguments["num_sampled_ptr"], arguments["cu_num_logits_ptr"]
    sampled *= whole
    arguments["num_rejected_ptr"].copy_((bounds[1 : len(requests) + 1] - bounds[: len(requests)] - sampled) * whole)


def count_computed(arguments: Arguments) -> None:
    """Add the tokens of a step to each request's."""
    starts = arguments["query_start_loc_ptr"]
    for number, request in enumerate(arguments["idx_mapping_ptr"].tolist()):
        if request < 0:
            continue
        sampled = int(arguments["num_sampled_ptr"][number])
        arguments["total_len_ptr"][request] += sampled
        computed = starts[number + 1] - starts[number] - arguments["num_rejected_ptr"][number]
        arguments["num_computed_tokens_ptr"][request] += computed


def sample(arguments: Arguments) -> None:
    """Sample the same ordinary token in every block of the vocabulary."""
    arguments["local_argmax_ptr"].fill_(ordinary_token())


@cache
def ordinary_token() -> int:
    """Return a token that is neither an end of text nor padding of any model in this process.

    So responses have their maximum length. Asked when the first token is sampled: the engine has its model by then.
    """
    classes = tuple(found for module, name in _CONFIGS if (found := getattr(sys.modules.get(module), name, None)))
    configs = [each for each in gc.get_objects() if isinstance(each, classes)]
    ends = {token for config in configs for name in _ENDS for token in _listed(getattr(config, name, None))}
    return next(token for token in count(ANY_TOKEN) if token not in ends)


def _listed(tokens: object) -> Iterable[object]:
    return tokens if isinstance(tokens, list | tuple) else (tokens,)


def rank(arguments: Arguments) -> None:
    """Rank the sampled token first."""
    arguments["output_ptr"].fill_(1)


OF_THE_HOST = frozenset(
    {"write_indices_ptr", "write_starts_ptr", "write_contents_ptr", "write_cu_lens_ptr", "prefill_len_ptr"}
)
"""Arguments in pinned memory, which the host writes without the driver: their values are right."""

VLLM_RESULTS: Mapping[tuple[str, str], frozenset[str]] = {
    (f"{_STATE}.input_batch", "_prepare_prefill_inputs_kernel"): frozenset(
        {"input_ids_ptr", "next_prefill_tokens_ptr"}
    ),
    (f"{_STATE}.input_batch", "_combine_sampled_and_draft_tokens_kernel"): frozenset(
        {"input_ids_ptr", "logits_indices_ptr"}
    ),
    (f"{_STATE}.block_table", "_gather_block_tables_kernel"): frozenset(),  # by addresses, which lie in a tensor
    (f"{_STATE}.block_table", "_compute_slot_mappings_kernel"): frozenset({"slot_mappings_ptr"}),
    (f"{_STATE}.sample.gumbel", "_temperature_kernel"): frozenset({"logits_ptr"}),
    (f"{_STATE}.sample.prompt_logprob", "_prompt_logprobs_token_ids_kernel"): frozenset(
        {"prompt_logprobs_token_ids_ptr"}
    ),
    (f"{_STATE}.sample.logprob", "_topk_log_softmax_kernel"): frozenset({"output_ptr"}),
}
"""The arguments that a kernel writes which is not computed; the host reads none of them as a number that steers it."""

Equivalent = tuple[Callable[[Arguments], None], frozenset[str], frozenset[str]]

VLLM_EQUIVALENTS: Mapping[tuple[str, str], Equivalent] = {
    (f"{_STATE}.buffer_utils", "_apply_write_kernel"): (
        write_staged,
        frozenset({"write_indices_ptr", "write_starts_ptr", "write_contents_ptr", "write_cu_lens_ptr"}),
        frozenset({"output_ptr"}),
    ),
    (f"{_STATE}.input_batch", "_prepare_pos_seq_lens_kernel"): (
        place_tokens,
        frozenset({"idx_mapping_ptr", "query_start_loc_ptr", "num_computed_tokens_ptr"}),
        frozenset({"pos_ptr", "seq_lens_ptr"}),
    ),
    (f"{_STATE}.input_batch", "_get_num_sampled_and_rejected_kernel"): (
        count_sampled,
        frozenset({"num_sampled_ptr", "seq_lens_ptr", "cu_num_logits_ptr", "idx_mapping_ptr", "prefill_len_ptr"}),
        frozenset({"num_sampled_ptr", "num_rejected_ptr"}),
    ),
    (f"{_STATE}.input_batch", "_post_update_kernel"): (
        count_computed,
        frozenset({"idx_mapping_ptr", "num_sampled_ptr", "num_rejected_ptr", "query_start_loc_ptr"}),
        frozenset({"num_computed_tokens_ptr", "total_len_ptr"}),
    ),
    (f"{_STATE}.sample.gumbel", "_gumbel_sample_kernel"): (sample, frozenset(), frozenset({"local_argmax_ptr"})),
    (f"{_STATE}.sample.logprob", "_ranks_kernel"): (rank, frozenset(), frozenset({"output_ptr"})),
}
"""What computes a kernel, the arguments that it reads, and those that it writes and that are read on the host."""
