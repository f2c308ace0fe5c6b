"""Scratch of linear attention in transformers' PyTorch implementation: convolutions by channel, systems, sums.

All was observed event by event in torch 2.13's CUDA build on an emulated driver.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import NO_SCRATCH, KernelScratch, Scratch

aten = torch.ops.aten

_POINTER_BYTES = 8
_LOOPED_SYSTEMS, _LOOPED_SIZE = 8, 64
"""At most so many systems, of at least this size, are solved one by one (`triangular_solve_kernel`)."""

_HALF = (torch.float16, torch.bfloat16)


def _convolution(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """A contiguous copy of the input of a convolution by channel, until its end.

    Source: `_convolution` in `native/Convolution.cpp` (`ConvBackend::CudaDepthwise2d`).
    """
    inputs, weight = args[:2]
    return _copies(weight, groups=int(args[8]), inputs=(inputs,))


def _convolution_backward(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """Contiguous copies of gradient and input (`conv_depthwise2d_backward_cuda`)."""
    gradient, inputs, weight = args[:3]
    return _copies(weight, groups=int(args[9]), inputs=(gradient, inputs))


def _copies(weight: torch.Tensor, *, groups: int, inputs: tuple[torch.Tensor, ...]) -> KernelScratch:
    by_channel = groups > 1 and weight.shape[1] == 1 and weight.shape[0] % groups == 0
    if not by_channel or weight.dim() > 4:
        return NO_SCRATCH
    return KernelScratch(before=tuple(each.nbytes for each in inputs if not each.is_contiguous()))


def _triangular_systems(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """Two lists of pointers to the matrices of a batch, after the result.

    Source: `triangular_solve_kernel` and `triangular_solve_batched_cublas` in
    `native/cuda/linalg/BatchLinearAlgebra.cpp`.
    """
    system, right = args[:2]
    batch = prod(torch.broadcast_shapes(system.shape[:-2], right.shape[:-2]))
    if batch <= 1 or (batch <= _LOOPED_SYSTEMS and system.shape[-1] >= _LOOPED_SIZE):
        return NO_SCRATCH
    return KernelScratch(launches=((batch * _POINTER_BYTES, batch * _POINTER_BYTES),))


def _cumulative_sum(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """A contiguous copy of the values, after the result (`scan_dim` in `native/cuda/ScanUtils.cuh`)."""
    values = args[0]
    if values.is_contiguous() or values.dtype is torch.bool:
        return NO_SCRATCH
    return KernelScratch(launches=((values.nbytes,),))


LINEAR_ATTENTION_SCRATCH: Mapping[Any, Scratch] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.linalg_solve_triangular.default: _triangular_systems,
    aten.cumsum.default: _cumulative_sum,
}
"""By operation."""

WEIGHT_FIRST = (aten.convolution_backward.default,)
"""The gradient of the weight is made before that of the input (`conv_depthwise2d_backward_cuda`)."""
