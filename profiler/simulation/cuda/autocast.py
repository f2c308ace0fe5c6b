"""Autocast for the simulated GPU, and the scaled gradients of fp16.

torch's autocast ignores `meta` tensors. The simulation registers it where the dispatcher expects it: as kernels of the
dispatch key `AutocastPrivateUse1`, which no device of the session uses, above autograd. So autograd records the casts,
and operations inside an autocast operation are unchanged, exactly as on CUDA.

Sources: `ATen/autocast_mode.h` (lists of operations and policies; a test compares them with the installed header) and
`ATen/autocast_mode.cpp` (`cached_cast`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import partialmethod
from typing import Any

import torch
from accelerate import accelerator
from accelerate.state import AcceleratorState, PartialState
from torch.library import Library

from profiler.allocator.traces.trace import SCALE_OF_GRADIENTS
from profiler.domain.memory import Category
from profiler.seams.patching import Patch, patched
from profiler.simulation.tracing.recorder import Recorder

_META = torch.device("meta")

AUTOCAST_KEY = "AutocastPrivateUse1"
"""The dispatch key of the simulated GPU's autocast, by the name that `torch.library` takes."""

_KEY = getattr(torch._C.DispatchKey, AUTOCAST_KEY)  # not in torch's stub
_KEY_SET = torch._C.DispatchKeySet(_KEY)

LOWER_PRECISION = (
    "convolution", "conv1d", "conv2d", "conv3d", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "prelu", "scaled_dot_product_attention",
)  # fmt: skip
"""Operations whose floating-point arguments are cast to autocast's type, as far as language models use them."""

FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "nll_loss", "kl_div", "mse_loss", "l1_loss", "dist", "cdist", "renorm", "logsumexp",
)  # fmt: skip
"""Operations whose arguments are cast to float32."""

FLOAT32_OUTPUT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "sum",
    "sum.dim_IntList",
)  # fmt: skip
"""Operations whose result is float32 unless the call specifies a type."""

PROMOTE = ("addcdiv", "addcmul", "atan2", "cross", "dot", "index_put", "tensordot", "scatter_add")
"""Operations that run in the widest type among their arguments."""


NOT_CAST = ("dropout", "one_hot")
"""Operations that autocast leaves alone, and that torch composes differently on CUDA (`composites.py`)."""

AUTOCAST_OPERATIONS = (*LOWER_PRECISION, *FLOAT32, *FLOAT32_OUTPUT, *PROMOTE)
"""Every operation that autocast changes on CUDA, as far as language models use it."""


class _State:
    """The current state of autocast on the simulated GPU."""

    def __init__(self) -> None:
        self.enabled = False
        self.dtype = torch.bfloat16
        self.depth = 0
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.untouched: frozenset[str] = frozenset()


_state = _State()
_replacements: dict[str, Callable[..., Any]] = {}
_library: Library | None = None
_fallback: Library | None = None


