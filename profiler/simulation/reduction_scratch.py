"""What ATen's reductions take on CUDA: each operation as one or several launches of `reductions.py`.

What a thread keeps follows from the kernels in `aten/src/ATen/native/cuda/Reduce*Kernel.cu`: a float32 for sums, means
and norms of floating-point values, the type of the result for whole numbers, a pair with an index for `argmax` and
`max` along a dimension, four fields for the variance (`WelfordData`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from profiler.domain.gpu import Chip
from profiler.simulation.recorder import Launches
from profiler.simulation.reductions import Reduction, accumulator_bytes, reduction, scratch_bytes

aten = torch.ops.aten

_FLOAT32_BYTES = 4
_INDEX_BYTES = 8
_PAIR_BYTES = 16
_WELFORD_BYTES = 16
_HALF = (torch.float16, torch.bfloat16)

Rule = Callable[[torch.dtype, torch.dtype], "tuple[int, int, bool]"]
"""Types of input and result -> bytes of a part and of an output, and whether parts can be kept in the output."""


def _of_sum(value: torch.dtype, result: torch.dtype) -> tuple[int, int, bool]:
    part = result.itemsize if not result.is_floating_point else max(_FLOAT32_BYTES, result.itemsize)
    return part, result.itemsize, not (value is result and result in _HALF)


def _of_extreme(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return value.itemsize, value.itemsize, value not in _HALF


def _of_truth(_: torch.dtype, __: torch.dtype) -> tuple[int, int, bool]:
    return 1, 1, True


def _of_place(_: torch.dtype, __: torch.dtype) -> tuple[int, int, bool]:
    return _PAIR_BYTES, _INDEX_BYTES, False


def _of_extreme_with_place(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return _PAIR_BYTES, value.itemsize, False


def _of_variance(value: torch.dtype, _: torch.dtype) -> tuple[int, int, bool]:
    return _WELFORD_BYTES, value.itemsize, False


def _launches(asked: Reduction, chip: Chip, *, held: int = 0) -> Launches:
    """`held`: bytes that the operation holds while all launches run, such as a converted copy of its input."""
    kept = (held, accumulator_bytes(asked))
    return tuple((*kept, *pair) for pair in scratch_bytes(asked, chip))


def _reduce(
    rule: Rule,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: Chip,
    *,
    dimensions_at: int | None = 1,
    result_type: Callable[[torch.dtype], torch.dtype] = lambda value: value,
) -> Launches:
    """The launches of one reduction.

    A value of another type than the result is converted first, but for 16-bit values summed to float32, which the
    kernel reads as they are (`make_reduction`, `native/ReduceOpsUtils.h`).
    """
    tensor: torch.Tensor = args[0]
    if tensor.numel() == 0:
        return ()
    result = kwargs.get("dtype") or result_type(tensor.dtype)
    converts = (
        rule is _of_sum and result is not tensor.dtype and not (tensor.dtype in _HALF and result is torch.float32)
    )
    value = result if converts else tensor.dtype
    part, output, in_output = rule(value, result)
    asked = reduction(
        tensor.shape,
        tensor.stride(),
        _reduced(tensor, _dimensions(args, kwargs, dimensions_at)),
        value_bytes=value.itemsize,
        part_bytes=part,
        output_bytes=output,
        keeps_parts_in_output=in_output,
        offset=0 if converts else int(tensor.storage_offset()),
    )
    return _launches(asked, chip, held=tensor.numel() * result.itemsize if converts else 0)


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


_sum = partial(_reduce, _of_sum, result_type=_sum_type)
_mean = partial(_reduce, _of_sum)
_extreme = partial(_reduce, _of_extreme)
_truth = partial(_reduce, _of_truth)

REDUCTION_SCRATCH: Mapping[Any, Callable[[tuple[Any, ...], dict[str, Any], Chip], Launches]] = {
    aten.sum.default: partial(_sum, dimensions_at=None),
    aten.sum.dim_IntList: _sum,
    aten.mean.default: partial(_mean, dimensions_at=None),
    aten.mean.dim: _mean,
    aten.prod.default: partial(_sum, dimensions_at=None),
    aten.prod.dim_int: _sum,
    aten.linalg_vector_norm.default: partial(_mean, dimensions_at=2),
    aten.norm.ScalarOpt_dim: partial(_mean, dimensions_at=2),
    aten.norm.Scalar: partial(_mean, dimensions_at=None),
    aten.amax.default: _extreme,
    aten.amin.default: _extreme,
    aten.max.default: partial(_extreme, dimensions_at=None),
    aten.min.default: partial(_extreme, dimensions_at=None),
    aten.max.dim: partial(_reduce, _of_extreme_with_place),
    aten.min.dim: partial(_reduce, _of_extreme_with_place),
    aten.argmax.default: partial(_reduce, _of_place),
    aten.argmin.default: partial(_reduce, _of_place),
    aten.any.default: partial(_truth, dimensions_at=None),
    aten.any.dim: _truth,
    aten.any.dims: _truth,
    aten.all.default: partial(_truth, dimensions_at=None),
    aten.all.dim: _truth,
    aten.all.dims: _truth,
    aten.var.correction: partial(_reduce, _of_variance),
    aten.std.correction: partial(_reduce, _of_variance),
    aten.var_mean.correction: partial(_reduce, _of_variance),
    aten.std_mean.correction: partial(_reduce, _of_variance),
}
"""By operation."""
