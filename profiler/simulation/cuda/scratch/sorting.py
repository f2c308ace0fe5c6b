"""Scratch of sorting and of the largest values, on CUDA.

All was observed event by event in torch 2.13's CUDA build on an emulated driver. Tables of CUB, which depend on the
chip, are left out: at most 5 % of a sort of long rows.
"""

from collections.abc import Mapping
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import NO_SCRATCH, KernelScratch, Scratch

aten = torch.ops.aten

_INDEX_BYTES = 8
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
