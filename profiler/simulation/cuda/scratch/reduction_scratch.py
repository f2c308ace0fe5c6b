"""Scratch of ATen's reductions on CUDA: each operation as one or several launches of `reductions.py`.

The type of a thread's part follows from the kernels in `aten/src/ATen/native/cuda/Reduce*Kernel.cu`: a float32 for
sums, means and norms of floating-point values, the type of the result for integers, a pair with an index for `argmax`
and `max` along a dimension, four fields for the variance (`WelfordData`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.reductions import accumulator_bytes, reduction, scratch_bytes
from profiler.simulation.tracing.recorder import Launches

aten = torch.ops.aten

_FLOAT32_BYTES = 4
_INDEX_BYTES = 8
_PAIR_BYTES = 16
_WELFORD_BYTES = 16
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Scratch of a reduction after its result, in bytes."""

    held: tuple[int, ...] = ()
    """Blocks that are in use during all launches."""
    launches: Launches = ()
    """Blocks of each launch."""


Rule = Callable[[torch.dtype, torch.dtype], "tuple[int, int, bool]"]
"""Types of input and result -> bytes of a part and of an output, and whether the output can hold parts."""


def _of_sum(value: torch.dtype, result: torch.dtype) -> tuple[int, int, bool]:
    part = result.itemsize if not result.is_floating_point else max(_FLOAT32_BYTES, result.itemsize)
    return part, result.itemsize, not (value is result and result in _HALF)


