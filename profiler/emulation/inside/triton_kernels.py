"""Kernels of Triton: compiled for real, launched, and not run. What they would have written is noted as unknown.

Of the kernels in `LOOKED_AT` only the floats are: they read integers (targets, lengths, masks) and write none that
steers the host. Of every other kernel each argument may be a result, and a record names it if the host reads one.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from profiler.emulation.inside.kernel_values import EQUIVALENTS, on_host
from profiler.emulation.inside.vllm_kernels import OF_THE_HOST, VLLM_RESULTS

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


def _extent(tensor: Any) -> tuple[int, int]:  # noqa: ANN401
    """Return the address and the bytes of a contiguous tensor."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def is_result(argument: Any, *, floats_only: bool) -> bool:  # noqa: ANN401  # whatever a kernel takes
    """Whether a kernel may have written to an argument: a tensor of a card, of floats if it writes only these."""
    if not getattr(argument, "is_cuda", False) or not argument.numel() or not argument.is_contiguous():
        return False
    return not floats_only or bool(argument.is_floating_point())


def note_launches(card: ctypes.CDLL) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of `triton.runtime.jit`."""
    notes = KernelNotes(card)

    def after_import(jit: ModuleType) -> None:
        run = jit.JITFunction.run

        def run_and_note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ANN401
            result = run(self, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup:
                module, name = self.fn.__module__, self.fn.__name__
                named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
                if not notes.computed(module, name, named):
                    written = VLLM_RESULTS.get((module, name), named)
                    notes.launched(module, name, (named[each] for each in written))
            return result

        jit.JITFunction.run = run_and_note

    return after_import


def note_compiled_launches(card: ctypes.CDLL) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of inductor's heuristics: kernels that torch.compile makes."""
    notes = KernelNotes(card)

    def after_import(heuristics: ModuleType) -> None:
        run = heuristics.CachingAutotuner.run

        def run_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = run(self, *args, **kwargs)
            notes.launched("torch.compile", self.fn.__name__, iter(args))
            return result

        heuristics.CachingAutotuner.run = run_and_note

    return after_import
