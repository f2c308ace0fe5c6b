"""Kernels that are launched and not run, but for those whose small results steer the host.

Kernels of Triton are compiled for real. What one would have written is noted as unknown: of the kernels in `LOOKED_AT`
the floats alone, because they read integers (targets, lengths, masks) and write none that steers the host; of every
other kernel each argument may be a result, and a record names it if the host reads one.

Computed on the CPU, by module and name, are kernels of vLLM 0.31 that keep the state of its requests on the card, and
those by which liger_kernel 0.8 counts how many tokens each expert gets, by which the host allocates. The counts of
tokens follow from the lengths of prompts; a sampled token is any token but a special one, stated as an assumption.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

from profiler.seams.patching import around_import
from profiler.seams.special_tokens import SpecialTokens

Arguments = Mapping[str, Any]

GENERATES = 2
"""Bit of what a process did: it sampled tokens (`driver/emulated.h`)."""

SPECIAL_TOKENS = SpecialTokens()
"""Of this process; what the values draw avoids them too."""

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
    """Sample the same ordinary token in every block of the vocabulary: none that ends a response."""
    SPECIAL_TOKENS.look()
    arguments["local_argmax_ptr"].fill_(SPECIAL_TOKENS.ordinary())


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


def count_tokens(arguments: Arguments) -> None:
    """Count the tokens of each expert in each tile of tokens: a table of experts by tiles."""
    import torch

    tokens, experts = arguments["T"], arguments["E"]
    chosen = arguments["topk_indices_ptr"].reshape(tokens, arguments["K"])
    tiles = chosen.split(arguments["TOKENS_PER_TILE"])
    counts = [torch.bincount(tile.flatten(), minlength=experts)[:experts] for tile in tiles]
    arguments["partial_sum_ptr"].copy_(torch.stack(counts, dim=1))


def add_up_tokens(arguments: Arguments) -> None:
    """Turn counts into where each expert's tokens and tiles begin, and each tile's counts into those before it."""
    frequencies, size = arguments["expert_freq_ptr"], arguments["BLOCK_M_TOKEN"]
    for result, each in (
        (arguments["expert_freq_offs_ptr"], frequencies),
        (arguments["expert_tile_offset_ptr"], (frequencies + size - 1) // size),
    ):
        result[0] = 0
        result[1:] = each.cumsum(0)
    counts = arguments["partial_sum_ptr"]
    counts.copy_(counts.cumsum(1) - counts)


EQUIVALENTS: Mapping[tuple[str, str], tuple[Callable[[Arguments], None], frozenset[str], frozenset[str]]] = {
    **VLLM_EQUIVALENTS,
    ("liger_kernel.ops.fused_moe_kernels", "_moe_router_histogram_kernel"): (
        count_tokens,
        frozenset({"topk_indices_ptr"}),
        frozenset({"partial_sum_ptr"}),
    ),
    ("liger_kernel.ops.fused_moe_kernels", "_moe_router_prefix_sum_kernel"): (
        add_up_tokens,
        frozenset({"expert_freq_ptr", "partial_sum_ptr"}),
        frozenset({"expert_freq_offs_ptr", "expert_tile_offset_ptr", "partial_sum_ptr"}),
    ),
}
"""What computes a kernel, the arguments that it reads, and those that it writes."""


def on_host(tensor: Any) -> Any:  # torch is imported by the program
    """Return the bytes of a tensor on the emulated card as a tensor of the CPU."""
    import torch

    buffer = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(buffer, dtype=tensor.dtype).view(tensor.shape)


LOOKED_AT: Mapping[str, frozenset[str]] = {
    # trl 1.16: log-probabilities, entropies and divergences, all of floats.
    "trl.kernels.chunked_logprob": frozenset({"_forward_kernel", "_backward_kernel"}),
    "trl.kernels.chunked_divergence": frozenset({"_stats_kernel", "_jsd_kernel", "_backward_kernel"}),
    "trl.kernels.logprob_entropy": frozenset({"_forward_kernel", "_backward_kernel"}),
    # liger_kernel 0.8: losses and layers. The loss may write predicted tokens as well, for a metric.
    "liger_kernel.ops.cross_entropy": frozenset({"liger_cross_entropy_kernel"}),
    # The scatter writes integers, to memory that is new, and only kernels read them.
    "liger_kernel.ops.fused_moe_kernels": frozenset(
        {
            "_moe_router_scatter_kernel",
            "_fused_up_proj_swiglu_kernel",
            "_fused_down_proj_kernel",
            "_token_gather_weighted_sum_kernel",
            "_moe_bwd_down_proj_kernel",
            "_moe_bwd_dW2_kernel",
            "_moe_bwd_dX_expanded_kernel",
            "_moe_bwd_dW1_kernel",
        }
    ),
    "liger_kernel.ops.geglu": frozenset({"_geglu_tanh_forward_kernel", "_geglu_tanh_backward_kernel"}),
    "liger_kernel.ops.grpo_loss": frozenset(
        {
            "_selective_log_softmax_kernel",
            "_grpo_loss_fwd_kernel",
            "_grpo_loss_fwd_kernel_seq",
            "_grpo_loss_bwd_kernel",
            "_grpo_loss_bwd_kernel_seq",
        }
    ),
    "liger_kernel.ops.jsd": frozenset({"_jsd_kernel"}),
    "liger_kernel.ops.kl_div": frozenset({"_kldiv_kernel_forward", "_kldiv_kernel_backward"}),
    "liger_kernel.ops.layer_norm": frozenset({"_layer_norm_forward_kernel", "_layer_norm_backward_kernel"}),
    "liger_kernel.ops.rms_norm": frozenset(
        {
            "_rms_norm_forward_kernel",
            "_rms_norm_backward_kernel",
            "_block_rms_norm_forward_kernel",
            "_block_rms_norm_backward_kernel",
        }
    ),
    "liger_kernel.ops.rope": frozenset({"_triton_rope"}),
    "liger_kernel.ops.swiglu": frozenset({"_swiglu_forward_kernel", "_swiglu_backward_kernel"}),
    "liger_kernel.ops.tvd": frozenset({"_tv_distance_kernel"}),
    "liger_kernel.ops.utils": frozenset({"element_mul_kernel"}),
}
"""Kernels that write floats only, by module."""


class KernelNotes:
    """Notes the arguments of launched kernels in the emulated card's list of known bytes."""

    def __init__(self, card: ctypes.CDLL) -> None:
        self._card = card
        self._card.em_values_unknown.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self._card.em_values_right.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._card.em_values_producer.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._card.em_values_producer.restype = ctypes.c_void_p
        self._names: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def computed(self, module: str, name: str, arguments: Mapping[str, Any]) -> bool:
        """Compute a kernel of the closed list on the CPU, if what it reads is right; return whether it was."""
        if (module, name) not in EQUIVALENTS:
            return False
        compute, read, written = EQUIVALENTS[module, name]
        tensors = {each: arguments[each] for each in read | written}
        if not all(tensor.is_contiguous() for tensor in tensors.values()):
            return False
        if any(self._card.em_values_producer(*_extent(tensors[each])) for each in read - OF_THE_HOST):
            return False
        if compute is sample:
            self._card.em_did(GENERATES)
        compute({**arguments, **{each: on_host(tensor) for each, tensor in tensors.items()}})
        for each in written:
            self._card.em_values_right(*_extent(tensors[each]))
        return True

    def launched(self, module: str, name: str, arguments: Iterator[Any]) -> None:
        """Note the tensors of one launch that may be results."""
        floats_only = name in LOOKED_AT.get(module, ())
        producer = self._names.setdefault(name, ctypes.create_string_buffer(f"Triton kernel {name}".encode()))
        for tensor in arguments:
            if is_result(tensor, floats_only=floats_only):
                self._card.em_values_unknown(*_extent(tensor), producer)


