"""Names of a card in a script, which mean the simulated GPU; what that refuses, and values that it does not know."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from profiler.domain.errors import UnsupportedTrialError
from profiler.seams.patching import Patch
from profiler.simulation.tracing.host_values import host_value, noticed_placeholders, placeholder, set_host_value

_DTYPES = {
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Half": torch.float16, "Float": torch.float32, "Double": torch.float64, "Bool": torch.bool,
    "BFloat16": torch.bfloat16,
}  # fmt: skip

_STORAGES = (*_DTYPES, "ComplexFloat", "ComplexDouble")

_META = torch.device("meta")


class _OfCard(type):
    """The class of these names: a tensor on the card is an instance of the one with its type."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_meta and instance.dtype is cls.dtype

    def __call__(cls, *sizes_or_data: Any, **_: Any) -> torch.Tensor:
        """Make a tensor of sizes, or of data."""
        if len(sizes_or_data) == 1 and not isinstance(sizes_or_data[0], int):
            data = sizes_or_data[0]
            if not isinstance(data, torch.Size):
                return torch.tensor(data, dtype=cls.dtype).to(_META)
        return torch.empty(*sizes_or_data, dtype=cls.dtype, device=_META)


def _type(name: str, dtype: torch.dtype) -> type:
    return _OfCard(f"{name}Tensor", (), {"dtype": dtype, "is_cuda": True, "is_sparse": False})


LEGACY_TYPES: Mapping[str, type] = {f"{name}Tensor": _type(name, dtype) for name, dtype in _DTYPES.items()}
"""By name in `torch.cuda`."""


def legacy_types() -> list[Patch]:
    """Return the patches of the types; a storage of its own is refused."""
    storages = (f"{name}Storage" for name in _STORAGES)
    return [
        *((torch.cuda, name, found) for name, found in LEGACY_TYPES.items()),
        *((torch.cuda, name, refused_class(f"torch.cuda.{name}")) for name in storages),
    ]


