"""Backward under a dispatch mode: operations in place that torch avoids, and Python code inside it.

Whether Python code, and not the autograd engine itself, runs an operation in backward.

The engine runs Python in three places: the backward of an autograd function, the hooks of a tensor, and the functions
that unpack saved tensors (checkpointing recomputes there). Each is wrapped, so that it is known in which run of the
engine (graph task) Python is at work. An engine that such code starts in turn has a graph task of its own.

Hooks of graph nodes, which torch registers in C++, cannot be wrapped; no library of the project adds tensors in one.

In-place operations that torch avoids under a dispatch mode.

While a dispatch mode is active, torch treats every tensor like one of a subclass (`isTensorSubclassLike` in
`aten/src/ATen/TensorSubclassLikeUtils.h`), and autograd avoids writing in place. On a card no mode is active, so the
simulation restores the in-place operations. There are three kinds:

- Where a tensor is used more than once, the engine adds up its gradients. It writes the sum into the first of them if
  it holds that one alone (`accumulate` in `torch/csrc/autograd/input_buffer.cpp`); under a mode it runs `aten.add`.
- Formulas of derivatives (`torch/csrc/autograd/FunctionsManual.cpp`) fill a new tensor of zeros: `scatter_add_`,
  `index_add_`, `_index_put_impl_` and others; under a mode they use the operation that makes a second tensor.
- Attention by products adds its mask to the scores.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, Self

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from profiler.domain.errors import UnsupportedTrialError
from profiler.seams.patching import Patch, patched

NO_BACKWARD = -1
"""`current_graph_task` outside of backward."""

_BACKWARDS = ("apply", "apply_boxed")
"""Torch before 2.13 has only the first."""


class _Running(threading.local):
    """Graph tasks in which Python runs, by thread: the engine has threads of its own for CUDA."""

    def __init__(self) -> None:
        self.graph_tasks: list[int] = []


_running = _Running()


def current_graph_task() -> int:
    """Return the number of the engine's run that the running operation belongs to."""
    return int(torch._C._current_graph_task_id())


def python_is_running() -> bool:
    """Whether Python that the engine called has not returned yet. Only while `watched` is active."""
    tasks = _running.graph_tasks
    return bool(tasks) and tasks[-1] == current_graph_task()