def _extent(tensor: Any) -> tuple[int, int]:
    """Return the address and the bytes of a contiguous tensor."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def is_result(argument: Any, *, floats_only: bool) -> bool:  # whatever a kernel takes
    """Whether a kernel may have written to an argument: a tensor of a card, of floats if it writes only these."""
    if not getattr(argument, "is_cuda", False) or not argument.numel() or not argument.is_contiguous():
        return False
    return not floats_only or bool(argument.is_floating_point())


def note_kernels(card: ctypes.CDLL) -> None:
    """Register what happens around the imports of Triton, of torch's compiler and of DeepSpeed's Adam."""
    notes = KernelNotes(card)

    def after_jit(jit: ModuleType) -> None:
        run = jit.JITFunction.run

        def run_and_note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            result = run(self, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup:
                module, name = self.fn.__module__, self.fn.__name__
                named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
                if not notes.computed(module, name, named):
                    written = VLLM_RESULTS.get((module, name), named)
                    notes.launched(module, name, (named[each] for each in written))
            return result

        jit.JITFunction.run = run_and_note

    def after_heuristics(heuristics: ModuleType) -> None:
        run = heuristics.CachingAutotuner.run

        def run_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(self, *args, **kwargs)
            notes.launched("torch.compile", self.fn.__name__, iter(args))
            return result

        heuristics.CachingAutotuner.run = run_and_note

    around_import("triton.runtime.jit", after=after_jit)
    around_import("torch._inductor.runtime.triton_heuristics", after=after_heuristics)
    around_import("deepspeed.ops.op_builder.fused_adam", after=update_in_place)


def update_in_place(builder: ModuleType) -> None:
    """Replace DeepSpeed's Adam, which nvcc compiles at its first use: it writes in place and allocates nothing."""
    builder.FusedAdamBuilder.load = lambda *_, **__: SimpleNamespace(multi_tensor_adam=lambda *_: None)


