"""Pinned memory of the host, to which a simulated GPU copies: shapes without values, which take no memory here."""

from typing import Any

import torch

_ATTRIBUTE = "_pinned"


class _Content:
    """What was copied to a pinned tensor."""

    value: torch.Tensor | None = None
    """The host value of the tensor of the card; None if it has none."""


def pinned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the host that stands for a contiguous one in pinned memory."""
    tensor = torch.empty((), dtype=dtype, device="cpu").expand(shape)
    setattr(tensor, _ATTRIBUTE, _Content())
    return tensor


def content_of(tensor: torch.Tensor) -> _Content | None:
    """Return the content of a pinned tensor; None for any other tensor."""
    content: _Content | None = getattr(tensor, _ATTRIBUTE, None)
    return content