def converted(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `Tensor.type`: the name of a tensor's type without an argument, else a conversion."""
    tensor, *given = args
    wanted: Any = given[0] if given else kwargs.get("dtype")
    if wanted is None:
        return _name_of(tensor)
    if isinstance(wanted, str):
        wanted = LEGACY_TYPES.get(wanted.removeprefix("torch.cuda."), wanted)
    if isinstance(wanted, _OfCard):
        return tensor.to(_META, wanted.dtype)
    return torch.Tensor.type(tensor, wanted)


def _name_of(tensor: torch.Tensor) -> str:
    if not tensor.is_meta:
        return str(torch.Tensor.type(tensor))
    return next((f"torch.cuda.{name}" for name, found in LEGACY_TYPES.items() if isinstance(tensor, found)), "")


META = torch.device("meta")


def names_the_card(device: Any) -> bool:
    """Return whether `device` is a card, as a script names it."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, int) and not isinstance(device, bool)


def on_simulated(device: Any) -> Any:
    """Return the simulated GPU for a name of a card, and every other device as it is."""
    return META if names_the_card(device) else device


class CardNames(TorchFunctionMode):
    """While active, functions and methods of torch take the name of a card for the simulated GPU.

    `tensor.is_cuda` is true of its tensors, whose `device` is the card for the script and what it imports; for the
    libraries that the simulation runs it remains `meta`.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function of torch."""
        kwargs = kwargs or {}
        if func == torch.Tensor.backward:
            return self._backward(*args, **kwargs)
        handler = _HANDLER_OF.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        return func(*args, **_named(kwargs))

    def _backward(
        self,
        tensor: torch.Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Run backward with this mode active: torch switches it off within a function of its own."""
        with self:
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


class HostGenerator(torch.Generator):
    """A generator of random numbers: that of the card is one of the host, as `meta` draws none."""

    def __new__(cls, device: Any = "cpu") -> "HostGenerator":
        """Make a generator for `device`."""
        on_host = "cpu" if names_the_card(device) else device
        return super().__new__(cls, on_host)  # type: ignore[call-arg]


def _named(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: on_simulated(value) if name == "device" else value for name, value in kwargs.items()}


def _is_cuda(_: Any, args: tuple[Any, ...], __: Any) -> bool:
    return bool(args[0].is_meta)


_SEE_META = frozenset({"torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "profiler"})
"""Packages whose choices by device the simulation knows, and puts back where CUDA chooses otherwise."""
_CARD = torch.device("cuda", 0)
_BETWEEN = ("__torch_function__", "device", "<genexpr>", "get_parameter_device")
"""Functions by which these packages only pass on what was asked: another mode, and `device` of a model."""


def _device_of(func: Any, args: tuple[Any, ...], _: Any) -> torch.device:
    found: torch.device = func(*args)
    return _CARD if found.type == "meta" and not _asked_by_a_library() else found


def _is_meta(func: Any, args: tuple[Any, ...], _: Any) -> bool:
    return bool(func(*args)) and _asked_by_a_library()


def _asked_by_a_library() -> bool:
    frame = inspect.currentframe()
    for _ in range(3):
        frame = frame and frame.f_back
    while frame and frame.f_code.co_name in _BETWEEN and _is_library(frame):
        frame = frame.f_back
    return frame is not None and _is_library(frame)


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _SEE_META


_FINITE = "_finite"


def _is_finite(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Numbers of the card that are not known are finite: what a script reads of them is a number."""
    found: torch.Tensor = func(*args, **kwargs)
    if found.is_meta and host_value(found) is None:
        set_host_value(found, torch.ones(()).bool().expand(found.shape))
        setattr(found, _FINITE, True)  # also where it is too large for a host value
    return found


def _all(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    found: torch.Tensor = func(*args, **kwargs)
    if getattr(args[0] if args else kwargs.get("input"), _FINITE, False):
        set_host_value(found, torch.ones(()).bool().expand(found.shape))
    return found


def _compared(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compare tensors of the card by what a script would read of them."""
    return func(*map(_readable, args), **{name: _readable(value) for name, value in kwargs.items()})


def _readable(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_meta:
        return value
    known = host_value(value)
    if known is None:
        known = torch.full((), placeholder(value.dtype), dtype=value.dtype, device="cpu").expand(value.shape)
    return known


def _get_device(func: Any, args: tuple[Any, ...], _: Any) -> Any:
    """Return the number of a tensor's device; `meta` has none, and the card is 0."""
    return 0 if args[0].is_meta else func(*args)


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `Tensor.to`, whose first argument may be a device: 0 and 1 are cards there, True and False are not."""
    return func(args[0], *map(on_simulated, args[1:]), **_named(kwargs))


def _parse_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read the arguments of `Module.to`."""
    return func(*map(on_simulated, args), **_named(kwargs))


def _cuda(_: Any, args: tuple[Any, ...], __: Any) -> Any:
    return args[0].to(META)


def _from_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor from data of the host: on the host, and copied to the card. So its values are known."""
    device = kwargs.get("device")
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if device is None or not names_the_card(device) or (isinstance(data, torch.Tensor) and data.is_meta):
        return func(*args, **_named(kwargs))
    requires_grad = kwargs.get("requires_grad", False)
    on_host = {name: value for name, value in kwargs.items() if name not in ("device", "requires_grad", "pin_memory")}
    placed = func(*args, **on_host, device="cpu").to(META)
    return placed.requires_grad_() if requires_grad else placed


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a device; a number alone is a card."""
    if len(args) == 1 and isinstance(args[0], int):
        return func("cuda", *args)
    return func(*args, **kwargs)


def _format(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Format a tensor; a single number of the card is read, as on CUDA, which torch does not do on `meta`."""
    tensor, *rest = args
    if type(tensor) is torch.Tensor and tensor.is_meta and tensor.dim() == 0:
        return tensor.item().__format__(*rest, **kwargs)
    return func(*args, **kwargs)


def _set_data(func: Any, args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """Set ``tensor.data``; a tensor of the host may get data of the card, or the reverse, as with CUDA.

    `meta` tensors have a type of their own, so the tensor is exchanged for a new one of its class.
    """
    tensor, data = args
    if tensor.is_meta == data.is_meta:
        func(tensor, data)
        return
    new = data.detach()
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        new.requires_grad_()
    known = host_value(data) if data.is_meta else None
    if known is not None:
        set_host_value(new, known)
    torch.utils.swap_tensors(tensor, new)


_HANDLER_OF: Mapping[Any, Any] = {
    torch.Tensor.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: _device_of,
    torch.Tensor.is_meta.__get__: _is_meta,  # type: ignore[attr-defined]
    torch.Tensor.get_device: _get_device,
    torch.isfinite: _is_finite,
    torch.Tensor.isfinite: _is_finite,
    torch.equal: _compared,
    torch.Tensor.equal: _compared,
    torch.allclose: _compared,
    torch.Tensor.allclose: _compared,
    torch.all: _all,
    torch.Tensor.all: _all,
    torch.device: _device,
    torch._C._nn._parse_to: _parse_to,
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch.Tensor.__format__: _format,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.type: converted,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.asarray: _from_data,
}


# ---- what is refused, and what is not known --------------------------------------------------------------------------


def refused(what: str, hint: str = "; backend=emulated runs it") -> Callable[..., Any]:
    """Return a function that refuses to run, in the name of `what`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedTrialError(f"{what} of the script cannot be simulated{hint}")

    return refuse


def refused_class(what: str, hint: str = "; backend=emulated runs it") -> type:
    """Return a class, as torch has one, that cannot be made."""
    return type("Refused", (), {"__init__": refused(what, hint)})


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


_MOST_PLACES = 4
_PROFILER = Path(__file__).parents[3]
_TORCH = Path(torch.__file__).parent


class UnknownReads:
    """The places at which the host read a placeholder, and other facts that make a record uncertain."""

    def __init__(self) -> None:
        self._places: dict[str, None] = {}
        self._facts: dict[str, None] = {}

    def note(self, fact: str) -> None:
        """Take note of something that the simulation assumes, as a phrase."""
        self._facts.setdefault(fact)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """While active, each read of a placeholder is noticed."""
        with noticed_placeholders(self._read):
            yield

    def phrases(self) -> tuple[str, ...]:
        """Return what a record has to say, one phrase per fact."""
        if not self._places:
            return tuple(self._facts)
        places = list(self._places)
        shown = ", ".join(places[:_MOST_PLACES])
        more = f" and {len(places) - _MOST_PLACES} more places" if len(places) > _MOST_PLACES else ""
        return (
            *self._facts,
            f"whether memory depends on values that the script reads from the card, which are not computed: {shown}"
            f"{more}",
        )

    def _read(self, dtype: torch.dtype) -> None:
        kind = "float" if dtype.is_floating_point else str(dtype).removeprefix("torch.")
        self._places.setdefault(f"{kind} at {_place()}")


def _place() -> str:
    """Return the innermost line that is neither of torch nor of this program, ``"train.py:41"``."""
    frame = inspect.currentframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if _PROFILER not in path.parents and _TORCH not in path.parents and path.is_absolute():
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"