def watched() -> AbstractContextManager[None]:
    """While active, Python that the engine calls is noticed; hooks only if they are registered meanwhile."""
    unpacking = saved_tensors_hooks.__init__
    register, register_after = torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook

    def save_with_hooks(self: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        unpacking(self, pack_hook, _noticed(unpack_hook))

    def register_hook(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register(self, _noticed(hook))

    def register_hook_after(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register_after(self, _noticed(hook))

    return patched(
        [
            *_noticed_backwards(),
            (saved_tensors_hooks, "__init__", save_with_hooks),
            (torch.Tensor, "register_hook", register_hook),
            (torch.Tensor, "register_post_accumulate_grad_hook", register_hook_after),
        ]
    )


def _noticed_backwards() -> list[Patch]:
    """Return replacements of the methods by which the engine runs the backward of an autograd function."""
    methods = {name: getattr(BackwardCFunction, name, None) for name in _BACKWARDS}
    return [(BackwardCFunction, name, _noticed_method(method)) for name, method in methods.items() if method]


def _noticed_method(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any) -> Any:
        with _in_python():
            return method(self, *args)

    return run


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _in_python():
            return function(*args)

    return run


@contextmanager
def _in_python() -> Iterator[None]:
    _running.graph_tasks.append(current_graph_task())
    try:
        yield
    finally:
        _running.graph_tasks.pop()


aten = torch.ops.aten

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
"""Prefixes of nodes whose formulas add two tensors themselves, which looks like a sum of the engine."""

_ADDS_NOTHING = "LinalgVectorNormBackward"
"""The node of a norm: its formula (`norm_backward`) only multiplies."""

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
"""By operation that a formula uses under a mode: the operation without a mode, and the autograd nodes that use it.

Found by running every differentiable operation of torch's own list of samples on the CPU with and without a mode
(torch 2.13). Formulas that compute something else under a mode are left out: `prod`, `cumprod`, `max`, `min` and
`median` of a whole tensor, `masked_fill` by a tensor with a gradient, and `linalg`.
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


class BackwardMode(TorchDispatchMode):
    """A dispatch mode whose handler can ask `without_a_mode` what torch would do if no mode were active."""

    def __init__(self) -> None:
        super().__init__()
        self._watched = ExitStack()
        holders_of_a_sum()

    def __enter__(self) -> Self:
        self._watched.enter_context(watched())
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._watched.close()

    @contextmanager
    def also_within(self) -> Iterator[None]:
        """While active in a handler, the operations of its operation come to the handler too."""
        TorchDispatchMode.__enter__(self)
        try:
            yield
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)


def without_a_mode(operation: Any, args: tuple[Any, ...]) -> Any:
    """Return the operation that torch would run in place of `operation` if no mode were active."""
    if _math_attention and operation is aten.add.Tensor:
        return aten.add_.Tensor
    if torch.is_grad_enabled() or current_graph_task() == NO_BACKWARD:
        return operation
    if operation is aten.add.Tensor:
        return aten.add_.Tensor if _sums_in_place(*args[:2]) else operation
    in_place, nodes = IN_PLACE[operation]
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in nodes or not _held_alone(args[0]) or _is_weight_of_positives(node, args[0]):
        return operation
    return in_place


def _is_weight_of_positives(node: Any, tensor: torch.Tensor) -> bool:
    """Whether a binary cross entropy was given `tensor`: no other holder of its storage may show it."""
    given = getattr(node, "_saved_pos_weight", None)
    return given is not None and given.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def _sums_in_place(total: Any, more: Any) -> bool:
    """Whether ``total + more`` is a sum of gradients that the engine writes into `total`.

    This holds if the engine itself makes the sum, no gradient of the gradient is wanted, and `total` is dense and
    held by the engine alone.
    """
    if not isinstance(more, torch.Tensor) or python_is_running():
        return False
    node = torch._C._current_autograd_node()
    if node is not None and _adds_by_itself(node.name()):
        return False
    return (
        _holders(total) == holders_of_a_sum()
        and total.shape == more.shape
        and (total.is_contiguous() or bool(is_non_overlapping_and_dense_or_false(total)))
    )


def _adds_by_itself(node: str) -> bool:
    return node.startswith(_ADD_THEMSELVES) and not node.startswith(_ADDS_NOTHING)


def _held_alone(tensor: Any) -> bool:
    """Whether a formula made `tensor` itself: the storage of any other tensor has more holders."""
    return bool(_holders(tensor)[1] <= holders_of_a_sum()[1])


@cache
def holders_of_a_sum() -> tuple[int, int]:
    """Return the references to a gradient and to its storage that a mode sees when the engine alone holds it.

    torch documents neither count, so they are measured on a small graph. The first call must not be in a backward.

    Raises:
        UnsupportedTrialError: The counts do not show whether a gradient has a second holder.
    """
    alone = _holders_of_sums(lambda tensor: tensor.sin() * tensor.cos())
    # The gradient of a sum goes to both of its terms: the other one still holds it.
    shared = _holders_of_sums(lambda tensor: tensor + tensor.exp())
    if len(alone) != 1 or len(shared) != 1 or shared[0][1] <= alone[0][1]:
        raise UnsupportedTrialError(
            f"torch.Tensor._use_count and torch._C._storage_Use_Count of torch {torch.__version__} no longer show "
            f"who holds a gradient: {alone} for a gradient with one holder, {shared} for one with two. The profiler "
            "relies on them, so the trial does not run"
        )
    return alone[0]


def _holders_of_sums(graph: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[int, int]]:
    """Return who holds the first gradient of each sum that the engine makes in the backward of `graph`."""
    seen = _SeenSums()
    with _disable_current_modes(), torch.enable_grad():
        result = graph(torch.ones(2, requires_grad=True) * 2)
        with seen:
            result.sum().backward()
    return seen.holders


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
