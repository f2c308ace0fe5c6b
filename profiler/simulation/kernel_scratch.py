"""What CUDA kernels take inside one ATen operation, which `meta` never shows: operation -> blocks, all at once.

Listed is what can be worth a KiB in a training step. Left out, because it is smaller or not known from shapes: staging
buffers of split reductions (`Reduce.cuh`), temporary storage of CUB's scans and selections, segmented sorts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

Scratch = Callable[[tuple[Any, ...], Any], tuple[int, ...]]
"""Arguments and result of an operation -> bytes of each block that its kernels take and give back."""

_INDEX_BYTES = 8
_FLOAT32_BYTES = 4
_EMBEDDING_WITHOUT_SORT = 3072
_CHUNK = 65_536


def _embedding_backward(args: tuple[Any, ...], _: Any) -> tuple[int, ...]:
    """Above 3,072 indices: a float32 row for each index, and six lists of indices.

    The indices sorted and the order they had; of the runs of equal ones the beginnings, the parts of ten rows in each,
    their running sum and their beginnings. Source: `embedding_dense_backward_cuda` (`native/cuda/Embedding.cu`) and
    `embedding_backward_cuda_kernel` (`native/cuda/EmbeddingBackwardKernel.cu`, `grad_weight_per_segment`). The sort's
    own buffers are given back before and are smaller.
    """
    gradient, indices = args[:2]
    count = indices.numel()
    if count <= _EMBEDDING_WITHOUT_SORT:
        return ()
    return (*(6 * (count * _INDEX_BYTES,)), count * gradient.shape[-1] * _FLOAT32_BYTES)


def _accumulating_index_put(args: tuple[Any, ...], _: Any) -> tuple[int, ...]:
    """The indices made linear, sorted, the order they had, and 0, 1, 2 ...; and the sort's second copy of both.

    Source: `index_put_with_sort_kernel` in `native/cuda/Indexing.cu`. ASSUMED: CUB's radix sort of pairs takes as much
    as it sorts (`DoubleBuffer` is not used there), nothing beside it.
    """
    accumulate = len(args) > 3 and bool(args[3])
    count = max((index.numel() for index in args[1] if index is not None), default=0)
    if not accumulate:
        return ()
    return (*(4 * (count * _INDEX_BYTES,)), 2 * count * _INDEX_BYTES)


def _foreach_norm(args: tuple[Any, ...], _: Any) -> tuple[int, ...]:
    """A float32 for each chunk of 65,536 values, every tensor given as many as the largest has.

    Source: `foreach_tensor_norm_cuda` in `native/cuda/ForeachReduceOp.cu` (`output_per_tensor`) and `kChunkSize` in
    `native/cuda/MultiTensorApply.cuh`. It is gradient clipping's, between backward and the optimizer's step.
    """
    tensors = args[0]
    chunks = max(-(-tensor.numel() // _CHUNK) for tensor in tensors)
    return (len(tensors) * chunks * _FLOAT32_BYTES,)


KERNEL_SCRATCH: Mapping[Any, Scratch] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_put.default: _accumulating_index_put,
    aten.index_put_.default: _accumulating_index_put,
    aten._index_put_impl_.default: _accumulating_index_put,
    aten._foreach_norm.Scalar: _foreach_norm,
}
"""By operation."""
