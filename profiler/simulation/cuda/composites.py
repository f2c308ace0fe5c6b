"""Operations that torch composes of other operations on CUDA differently than on other devices.

torch does this before a dispatch mode sees them, so they are replaced where the simulation's autocast is registered.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

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


COMPOSED_FOR_CUDA: Mapping[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "softmax.int": _half_to_float(aten.softmax.int, aten._softmax.default),
    "log_softmax.int": _half_to_float(aten.log_softmax.int, aten._log_softmax.default),
}
"""Replacements by the name of the operation, for `autocast_on_meta`."""

MASK_FIRST = (aten.native_dropout.default,)
"""Operations whose mask is their last result, and the first that CUDA allocates (`dropout_cuda`, `Dropout.cu`)."""
