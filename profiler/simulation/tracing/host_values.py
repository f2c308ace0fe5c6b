"""Values of tensors on the simulated GPU, where they are known.

Ids, masks, lengths and rewards are born on the host. Their values travel beside the valueless tensor, so that what
depends on them (which positions are scored, whether a mask is all ones) comes out as it would on a GPU.
"""

from typing import Any

import torch

_ATTRIBUTE = "_known_value"
MOST_ELEMENTS = 1 << 20
"""Values of larger tensors are not kept: they are masks of positions by positions, on which nothing depends."""

STATED_FLOAT = 1.0
"""What an unknown floating-point number is said to be when the host asks."""


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor of the simulated GPU, on the CPU; None where it is not known."""
    value: torch.Tensor | None = getattr(tensor, _ATTRIBUTE, None)
    if value is not None and getattr(value.untyped_storage(), "_overwritten", False):
        return None
    return value


def set_known(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Keep `value` as the value of `tensor`, unless it is large."""
    if value.numel() <= MOST_ELEMENTS:
        setattr(tensor, _ATTRIBUTE, value)


def forget(tensor: torch.Tensor) -> None:
    """`tensor` is overwritten with something unknown: forget its value and that of every view of it."""
    value = getattr(tensor, _ATTRIBUTE, None)
    if value is not None:
        value.untyped_storage()._overwritten = True
        delattr(tensor, _ATTRIBUTE)


def stated(dtype: torch.dtype) -> Any:
    """What an unknown number of `dtype` is said to be when the host asks: False, 0 or `STATED_FLOAT`.

    The host asks for losses and norms, to log them and to see whether they are finite.
    """
    if dtype is torch.bool:
        return False
    return STATED_FLOAT if dtype.is_floating_point else 0


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU, of the known value or of a stated one."""
    value = known(tensor)
    if value is not None:
        return value.clone()
    return torch.full(tensor.shape, stated(tensor.dtype), dtype=tensor.dtype, device="cpu")