# ---- special tokens of a process -------------------------------------------------------------------------------------


def note_generation(generation: ModuleType) -> None:
    """Look for special tokens again when a model of transformers begins to generate."""
    generate = generation.GenerationMixin.generate

    @wraps(generate)
    def noted(*args: Any, **kwargs: Any) -> Any:
        SPECIAL_TOKENS.forget()
        return generate(*args, **kwargs)

    generation.GenerationMixin.generate = noted


def note_requests(gpu_worker: ModuleType) -> None:
    """Keep the tokens that end the new requests of a step of vLLM."""
    execute = gpu_worker.Worker.execute_model

    @wraps(execute)
    def noted(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            SPECIAL_TOKENS.add(request.sampling_params)
        return execute(self, scheduler_output, *args, **kwargs)

    gpu_worker.Worker.execute_model = noted


def avoid_special_tokens(values: ctypes.CDLL) -> None:
    """Let each draw that takes the place of a network's choice avoid the special tokens of that time."""
    passed_on: frozenset[int] | None = None

    def before_draw() -> None:
        nonlocal passed_on
        SPECIAL_TOKENS.look()
        if passed_on is not SPECIAL_TOKENS.tokens:  # also where a kernel of vLLM has looked in between
            passed_on = SPECIAL_TOKENS.tokens
            tokens, sizes = _whole(SPECIAL_TOKENS.tokens), _whole(SPECIAL_TOKENS.vocabularies)
            values.emulated_values_special(tokens, len(tokens), sizes, len(sizes))

    callback = ctypes.CFUNCTYPE(None)(before_draw)
    values.emulated_values_on_draw(callback)
    _KEPT.append(callback)


def _whole(numbers: Iterable[int]) -> ctypes.Array[ctypes.c_int64]:
    kept = sorted(each for each in numbers if -(1 << 63) <= each < 1 << 63)
    return (ctypes.c_int64 * len(kept))(*kept)


_KEPT: list[object] = []
"""Functions that the libraries call: ctypes frees those that Python does not keep."""