class SimulatedAutocast(ContextDecorator):
    """`torch.autocast("meta", ...)` on the simulated GPU: a context manager and a decorator, as torch's."""

    def __init__(
        self, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        self._dtype = dtype or torch.bfloat16
        self._enabled = enabled
        self._outer: list[tuple[bool, torch.dtype]] = []

    def __enter__(self) -> "SimulatedAutocast":
        self._outer.append((_state.enabled, _state.dtype))
        _state.enabled, _state.dtype = self._enabled, self._dtype
        _state.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        _state.enabled, _state.dtype = self._outer.pop()
        _state.depth -= 1
        if _state.depth == 0:
            _state.cache.clear()


def autocast_dtype() -> torch.dtype | None:
    """Return the type of the simulated GPU's autocast; None where it is off."""
    return _state.dtype if _state.enabled else None


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating-point tensors of the simulated GPU in `value`; casts of float32 parameters are cached.

    As in `cached_cast`, only leaves that require grad, are float32 and are not views are cached, and only if the cast
    is to the lower precision.
    """
    if isinstance(value, torch.Tensor):
        return _cast_tensor(value, dtype)
    if isinstance(value, list | tuple):
        return type(value)(cast(item, dtype) for item in value)
    return value


def _with_casts(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Run an operation on its arguments, cast from the last to the first and freed from the first to the last.

    torch casts them where it calls the operation (`WrapFunction_` in `aten/src/ATen/autocast_mode.h`), and the compiler
    of its Linux builds evaluates a call's arguments from right to left: weights are cast before inputs. The last cast
    is freed first.
    """
    casts = [cast(argument, dtype) for argument in reversed(args)]
    casts.reverse()
    result = operation(*casts, **kwargs)
    while casts:
        del casts[0]
    return result


def _eligible(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" and tensor.is_floating_point() and tensor.dtype is not torch.float64


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not _eligible(tensor) or tensor.dtype is dtype:
        return tensor
    keep = (
        dtype is _state.dtype
        and tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
    )
    if not keep:
        return tensor.to(dtype)
    kept = _state.cache.get(id(tensor))
    if kept is None:
        kept = (tensor, tensor.to(dtype))
        _state.cache[id(tensor)] = kept
    return kept[1]


def _widest(args: Any) -> torch.dtype:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and _eligible(arg)]
    return torch.float32 if any(tensor.dtype is torch.float32 for tensor in tensors) else _state.dtype


def _policy_lower(operation: Any, _: Any, args: Any, kwargs: Any) -> Any:
    named = {key: cast(value, _state.dtype) for key, value in kwargs.items()}
    return _with_casts(operation, args, named, _state.dtype)


def _policy_float32(operation: Any, _: Any, args: Any, kwargs: Any) -> Any:
    return _with_casts(operation, args, kwargs, torch.float32)


def _policy_float32_output(operation: Any, schema: Any, args: Any, kwargs: Any) -> Any:
    if not _eligible(args[0]):
        return operation(*args, **kwargs)
    position = [argument.name for argument in schema.arguments].index("dtype")
    if kwargs.get("dtype") is not None or (len(args) > position and args[position] is not None):
        return operation(*args, **kwargs)
    return operation(*args[:position], **(kwargs | {"dtype": torch.float32}))


def _policy_promote(operation: Any, _: Any, args: Any, kwargs: Any) -> Any:
    return _with_casts(operation, args, kwargs, _widest(args))


def _policy_none(operation: Any, _: Any, args: Any, kwargs: Any) -> Any:
    return operation(*args, **kwargs)


_POLICIES = (
    (NOT_CAST, _policy_none),
    (LOWER_PRECISION, _policy_lower),
    (FLOAT32, _policy_float32),
    (FLOAT32_OUTPUT, _policy_float32_output),
    (PROMOTE, _policy_promote),
)


def _kernel(name: str, policy: Callable[..., Any]) -> Callable[..., Any]:
    aten_operation = operation_named(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        operation = _replacements.get(name, aten_operation)
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            if not _state.enabled or name in _state.untouched:
                return operation(*args, **kwargs)
            return policy(operation, aten_operation._schema, args, kwargs)

    return call


@contextmanager
def composed_within() -> Iterator[None]:
    """While active in a replacement, operations that ATen calls are replaced too; nothing is cast.

    An operation runs with this key excluded, so that what it is composed of would be that of `meta`.
    """
    torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    try:
        with SimulatedAutocast(enabled=False):
            yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True)


def operation_named(name: str) -> Any:
    """The overload of an ATen operation by the name `op` or `op.overload`."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _register() -> None:
    """Register the kernels, once per process; they do nothing while their key is excluded."""
    global _library, _fallback  # kernels live as long as the process
    if _library is not None:
        return
    # torch registers no fallback for this key; without one, every operation outside the lists would fail.
    _fallback = Library("_", "IMPL")
    _fallback.fallback(torch.library.fallthrough_kernel, AUTOCAST_KEY)
    _library = Library("aten", "IMPL")
    for names, policy in _POLICIES:
        for name in names:
            _library.impl(name, _kernel(name, policy), AUTOCAST_KEY)


@contextmanager
def autocast_on_meta(
    replacements: dict[str, Callable[..., Any]], *, queried_as: str = "cuda", untouched: frozenset[str] = frozenset()
) -> Iterator[None]:
    """While active, torch's autocast works for `meta` as it does for CUDA.

    Queries for the device type `queried_as` return the state of `meta`: code that names no type asks for "cuda".

    `replacements` run instead of the ATen operations of these names, after their casts, with autocast on or off.
    Operations in `untouched` are not changed, for a device whose autocast does not change them.
    """
    _register()
    torch_autocast, available = torch.autocast, torch.amp.is_autocast_available
    enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return SimulatedAutocast(*args, **kwargs)
        return torch_autocast(device_type, *args, **kwargs)

    ours = ("meta", queried_as)
    patches: list[Patch] = [
        (torch, "autocast", autocast),
        (torch.amp, "autocast", autocast),
        (torch.amp, "is_autocast_available", lambda kind: kind == "meta" or available(kind)),
        (torch, "is_autocast_enabled", lambda kind="cuda": _state.enabled if kind in ours else enabled(kind)),
        (torch, "get_autocast_dtype", lambda kind: _state.dtype if kind in ours else dtype_of(kind)),
    ]
    torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    _replacements.update(replacements)
    _state.untouched = untouched
    try:
        with patched(patches), torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True)
        _replacements.clear()
        _state.untouched = frozenset()


def scaled_gradients(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, accelerate scales gradients under fp16 on `meta`, as it does on CUDA."""
    return patched(
        [
            (accelerator, "get_grad_scaler", lambda *_, **kwargs: _Scaler(recorder, **kwargs)),
            (accelerator.Accelerator, "__init__", partialmethod(_made_for_cuda, accelerator.Accelerator.__init__)),
        ]
    )


class _Scaler(torch.amp.GradScaler):
    """torch's scaler on the simulated GPU. Its numbers have a name of their own: none belongs to a layer."""

    def __init__(self, recorder: Recorder, **kwargs: Any) -> None:
        super().__init__("meta", **kwargs)
        self._recorder = recorder

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        with self._recorder.attributed(Category.WORKSPACE, SCALE_OF_GRADIENTS):
            super().unscale_(optimizer)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        with self._recorder.attributed(Category.WORKSPACE, SCALE_OF_GRADIENTS):
            super().update(new_scale)


def _made_for_cuda(made: Any, make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Make an accelerator while its device is named as on CUDA: it refuses to scale gradients on any other."""
    states = (PartialState._shared_state, AcceleratorState._shared_state)
    simulated = [state for state in states if state.get("device") == _META]
    for state in simulated:
        state["device"] = torch.device("cuda")
    try:
        make(made, *args, **kwargs)
    finally:
        for state in states if simulated else ():
            state["device"] = _META
