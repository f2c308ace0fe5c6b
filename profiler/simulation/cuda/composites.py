"""Operations that torch puts together from others in one way on CUDA and in another elsewhere.

torch does so before a dispatch mode sees them, so these stand where the simulation's autocast does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten


def _half_to_float(whole: Any, kernel: Any) -> Callable[..., Any]:
    """On CUDA the kernel reads float16 and writes float32; elsewhere, and for bfloat16, a copy is made first.

    Source: `softmax` and `log_softmax` in `aten/src/ATen/native/SoftMax.cpp`.
    """

    def run(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if tensor.is_meta and tensor.dtype is torch.float16 and dtype is torch.float32:
            return kernel(tensor, dim, True)
        return whole(tensor, dim, dtype)

    return run


COMPOSED_FOR_CUDA: Mapping[str, Callable[..., Any]] = {
    "softmax.int": _half_to_float(aten.softmax.int, aten._softmax.default),
    "log_softmax.int": _half_to_float(aten.log_softmax.int, aten._log_softmax.default),
}
"""What runs in place of operations, by the name that `autocast_on_meta` takes."""
