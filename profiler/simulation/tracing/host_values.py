"""Values of tensors on the simulated GPU, where they are available, and pinned memory of the host.

Host values: the values of tensors on the simulated GPU, where they are available.

Ids, masks, lengths and rewards are created on the host. Their values are kept with the `meta` tensor, so that all that
depends on them (which positions are scored, whether a mask is all ones) is the same as on a GPU.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ATTRIBUTE = "_host_value"
_MOST_ELEMENTS = 1 << 20
"""Larger tensors have no host value: they are masks of positions by positions, on which nothing depends."""

_MOST_TOKENS = 1 << 24
"""As many ids of rows and their masks have one: without them the host would not see that a rollout ends."""

PLACEHOLDER_FLOAT = 1.0
"""Placeholder for a floating-point number without a host value."""


def host_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the host value of a tensor of the simulated GPU; None if it has none."""
    value: torch.Tensor | None = getattr(tensor, _ATTRIBUTE, None)
    if value is not None and getattr(value.untyped_storage(), "_overwritten", False):
        return None
    return value


def are_kept(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether tensors that an operation makes are small enough for host values."""
    count, most = 0, _MOST_TOKENS
    for tensor in tensors:
        count += tensor.numel()
        if tensor.dim() > 2 or tensor.is_floating_point():
            most = _MOST_ELEMENTS
    return count <= most


def set_host_value(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Keep `value` as the host value of `tensor`, unless it is large."""
    if are_kept([value]):
        setattr(tensor, _ATTRIBUTE, value)


def forget(tensor: torch.Tensor) -> None:
    """Drop the host value of `tensor` and of all its views: it is overwritten with unknown values."""
    value = getattr(tensor, _ATTRIBUTE, None)
    if value is not None:
        value.untyped_storage()._overwritten = True
        delattr(tensor, _ATTRIBUTE)


_listeners: list[Callable[[torch.dtype], None]] = []


@contextmanager
def noticed_placeholders(listener: Callable[[torch.dtype], None]) -> Iterator[None]:
    """While active, `listener` is called with the data type of each placeholder that the host reads."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def placeholder(dtype: torch.dtype) -> Any:
    """Return the placeholder for a number of `dtype`: False, 0 or `PLACEHOLDER_FLOAT`.

    The host reads losses and norms, to log them and to check that they are finite.
    """
    for listener in _listeners:
        listener(dtype)
    if dtype is torch.bool:
        return False
    return PLACEHOLDER_FLOAT if dtype.is_floating_point else 0


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU: of the host value, or filled with the placeholder."""
    value = host_value(tensor)
    if value is not None:
        return value.clone()
    return torch.full(tensor.shape, placeholder(tensor.dtype), dtype=tensor.dtype, device="cpu")


_PINNED = "_pinned"


class _Content:
    """What was copied to a pinned tensor."""

    value: torch.Tensor | None = None
    """The host value of the tensor of the card; None if it has none."""


def pinned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the host that stands for a contiguous one in pinned memory."""
    tensor = torch.empty((), dtype=dtype, device="cpu").expand(shape)
    setattr(tensor, _PINNED, _Content())
    return tensor


def content_of(tensor: torch.Tensor) -> _Content | None:
    """Return the content of a pinned tensor; None for any other tensor."""
    content: _Content | None = getattr(tensor, _PINNED, None)
    return content
