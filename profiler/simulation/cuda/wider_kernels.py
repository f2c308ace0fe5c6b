"""Operations that CUDA runs for more types than `meta` does: what their result is there."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

_ALIGNED_BYTES = 16


def _grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the result of a product per expert, with rows padded to 16 bytes.

    `meta` takes bfloat16 alone. CUDA computes float32 and float16 expert by expert into a result of the same layout:
    `_grouped_mm_cuda` and `_grouped_mm_fallback` in `aten/src/ATen/native/`, compared event by event with torch 2.13's
    CUDA build on an emulated H100.

    Args:
        a: Shape [rows, width], or [experts, rows, width].
        b: Shape [width, columns], or [experts, width, columns].
        offsets: Shape [experts]: where the rows of each expert end, if `a` or `b` has two dimensions.
        bias: None; torch has no other.
        dtype: Of the result; that of `a` by default.
    """
    if a.dtype is torch.bfloat16 and b.dtype is torch.bfloat16:
        return aten._grouped_mm.default(a, b, offsets, bias, dtype)
    rows, columns = a.shape[-2], b.shape[-1]
    found = dtype or a.dtype
    aligned = _ALIGNED_BYTES // found.itemsize
    padded = -(-columns // aligned) * aligned
    if a.dim() == b.dim():
        groups = a.shape[0] if offsets is None else offsets.shape[0]
        return a.new_empty_strided((groups, rows, columns), (rows * padded, padded, 1), dtype=found)
    return a.new_empty_strided((rows, columns), (padded, 1), dtype=found)


WIDER_KERNELS: Mapping[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_product}
"""Replacements by operation, for tensors on `meta` and outside of autograd."""
