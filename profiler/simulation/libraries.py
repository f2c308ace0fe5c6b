"""Memory that CUDA's libraries take through torch's allocator and keep."""

from profiler.domain.units import MIB

_HOPPER = (9, 0)


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of one cuBLAS workspace in torch up to 2.13: 32 MiB on Hopper, 8,519,680 elsewhere.

    torch keeps one for each pair of handle and stream. Handles belong to threads: the thread that runs forward has one
    and the thread that runs backward another.

    Source: `getChosenWorkspaceSize` in `aten/src/ATen/cuda/CublasHandlePool.cpp`.
    """
    return 32 * MIB if compute_capability == _HOPPER else 8_519_680
