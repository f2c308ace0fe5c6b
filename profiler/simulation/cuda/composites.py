"""Operations that torch composes differently on CUDA, and memory that CUDA's libraries allocate.

Operations that torch composes of other operations on CUDA differently than on other devices.

torch does this before a dispatch mode sees them, so they are replaced where the simulation's autocast is registered.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.cards.card import cublas_workspace_bytes, cublaslt_workspace_bytes
from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category

aten = torch.ops.aten


def _half_to_float(whole: Any, kernel: Any) -> Callable[..., Any]:
    """Read float16 and write float32 in one kernel, as on CUDA; other devices, and bfloat16, need a copy first.

    Source: `softmax` and `log_softmax` in `aten/src/ATen/native/SoftMax.cpp`.
    """

    def run(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if tensor.is_meta and tensor.dtype is torch.float16 and dtype is torch.float32:
            return kernel(tensor, dim, True)
        return whole(tensor, dim, dtype)

    return run


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> Any:
    """Drop in one kernel that keeps a mask of one byte per element, as on CUDA; other devices keep the scaled noise.

    Source: `dropout` and `is_fused_kernel_acceptable` in `aten/src/ATen/native/Dropout.cpp`.
    """
    if tensor.is_meta and train and 0 < p < 1 and tensor.numel():
        return aten.native_dropout.default(tensor, p, train)[0]
    return aten.dropout.default(tensor, p, train)


class _FusedRmsNorm(torch.autograd.Function):
    """The kernel of an RMS norm: it keeps one value per row, in float32 or wider.

    Source: `_fused_rms_norm_cuda` and its backward in `aten/src/ATen/native/cuda/layer_norm_kernel.cu`. An input whose
    values are not in order is copied for the time of each pass.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: torch.Tensor | None, width: int) -> torch.Tensor:
        read = tensor.contiguous()
        result = torch.empty_like(read)
        kept = torch.promote_types(tensor.dtype, torch.float32)
        ctx.save_for_backward(tensor, weight, tensor.new_empty(tensor.numel() // max(1, width), dtype=kept))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tensor, weight, _ = ctx.saved_tensors
        needed = ctx.needs_input_grad
        read = (gradients[0].contiguous(), tensor.contiguous())
        of_tensor = torch.empty_like(read[1]) if needed[0] else None
        return of_tensor, torch.empty_like(weight) if needed[1] else None, None


def _rms_norm(
    tensor: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> Any:
    """Normalise in one kernel, as on CUDA; other devices compose it of nine operations.

    A weight of another type than the input is composed on CUDA too. Source: `rms_norm_symint` in
    `aten/src/ATen/native/layer_norm.cpp`.
    """
    if tensor.is_meta and not tensor.is_complex() and (weight is None or weight.dtype is tensor.dtype):
        return _FusedRmsNorm.apply(tensor, weight, math.prod(normalized_shape))
    return aten.rms_norm.default(tensor, normalized_shape, weight, eps)


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> Any:
    """Write ones into zeros, as on CUDA; `meta` compares with all classes (`native/Onehot.cpp`)."""
    if not tensor.is_meta or not tensor.numel():
        return aten.one_hot.default(tensor, num_classes)
    classes = int(tensor.max().item()) + 1 if num_classes == -1 else num_classes
    return tensor.new_zeros((*tensor.shape, classes)).scatter_(-1, tensor.unsqueeze(-1), 1)


COMPOSED_FOR_CUDA: Mapping[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "one_hot": _one_hot,
    "rms_norm": _rms_norm,
    "softmax.int": _half_to_float(aten.softmax.int, aten._softmax.default),
    "log_softmax.int": _half_to_float(aten.log_softmax.int, aten._log_softmax.default),
}
"""Replacements by the name of the operation, for `autocast_on_meta`."""

MASK_FIRST = (aten.native_dropout.default,)
"""Operations whose mask is their last result, and the first that CUDA allocates (`dropout_cuda`, `Dropout.cu`)."""


class CublasWorkspaces:
    """Workspaces of cuBLAS and cuBLASLt: each thread allocates its own at its first matrix product and keeps it.

    CUDA runs backward in a thread of its own, so there are two: that of the trainer and that of the autograd engine.
    """

    def __init__(self, trace: TraceBuilder, chip: Chip, others: Collection[Chip] = ()) -> None:
        self._trace = trace
        self._bytes = cublas_workspace_bytes(chip.compute_capability)
        self._bytes_by_chip = {other: cublas_workspace_bytes(other.compute_capability) for other in others}

    def product(self, *, with_bias: bool = False) -> None:
        """Record a matrix product of the running thread."""
        thread = "backward" if torch._C._current_graph_task_id() >= 0 else "forward"
        if with_bias and cublaslt_workspace_bytes():
            name = f"cuBLASLt workspace of the thread that runs {thread}"
            self._trace.keep(name, cublaslt_workspace_bytes(), Category.WORKSPACE)
        else:
            name = f"cuBLAS workspace of the thread that runs {thread}"
            self._trace.keep(name, self._bytes, Category.WORKSPACE, self._bytes_by_chip)
