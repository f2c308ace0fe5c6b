"""Optimizers on the simulated GPU: torch's fused and foreach paths, and bitsandbytes' kernels.

The only file that touches their private names; a test tells when they move.
"""

from contextlib import AbstractContextManager
from typing import Any

import bitsandbytes.functional as bnb_functional
import torch
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils

from profiler.seams.patching import patched


def _with_meta(supported: Any) -> Any:
    return lambda: [*supported(), "meta"]


def _managed(*shape: int, dtype: torch.dtype = torch.float32, **_: Any) -> torch.Tensor:
    """A paged state: CUDA managed memory, outside torch's allocator; kept on the host here, so not counted."""
    state = torch.empty(0, dtype=dtype, device="cpu").set_(
        torch.empty(0, dtype=dtype, device="cpu").untyped_storage(), 0, (0,), (1,)
    )
    state.is_paged = True  # type: ignore[attr-defined]
    state.page_deviceid = 0  # type: ignore[attr-defined]
    return state


def _no_kernel(*_: Any, **__: Any) -> None:
    """A kernel that updates in place and allocates nothing."""


def cuda_optimizers() -> AbstractContextManager[None]:
    """While active, optimizers take the paths for `meta` that they take for CUDA."""
    supported = [
        (module, name, _with_meta(getattr(module, name)))
        for module in (torch_optimizer, _foreach_utils, clip_grad)
        for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")
        if hasattr(module, name)
    ]
    return patched(
        [
            *supported,
            (bnb_functional, "get_paged", _managed),
            (bnb_functional, "fill", _no_kernel),
            (bnb_functional, "prefetch_tensor", _no_kernel),
            (bnb_functional, "optimizer_update_8bit_blockwise", _no_kernel),
            (bnb_functional, "optimizer_update_32bit", _no_kernel),
        ]
    )
