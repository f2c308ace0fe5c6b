"""Scratch that CUDA kernels allocate inside one ATen operation, in linear attention and in sorting.

Scratch that CUDA kernels allocate inside one ATen operation, which `meta` never shows: operation -> blocks.

Temporary storage of CUB's scans, selections and segmented sorts is left out: it is smaller than a few KiB, or does not
follow from shapes.

Scratch of linear attention in transformers' PyTorch implementation: convolutions by channel, systems, sums.

All was observed event by event in torch 2.13's CUDA build on an emulated driver.

Scratch of sorting and of the largest values, on CUDA.

All was observed event by event in torch 2.13's CUDA build on an emulated driver. Tables of CUB, which depend on the
chip, are left out: at most 5 % of a sort of long rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
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


_SHORT_ROW = 4096
_FEWEST_ROWS_OF_A_SEGMENTED_SORT = 128
_LONG_ROW = 1_000_000


def _sort(args: tuple[Any, ...], kwargs: dict[str, Any], _: Chip) -> KernelScratch:
    """Places, and CUB's second copy of values and places.

    Source: `sort_cuda_kernel`, `segmented_sort_pairs_by_full_sort` and its neighbours in `native/cuda/Sort.cpp` and
    `native/cuda/SortStable.cu`.
    """
    tensor = args[0]
    dimension = int(args[1] if len(args) > 1 else kwargs.get("dim", -1))
    if tensor.dim() == 0 or tensor.numel() == 0:
        return NO_SCRATCH
    row, values = tensor.shape[dimension], tensor.numel() * tensor.element_size()
    if row <= _SHORT_ROW:
        return KernelScratch(launches=((row * _INDEX_BYTES,),))
    listed = tensor.numel() * _INDEX_BYTES
    copies = () if tensor.stride(dimension) == 1 else (values, values, listed)
    rows = tensor.numel() // row
    if rows == 1 or row >= _LONG_ROW:
        one = row * (tensor.element_size() + _INDEX_BYTES)
        return KernelScratch(held=(*copies, row * _INDEX_BYTES), launches=((one,),) * rows)
    if rows < _FEWEST_ROWS_OF_A_SEGMENTED_SORT:
        return KernelScratch(held=(*copies, listed, listed), launches=((values, values + listed),))
    return KernelScratch(held=(*copies, listed), launches=((values + listed,),))


_LONG_ENOUGH = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800),
)  # fmt: skip
"""(most rows, shortest row) for which several blocks of threads share a row; more rows need `_SHORTEST`."""
_SHORTEST = 400

_THREADS = 256
_DIGITS = 256
_REGISTERS = 65_536
_REGISTERS_PER_THREAD = 40
_FEWEST_VALUES, _MOST_VALUES = 4, 64


def _largest(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
    """The buffers of several blocks that share a row: per row, per digit, and per block.

    Source: `should_use_multiblock`, `get_items_per_thread` and `launch` of `mbtopk` in `native/cuda/TensorTopK.cu`.
    """
    tensor = args[0]
    dimension = int(args[2] if len(args) > 2 else kwargs.get("dim", -1))
    if tensor.dim() == 0 or tensor.numel() == 0:
        return NO_SCRATCH
    row = tensor.shape[dimension]
    rows = tensor.numel() // row
    if row < next((shortest for most, shortest in _LONG_ENOUGH if rows <= most), _SHORTEST):
        return NO_SCRATCH
    at_once = chip.multiprocessors * (_REGISTERS // (_REGISTERS_PER_THREAD * _THREADS)) * _THREADS
    per_thread = max(_FEWEST_VALUES, min(-(-tensor.numel() // at_once), _MOST_VALUES))
    blocks = rows * -(-row // (per_thread * _THREADS))
    of_rows = (rows * tensor.element_size(), rows * _INDEX_BYTES, rows * _INDEX_BYTES)
    return KernelScratch(held=(*of_rows, blocks * _DIGITS * 2, rows * _DIGITS * 4, blocks * 4, blocks * 4))


SORTING_SCRATCH: Mapping[Any, Scratch] = {
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.topk.default: _largest,
}
"""By operation."""


# ---- rollouts --------------------------------------------------------------------------------------------------------

_OF_ALL_VALUES = frozenset((aten.sum.default, aten.max.default, aten.min.default, aten.any.default, aten.all.default))
"""Reductions that decoding may apply to a mask of all its tokens."""

_COLUMNS_LOOKED_AHEAD = 1 << 16


def more_columns_alike(operation: Any, args: tuple[Any, ...], chip: Chip) -> int | None:
    """Return by how many columns a mask may grow until its reduction takes other blocks; None as far as it looks.

    A decoding step adds one column, so the blocks of this many steps are equal. ASSUMED: between two lengths with the
    same blocks there are no others, as more values never take less.
    """
    if operation not in _OF_ALL_VALUES or args[0].dim() < 2:
        return None
    *rows, columns = args[0].shape

    def takes(more: int) -> Launches:
        grown = torch.empty((*rows, columns + more), dtype=args[0].dtype, device="meta")
        # A copy that the kernel reads grows evenly, as other blocks do.
        return REDUCTION_SCRATCH[operation]((grown,), {}, chip).launches

    now = takes(0)
    if takes(_COLUMNS_LOOKED_AHEAD) == now:
        return None
    return bisect_left(range(1, _COLUMNS_LOOKED_AHEAD), True, key=lambda more: takes(more) != now)