def _of_extreme(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return value.itemsize, value.itemsize, True


def _of_any(_: torch.dtype, __: torch.dtype) -> tuple[int, int, bool]:
    return 1, 1, True


def _of_place(_: torch.dtype, __: torch.dtype) -> tuple[int, int, bool]:
    return _PAIR_BYTES, _INDEX_BYTES, False


def _of_extreme_with_place(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return _PAIR_BYTES, value.itemsize, False


def _of_variance(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return _WELFORD_BYTES, value.itemsize, False


def _as_it_is(tensor: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    return tensor


def _contiguous(tensor: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """`max` and `min` of a whole tensor (`aten/src/ATen/native/ReduceAllOps.cpp`)."""
    return tensor.contiguous()


def _flat(tensor: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """`argmax` and `argmin` of a whole tensor (`argmax_argmin_impl` in `aten/src/ATen/native/ReduceOps.cpp`)."""
    return tensor.reshape(-1)


def _of_the_result(tensor: torch.Tensor, result: torch.dtype) -> torch.Tensor:
    """Sums: 16-bit values are read as they are for a float32 (`make_reduction` in `native/ReduceOpsUtils.h`)."""
    return tensor if tensor.dtype in _HALF and result is torch.float32 else tensor.to(result)


def _reduce(
    rule: Rule,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: Chip,
    *,
    dimensions_at: int | None = 1,
    result_type: Callable[[torch.dtype], torch.dtype] = lambda value: value,
    reads: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = _as_it_is,
) -> Taken:
    """Return what one reduction takes.

    Args:
        rule: What a thread keeps.
        args: Of the operation.
        kwargs: Of the operation.
        chip: The chip.
        dimensions_at: Where the reduced dimensions are among `args`; None if all are reduced.
        result_type: The type of the result, of the type of the values.
        reads: What the kernel reads, of the values and the type of the result: a copy is held while all launches run.
    """
    tensor: torch.Tensor = args[0]
    if tensor.numel() == 0:
        return Taken()
    result = kwargs.get("dtype") or result_type(tensor.dtype)
    dimensions = _reduced(tensor, _dimensions(args, kwargs, dimensions_at))
    read = reads(tensor, result)
    if read.dim() != tensor.dim():
        dimensions = range(read.dim())
    part, output, in_output = rule(read.dtype, result)
    asked = reduction(
        read.shape,
        read.stride(),
        dimensions,
        value_bytes=read.itemsize,
        part_bytes=part,
        output_bytes=output,
        keeps_parts_in_output=in_output,
        offset=int(read.storage_offset()),
    )
    is_copy = read.untyped_storage()._cdata != tensor.untyped_storage()._cdata
    held = (read.untyped_storage().nbytes() if is_copy else 0, accumulator_bytes(asked))
    return Taken(held=held, launches=scratch_bytes(asked, chip))


def outputs_of(tensor: torch.Tensor, dimensions: Any) -> int:
    """Return the number of values that a reduction of `tensor` over `dimensions` leaves."""
    return tensor.numel() // math.prod(tensor.shape[dimension] for dimension in _reduced(tensor, dimensions))


def _dimensions(args: tuple[Any, ...], kwargs: dict[str, Any], at: int | None) -> Any:
    if at is None:
        return None
    return args[at] if len(args) > at else kwargs.get("dim")


def _reduced(tensor: torch.Tensor, dimensions: Any) -> Sequence[int]:
    if dimensions is None or dimensions == []:
        return range(tensor.dim())
    wanted = [dimensions] if isinstance(dimensions, int) else dimensions
    return [dimension % max(1, tensor.dim()) for dimension in wanted]


def _sum_type(value: torch.dtype) -> torch.dtype:
    return value if value.is_floating_point else torch.int64


_sum = partial(_reduce, _of_sum, result_type=_sum_type, reads=_of_the_result)
_mean = partial(_reduce, _of_sum, reads=_of_the_result)
_extreme = partial(_reduce, _of_extreme)
_place = partial(_reduce, _of_place)
_any = partial(_reduce, _of_any)


def _of_norm(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> Taken:
    """Scratch of a norm; over dimensions of size 1 it is the absolute value, after a cast (`linalg_vector_norm`)."""
    tensor, dtype = args[0], kwargs.get("dtype")
    if any(tensor.shape[dimension] != 1 for dimension in _reduced(tensor, _dimensions(args, kwargs, 2))):
        return _mean(args, kwargs, chip, dimensions_at=2)
    if dtype is None or dtype is tensor.dtype:
        return Taken()
    return Taken(held=(tensor.numel() * dtype.itemsize,))


def _of_places(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> Taken:
    """Scratch of `argmax`, which reduces a flat tensor if it has no dimension."""
    whole = _dimensions(args, kwargs, 1) is None
    return _place(args, kwargs, chip, reads=_flat if whole else _as_it_is)


REDUCTION_SCRATCH: Mapping[Any, Callable[[tuple[Any, ...], dict[str, Any], Chip], Taken]] = {
    aten.sum.default: partial(_sum, dimensions_at=None),
    aten.sum.dim_IntList: _sum,
    aten.mean.default: partial(_mean, dimensions_at=None),
    aten.mean.dim: _mean,
    aten.prod.default: partial(_sum, dimensions_at=None),
    aten.prod.dim_int: _sum,
    aten.linalg_vector_norm.default: _of_norm,
    aten.norm.ScalarOpt_dim: partial(_mean, dimensions_at=2),
    aten.norm.Scalar: partial(_mean, dimensions_at=None),
    aten.amax.default: _extreme,
    aten.amin.default: _extreme,
    aten.max.default: partial(_extreme, dimensions_at=None, reads=_contiguous),
    aten.min.default: partial(_extreme, dimensions_at=None, reads=_contiguous),
    aten.max.dim: partial(_reduce, _of_extreme_with_place),
    aten.min.dim: partial(_reduce, _of_extreme_with_place),
    aten.argmax.default: _of_places,
    aten.argmin.default: _of_places,
    aten.any.default: partial(_any, dimensions_at=None),
    aten.any.dim: _any,
    aten.any.dims: _any,
    aten.all.default: partial(_any, dimensions_at=None),
    aten.all.dim: _any,
    aten.all.dims: _any,
    aten.var.correction: partial(_reduce, _of_variance),
    aten.std.correction: partial(_reduce, _of_variance),
    aten.var_mean.correction: partial(_reduce, _of_variance),
    aten.std_mean.correction: partial(_reduce, _of_variance),
}
"""By operation."""
