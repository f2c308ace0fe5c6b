"""Losses of two tensors, and operations that CUDA runs for more types than `meta` does.

Losses of two tensors: what CUDA keeps and takes for their mean or sum, where `meta` makes one number.

All was observed event by event in torch 2.13's CUDA build on an emulated driver.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import NO_SCRATCH, KernelScratch, Scratch, launches_of
from profiler.simulation.cuda.scratch.reduction_scratch import REDUCTION_SCRATCH, Taken

aten = torch.ops.aten

_NONE, _MEAN = 0, 1
"""No reduction, and the default."""

_PLACE_OF_REDUCTION = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.huber_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
    aten.binary_cross_entropy_with_logits.default: 4,
}
"""Place of the argument, by operation."""


def _reduces(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    place = _PLACE_OF_REDUCTION[operation]
    found = args[place] if len(args) > place else kwargs.get("reduction", _MEAN)
    return bool(found != _NONE)


def _each(args: tuple[Any, ...]) -> torch.Tensor:
    """Return a tensor like the losses of all elements."""
    tensor, target = args[:2]
    dtype = torch.result_type(tensor, target)
    if tensor.shape == target.shape:
        return torch.empty_like(tensor, dtype=dtype)
    return tensor.new_empty(torch.broadcast_shapes(tensor.shape, target.shape), dtype=dtype)


def _averaged(each: torch.Tensor, chip: Chip) -> Taken:
    return REDUCTION_SCRATCH[aten.mean.default]((each,), {}, chip)


def _in_storage_of_all(operation: Any) -> Callable[..., torch.Tensor]:
    """Return the operation with a result that was made for every element and shrunk to one number."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not _reduces(operation, args, kwargs):
            return operation(*args, **kwargs)
        return _each(args).contiguous().resize_(())

    return run


def _with_a_second_one(operation: Any) -> Scratch:
    """The losses of all elements, next to a result of the same size.

    Source: `TORCH_META_FUNC(mse_loss)` and `TORCH_IMPL_FUNC(mse_loss_out)` in `native/BinaryOps.cpp` and
    `native/Loss.cpp`: the result is allocated for all elements before it gets the shape of a scalar.
    """

    def scratch(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
        if not _reduces(operation, args, kwargs):
            return NO_SCRATCH
        each = _each(args)
        taken = _averaged(each, chip)
        return KernelScratch(held=(each.nbytes, *taken.held), launches=taken.launches)

    return scratch


def _with_the_reduced(operation: Any) -> Scratch:
    """The reduced number, which is copied into the result (`binary_cross_entropy_out_cuda`, `soft_margin_loss_out`)."""

    def scratch(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
        if not _reduces(operation, args, kwargs):
            return NO_SCRATCH
        each = _each(args)
        taken = _averaged(each, chip)
        return KernelScratch(held=(each.element_size(), *taken.held), launches=taken.launches)

    return scratch


def _huber(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
    """The losses of all elements, before the result (`huber_loss` in `native/Loss.cpp`)."""
    if not _reduces(aten.huber_loss.default, args, kwargs):
        return NO_SCRATCH
    each = _each(args)
    taken = _averaged(each, chip)
    return KernelScratch(before=(each.nbytes,), launches=launches_of(taken))


def _with_logits(args: tuple[Any, ...], kwargs: dict[str, Any], chip: Chip) -> KernelScratch:
    """The logarithm of the sigmoid, the losses of all elements, and what a weight of positives makes.

    Source: `binary_cross_entropy_with_logits` in `native/Loss.cpp`.
    """
    tensor, each = args[0], _each(args)
    positives = args[3] if len(args) > 3 else kwargs.get("pos_weight")
    weights = () if positives is None else ((positives.nbytes, each.nbytes),)
    if not _reduces(aten.binary_cross_entropy_with_logits.default, args, kwargs):
        return KernelScratch(before=(tensor.nbytes,), first=weights)
    return KernelScratch(
        before=(tensor.nbytes,),
        first=weights,
        until_the_end=(each.nbytes,),
        launches=launches_of(_averaged(each, chip)),
    )


def _logits_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return the loss; `meta` takes no weight of positives that is broadcast."""
    each = _each(args)
    return each.new_empty(()) if _reduces(aten.binary_cross_entropy_with_logits.default, args, kwargs) else each


def _soft_margin_backward(args: tuple[Any, ...], _: dict[str, Any], __: Chip) -> KernelScratch:
    """The negative target, its product with the input, and the exponential (`soft_margin_loss_backward_out`)."""
    tensor, target = args[1:3]
    size = _each((tensor, target)).nbytes
    return KernelScratch(before=(target.nbytes,), first=((size, size),))


def _backward(operation: Any) -> Callable[..., torch.Tensor]:
    """Return the operation with a gradient of the type of the input, which `meta` makes wider (`Loss.cpp`)."""

    def run(gradient: torch.Tensor, tensor: torch.Tensor, target: torch.Tensor, *rest: Any) -> torch.Tensor:
        shape = torch.broadcast_shapes(tensor.shape, target.shape)
        return tensor.new_empty(shape)

    return run


def _log_sigmoid(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result without a buffer for backward (`log_sigmoid_forward_cuda`, `native/cuda/Activation.cpp`)."""
    return torch.empty_like(tensor), tensor.new_empty(0)


LOSS_SCRATCH: Mapping[Any, Scratch] = {
    aten.mse_loss.default: _with_a_second_one(aten.mse_loss.default),
    aten.smooth_l1_loss.default: _with_a_second_one(aten.smooth_l1_loss.default),
    aten.huber_loss.default: _huber,
    aten.binary_cross_entropy.default: _with_the_reduced(aten.binary_cross_entropy.default),
    aten.soft_margin_loss.default: _with_the_reduced(aten.soft_margin_loss.default),
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.binary_cross_entropy_with_logits.default: _with_logits,
}
"""By operation."""

LOSSES: Mapping[Any, Callable[..., Any]] = {
    **{
        operation: _in_storage_of_all(operation)
        for operation in (
            aten.mse_loss.default,
            aten.smooth_l1_loss.default,
            aten.binary_cross_entropy.default,
            aten.soft_margin_loss.default,
        )
    },
    aten.mse_loss_backward.default: _backward(aten.mse_loss_backward.default),
    aten.smooth_l1_loss_backward.default: _backward(aten.smooth_l1_loss_backward.default),
    aten.binary_cross_entropy_with_logits.default: _logits_loss,
    aten.log_sigmoid_forward.default: _log_sigmoid,
}
"""Replacements by operation, for tensors on `meta` and outside of autograd."""


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
