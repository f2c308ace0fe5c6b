"""`torch.cuda.FloatTensor` and its kind: names of a type of tensor on the card, from before `dtype` and `device`."""

from collections.abc import Mapping
from typing import Any

import torch

from profiler.seams.patching import Patch
from profiler.simulation.script.torch_cuda.refused import refused_class

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
