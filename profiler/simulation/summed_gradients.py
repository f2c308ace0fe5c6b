"""Gradients that autograd sums in place, under a dispatch mode as without one.

Where a tensor is used more than once, the autograd engine adds up its gradients. It writes the sum into the first of
them if nobody else holds it (`accumulate` in `torch/csrc/autograd/input_buffer.cpp`), but never while a dispatch mode
is active (`isTensorSubclassLike`): then it asks for `aten.add`. On a card no mode is active, so the simulation puts the
choice back. That is one gradient less at such an instant: of the whole embedding, where the LM head shares its weight.
"""

import sys
from functools import cache
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten

_FRAMES_TO_THE_CALLER = 3
"""From `sums_in_place` up: its own, a handler's, `__torch_dispatch__`'s, and the one that asked for the operation."""


def sums_in_place(total: Any, more: Any) -> bool:
    """Whether ``total + more``, seen by a handler of the dispatch mode, would be in place if there were no mode.

    So it is if the engine itself asks for it (no Python of an autograd function stands in between), no gradient of the
    gradient is wanted, and `total` is dense and held by the engine alone.
    """
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0 or not isinstance(more, torch.Tensor):
        return False
    if not _is_the_engine(_FRAMES_TO_THE_CALLER + 1):
        return False
    alone = _holders(total) == holders_of_a_sum()
    return alone and total.shape == more.shape and is_non_overlapping_and_dense_or_false(total)


def _is_the_engine(depth: int) -> bool:
    """Whether the frame so far up is the engine's call."""
    try:
        return sys._getframe(depth).f_code is _engine_run_backward.__code__
    except ValueError:
        # A thread of the engine's own, as it has for CUDA, with nothing of Python above.
        return True


@cache
def holders_of_a_sum() -> tuple[int, int]:
    """References to a gradient, and to its storage, that a mode sees when the engine alone holds it: found by trying.

    To be called for the first time where no backward runs.
    """
    seen = _SeenSums()
    with _disable_current_modes(), torch.enable_grad():
        tensor = torch.ones(2, requires_grad=True)
        used_twice = tensor * 2
        result = used_twice.sin() * used_twice.cos()
        with seen:
            result.sum().backward()
    (holders,) = seen.holders
    return holders


class _SeenSums(TorchDispatchMode):
    """Counts who holds the first gradient of each sum."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor:
            self.holders.append(_holders(args[0]))
        return func(*args, **(kwargs or {}))


def _holders(tensor: Any) -> tuple[int, int]:
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
