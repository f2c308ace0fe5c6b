"""Operations that CUDA runs for more types than `meta` does: what their result is there."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import NO_SCRATCH, KernelScratch, Scratch

aten = torch.ops.aten

_ALIGNED_BYTES = 16

_WITH_ONE_KERNEL = 9
_BYTES_PER_GROUP = 60
_BYTES_PER_MULTIPROCESSOR = 512


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


def _counts(values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Return the counts of `minlength` values; a larger value would make more, and none is known."""
    if not minlength:
        raise NotImplementedError("the number of counts depends on values, and the script states no minlength")
    dtype = torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float32)
    return values.new_empty(minlength, dtype=dtype)


def _grouped_product_scratch(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
    """Addresses and shapes of each expert's product, and CUTLASS's descriptions of tensors per multiprocessor.

    Only compute capability 9 is known: there bfloat16 runs in one kernel (`native/cuda/GroupMM.cu`), as on 10, whose
    workspace of up to 1 MB is left out.
    """
    a, b = args[:2]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if chip.compute_capability[0] != _WITH_ONE_KERNEL or not a.dtype is b.dtype is torch.bfloat16:
        return NO_SCRATCH
    groups = a.shape[0] if offsets is None else offsets.shape[0]
    return KernelScratch(launches=((groups * _BYTES_PER_GROUP, chip.multiprocessors * _BYTES_PER_MULTIPROCESSOR),))


def _counts_scratch(_: tuple[Any, ...], __: dict[str, Any], ___: Chip) -> KernelScratch:
    """The smallest and the largest value (`_bincount_cuda`)."""
    return KernelScratch(before=(8, 8))


WIDER_KERNELS: Mapping[Any, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_product,
    aten.bincount.default: _counts,
}
"""Replacements by operation, for tensors on `meta` and outside of autograd."""

WIDER_SCRATCH: Mapping[Any, Scratch] = {
    aten._grouped_mm.default: _grouped_product_scratch,
    aten.bincount.default: _counts_scratch,
}
"""By operation."""
