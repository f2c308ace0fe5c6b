"""Optimizers on the simulated GPU: the paths of torch for CUDA, and the kernels of bitsandbytes.

The only file that uses their private names; a test fails if they move.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import bitsandbytes.functional as bnb_functional
import torch
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils

from profiler.domain.trials.optimizers import Kernels
from profiler.seams.patching import patched

Patch: TypeAlias = tuple[Any, str, Any]
"""Owner, name, and what takes its place."""


def _with_meta(supported: Any) -> Any:
    return lambda: [*supported(), "meta"]


def _managed(*shape: int, dtype: torch.dtype = torch.float32, **_: Any) -> torch.Tensor:
    """Return a paged state. It is in CUDA managed memory, outside torch's allocator: here on the host, not counted."""
    state = torch.empty(0, dtype=dtype, device="cpu").set_(
        torch.empty(0, dtype=dtype, device="cpu").untyped_storage(), 0, (0,), (1,)
    )
    state.is_paged = True  # type: ignore[attr-defined]
    state.page_deviceid = 0  # type: ignore[attr-defined]
    return state


def _no_kernel(*_: Any, **__: Any) -> None:
    """Do nothing: the kernel updates in place and allocates nothing."""


def _torch_patches() -> Sequence[Patch]:
    """Let torch choose its fused and foreach kernels for `meta`, as it does for CUDA."""
    return [
        (module, name, _with_meta(getattr(module, name)))
        for module in (torch_optimizer, _foreach_utils, clip_grad)
        for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")
        if hasattr(module, name)
    ]


def _bitsandbytes_patches() -> Sequence[Patch]:
    """Replace the kernels of bitsandbytes, and the managed memory of its paged states."""
    return [
        (bnb_functional, "get_paged", _managed),
        (bnb_functional, "fill", _no_kernel),
        (bnb_functional, "prefetch_tensor", _no_kernel),
        (bnb_functional, "optimizer_update_8bit_blockwise", _no_kernel),
        (bnb_functional, "optimizer_update_32bit", _no_kernel),
    ]


PATCHES: Mapping[Kernels, Callable[[], Sequence[Patch]]] = {
    Kernels.TORCH: _torch_patches,
    Kernels.BITSANDBYTES: _bitsandbytes_patches,
}
"""By library of kernels. Every library that `profiler.domain.trials.optimizers` names has an entry."""


def cuda_optimizers() -> AbstractContextManager[None]:
    """While active, optimizers take the paths for `meta` that they take for CUDA."""
    return patched([patch for patches in PATCHES.values() for patch in patches()])
