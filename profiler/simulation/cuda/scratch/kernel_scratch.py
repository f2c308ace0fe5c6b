"""Scratch that CUDA kernels allocate inside one ATen operation, which `meta` never shows: operation -> blocks.

Temporary storage of CUB's scans, selections and segmented sorts is left out: it is smaller than a few KiB, or does not
follow from shapes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.reduction_scratch import REDUCTION_SCRATCH, Taken, outputs_of
from profiler.simulation.tracing.recorder import Launches

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class KernelScratch:
    """Scratch of one operation, in bytes."""

    before: tuple[int, ...] = ()
    """Blocks that are allocated before the result and freed at the end."""
    first: Launches = ()
    """Blocks of each launch after these, before the result."""
    until_the_end: tuple[int, ...] = ()
    """Blocks that are allocated after these launches and freed before those of `before`."""
    inputs: tuple[int, ...] = ()
    """Blocks that are allocated after these launches and freed right after the result."""
    held: tuple[int, ...] = ()
    """Blocks that are allocated after the result and freed after all further launches."""
    launches: Launches = ()
    """Blocks of each launch after the result."""


NO_SCRATCH = KernelScratch()

Scratch = Callable[[tuple[Any, ...], dict[str, Any], Chip], KernelScratch]
"""Arguments of an operation, and the chip -> its scratch."""

_INDEX_BYTES = 8
_FLOAT32_BYTES = 4
_EMBEDDING_WITHOUT_SORT = 3072
_ROWS_PER_SEGMENT = 10
_CHUNK = 65_536


def _embedding_backward(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """Above 3,072 indices: sorted indices, the segments of equal ones, and a float32 row per part of a segment.

    Segments are split into parts of ten rows. Their number is known on the card only, so the blocks have the largest
    possible size: a tenth of the indices, and one per index or per row of the weight. Observed event by event in torch
    2.13's CUDA build on an emulated driver.

    Source: `embedding_dense_backward_cuda` (`native/cuda/Embedding.cu`) and `embedding_backward_cuda_kernel`
    (`native/cuda/EmbeddingBackwardKernel.cu`, `max_partial_segment`, `grad_weight_per_segment`).
    """
    gradient, indices, weights = args[:3]
    count = indices.numel()
    if count <= _EMBEDDING_WITHOUT_SORT:
        return NO_SCRATCH
    listed = count * _INDEX_BYTES
    segments = min(count, int(weights))
    parts = count // _ROWS_PER_SEGMENT + segments
    found = (listed, _INDEX_BYTES)
    starts = (segments * _INDEX_BYTES, segments * _INDEX_BYTES, _INDEX_BYTES)
    rows = (parts * _INDEX_BYTES, parts * int(gradient.shape[-1]) * _FLOAT32_BYTES)
    return KernelScratch(
        before=(listed, listed),
        first=((listed, _of_sorted_pairs(count)),),
        held=found,
        launches=((listed,), (*starts, *rows)),
    )


def _of_sorted_pairs(count: int) -> int:
    """Return the scratch of CUB's radix sort of indices and their places: a second copy of both.

    Tables of at most 75 KB, which depend on the chip, are left out.
    """
    return 2 * count * _INDEX_BYTES


def _accumulating_index_put(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """The linear indices, the sorted ones, their original order, and 0, 1, 2 ...; and the scratch of the sort.

    Source: `index_put_with_sort_kernel` in `native/cuda/Indexing.cu`.
    """
    accumulate = len(args) > 3 and bool(args[3])
    count = max((index.numel() for index in args[1] if index is not None), default=0)
    if not accumulate:
        return NO_SCRATCH
    return KernelScratch(launches=((*(4 * (count * _INDEX_BYTES,)), _of_sorted_pairs(count)),))


def _foreach_norm(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """A float32 per chunk of 65,536 values, for every tensor as many as for the largest one.

    Source: `foreach_tensor_norm_cuda` in `native/cuda/ForeachReduceOp.cu` (`output_per_tensor`) and `kChunkSize` in
    `native/cuda/MultiTensorApply.cuh`. Gradient clipping uses it, between backward and the optimizer's step.
    """
    tensors = args[0]
    chunks = max(-(-tensor.numel() // _CHUNK) for tensor in tensors)
    return KernelScratch(before=(len(tensors) * chunks * _FLOAT32_BYTES,))


def _softmax_backward(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """The product of gradient and output, after the result (`softmax_backward_cuda_out`, `SoftMax.cu`)."""
    gradient, output = args[:2]
    product = torch.promote_types(gradient.dtype, output.dtype)
    return KernelScratch(launches=((output.numel() * product.itemsize,),))


def _safe_softmax(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """A mask of the scores that are minus infinity, a mask of the rows with nothing else, and a zero for these.

    Source: `_safe_softmax` in `aten/src/ATen/native/transformers/attention.cpp`.
    """
    scores, dimension = args[0], int(args[1])
    rows = scores.numel() // scores.shape[dimension]
    return KernelScratch(launches=((scores.numel(), rows, scores.element_size()),))


def _logsumexp(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
    """The largest value of each row, its absolute value, whether that is infinite, and the exponentials of all values.

    Source: `logsumexp_out_impl` in `aten/src/ATen/native/ReduceOps.cpp`, which calls other operations.
    """
    values, dimensions = args[0], args[1]
    if not values.numel():
        return NO_SCRATCH
    rows = outputs_of(values, dimensions)
    extremes, sums = (REDUCTION_SCRATCH[each](args, kwargs, chip) for each in (aten.amax.default, aten.sum.dim_IntList))
    return KernelScratch(
        before=(rows * values.element_size(),),
        first=(*launches_of(extremes), (rows * values.element_size(), rows)),
        inputs=(values.numel() * values.element_size(),),
        launches=launches_of(sums),
    )


def launches_of(taken: Taken) -> Launches:
    """Return a reduction within another operation as launches, each with what is in use during all of them."""
    return tuple((*taken.held, *launch) for launch in taken.launches or ((),))


def _of_reduction(takes: Callable[[tuple[Any, ...], dict[str, Any], Chip], Taken]) -> Scratch:
    def scratch(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
        taken = takes(args, kwargs, chip)
        return KernelScratch(held=taken.held, launches=taken.launches)

    return scratch


KERNEL_SCRATCH: Mapping[Any, Scratch] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_put.default: _accumulating_index_put,
    aten.index_put_.default: _accumulating_index_put,
    aten._index_put_impl_.default: _accumulating_index_put,
    aten._foreach_norm.Scalar: _foreach_norm,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten.logsumexp.default: _logsumexp,
    **{operation: _of_reduction(takes) for operation, takes in REDUCTION_SCRATCH.items()},
}
"""By operation."""
