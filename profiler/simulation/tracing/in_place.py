"""What torch writes in place, under a dispatch mode as without one.

torch treats every tensor like one of a subclass while a dispatch mode is active (`isTensorSubclassLike` in
`aten/src/ATen/TensorSubclassLikeUtils.h`), and autograd then avoids writing in place. On a card no mode is active, so
the simulation puts the choice back. There are three kinds:

- Where a tensor is used more than once, the engine adds up its gradients. It writes the sum into the first of them if
  nobody else holds it (`accumulate` in `torch/csrc/autograd/input_buffer.cpp`); under a mode it asks for `aten.add`.
- Formulas of derivatives (`torch/csrc/autograd/FunctionsManual.cpp`) fill a new tensor of zeros: `scatter_add_`,
  `index_add_`, `_index_put_impl_` and others; under a mode they take the operation that makes a second tensor.
- Attention by products adds its mask to the scores.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten

_PASSED_OVER = ("profiler.simulation.", "torch.utils._python_dispatch", "torch._compile")
"""Modules whose frames stand between the dispatcher and whoever asked for an operation."""

_SELECTING = frozenset(
    {
        "KthvalueBackward0",
        "MaxBackward0",
        "MedianBackward1",
        "MinBackward0",
        "ModeBackward0",
        "NanmedianBackward1",
        "SortBackward0",
        "SortBackward1",
        "TopkBackward0",
    }
)

_BINARY_CROSS_ENTROPY = frozenset({"BinaryCrossEntropyWithLogitsBackward0"})
_CLAMP = frozenset({"ClampBackward0"})

_ADD_THEMSELVES = (
    "Atan2", "Cholesky", "Linalg", "Logcumsumexp", "Lu", "Renorm", "Special", "StdMean", "TriangularSolve", "VarMean",
)  # fmt: skip
"""Beginnings of nodes whose formulas add two tensors of their own, which looks like a sum of the engine's."""

IN_PLACE: Mapping[Any, tuple[Any, frozenset[str]]] = {
    aten.scatter_add.default: (
        aten.scatter_add_.default,
        frozenset({"GatherBackward0", "CummaxBackward0", "CumminBackward0"}),
    ),
    aten.index_add.default: (aten.index_add_.default, frozenset({"IndexSelectBackward0"})),
    aten.index_put.default: (aten.index_put_.default, frozenset({"IndexBackward0"})),
    aten.put.default: (aten.put_.default, frozenset({"TakeBackward0"})),
    aten.index_fill.int_Tensor: (aten.index_fill_.int_Tensor, frozenset({"TraceBackward0"})),
    aten.masked_scatter.default: (aten.masked_scatter_.default, frozenset({"MaskedSelectBackward0"})),
    aten.masked_fill.Scalar: (aten.masked_fill_.Scalar, frozenset({"Atan2Backward0"})),
    aten.scatter.src: (aten.scatter_.src, _SELECTING),
    aten.mul.Tensor: (aten.mul_.Tensor, _BINARY_CROSS_ENTROPY),
    aten.sub.Tensor: (aten.sub_.Tensor, _BINARY_CROSS_ENTROPY),
    aten.logical_and.default: (aten.logical_and_.default, _CLAMP),
    aten.logical_or.default: (aten.logical_or_.default, _CLAMP),
}
"""Operation that a formula asks for under a mode: the one without a mode, and the autograd nodes that do so.

Found by running every differentiable operation of torch's own list of samples on the CPU with and without a mode
(torch 2.13). Left out are formulas that compute otherwise under a mode and not only into another tensor: `prod`,
`cumprod`, `max`, `min` and `median` of a whole tensor, `masked_fill` by a tensor with a gradient, and `linalg`.
"""


_math_attention: list[None] = []
"""Not empty while attention by products runs."""


@contextmanager
def math_attention() -> Iterator[None]:
    """While active, a mask is added to the scores in place.

    Source: `_scaled_dot_product_attention_math` in `aten/src/ATen/native/transformers/attention.cpp`, which adds it out
    of place under a mode.
    """
    _math_attention.append(None)
    try:
        yield
    finally:
        _math_attention.pop()


def without_a_mode(operation: Any, args: tuple[Any, ...]) -> Any:
    """Return the operation that would be asked for in place of `operation` if no mode were active."""
    if _math_attention and operation is aten.add.Tensor:
        return aten.add_.Tensor
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0:
        return operation
    if operation is aten.add.Tensor:
        return aten.add_.Tensor if _sums_in_place(*args[:2]) else operation
    in_place, nodes = IN_PLACE[operation]
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in nodes or not _held_alone(args[0]):
        return operation
    return in_place


def _sums_in_place(total: Any, more: Any) -> bool:
    """Whether ``total + more`` is a sum of gradients that the engine writes into `total`.

    So it is if the engine itself asks for it (no Python of an autograd function stands in between), no gradient of the
    gradient is wanted, and `total` is dense and held by the engine alone.
    """
    if not isinstance(more, torch.Tensor) or not _asked_by_the_engine():
        return False
    node = torch._C._current_autograd_node()
    if node is not None and node.name().startswith(_ADD_THEMSELVES):
        return False
    return (
        _holders(total) == holders_of_a_sum()
        and total.shape == more.shape
        and bool(is_non_overlapping_and_dense_or_false(total))
    )


def _asked_by_the_engine() -> bool:
    """Whether no Python but the dispatcher's and ours stands between the engine's call and here."""
    frame = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_PASSED_OVER):
        frame = frame.f_back  # type: ignore[assignment]
    # None: a thread of the engine's own, as it has for CUDA, with nothing of Python above.
    return frame is None or frame.f_code is _engine_run_backward.__code__


def _held_alone(tensor: Any) -> bool:
    """Whether a formula made `tensor` itself: the storage of what comes from elsewhere has more holders."""
    return bool(_holders(tensor)[1] <= holders_of_a_sum()[1])


@cache
def holders_of_a_sum() -> tuple[int, int]:
    """Return the references to a gradient and to its storage that a mode sees when the engine alone holds it.

    Found by trying; to be called for the first time where no backward runs.
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
