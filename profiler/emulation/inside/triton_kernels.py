"""Kernels of Triton: compiled for real, launched, and not run. What they would have written is noted as unknown.

Of the kernels in `LOOKED_AT` only the floats are: they read integers (targets, lengths, masks) and write none that
steers the host. Of every other kernel each argument may be a result, and a record names it if the host reads one.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

LOOKED_AT: Mapping[str, frozenset[str]] = {
    # trl 1.16: log-probabilities, entropies and divergences, all of floats.
    "trl.kernels.chunked_logprob": frozenset({"_forward_kernel", "_backward_kernel"}),
    "trl.kernels.chunked_divergence": frozenset({"_stats_kernel", "_jsd_kernel", "_backward_kernel"}),
    "trl.kernels.logprob_entropy": frozenset({"_forward_kernel", "_backward_kernel"}),
}
"""Kernels that write floats only, by module."""


class KernelNotes:
    """Notes the arguments of launched kernels in the emulated card's list of known bytes."""

    def __init__(self, card: ctypes.CDLL) -> None:
        self._card = card
        self._card.em_values_unknown.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self._names: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def launched(self, module: str, name: str, arguments: Iterator[Any]) -> None:
        """Note the tensors of one launch."""
        floats_only = name in LOOKED_AT.get(module, ())
        producer = self._names.setdefault(name, ctypes.create_string_buffer(f"Triton kernel {name}".encode()))
        for tensor in arguments:
            if is_result(tensor, floats_only=floats_only):
                self._card.em_values_unknown(tensor.data_ptr(), tensor.numel() * tensor.element_size(), producer)


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
                notes.launched(self.fn.__module__, self.fn.__name__, iter((*args, *kwargs.values())))
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
