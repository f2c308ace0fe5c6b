"""Workspaces of cuBLAS and cuBLASLt, which torch allocates with its caching allocator."""

from functools import cache
from importlib.util import find_spec

from profiler.domain.cards.capabilities import large_workspace_since
from profiler.domain.units import KIB, MIB

_LARGE_BYTES = 32 * MIB
_SMALL_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
"""torch's default for all other cards, written ``:4096:2:16:8`` in KiB."""

_SHARED_SINCE = (2, 12)
"""The first torch in which cuBLASLt uses the workspace of cuBLAS."""

_CUBLASLT_BYTES = MIB

_NEWEST_KNOWN = "2.14"


def cublas_workspace_bytes(compute_capability: tuple[int, int], torch_version: str | None = None) -> int:
    """Return the bytes of one cuBLAS workspace: 32 MiB on Hopper and later cards, 8,519,680 B on earlier ones.

    Blackwell has the large workspace from torch 2.12 on (11.0 from 2.14 on). torch keeps one workspace per pair of
    handle and stream. Handles belong to threads: the thread that runs forward has one, the thread that runs backward
    another. Does not hold for torch after 2.13, which frees the workspace after each call.

    Sources: `parseChosenWorkspaceSize` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175344 (10.x and
    12.x, February 2026) and #189312 (11.x, July 2026). Seen in torch's CUDA builds 2.11 and 2.13 on an emulated driver.

    Args:
        compute_capability: (major, minor).
        torch_version: The installed version if None.
    """
    since = large_workspace_since(compute_capability)
    return _LARGE_BYTES if since is not None and _minor_version(torch_version) >= since else _SMALL_BYTES


def cublaslt_workspace_bytes(torch_version: str | None = None) -> int:
    """Return the bytes of the workspace of cuBLASLt, which adds biases: 1 MiB before torch 2.12, then 0 of its own.

    Sources: `getCUDABlasLtWorkspace` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175879 (one memory
    for both, March 2026). Seen as above.
    """
    return _CUBLASLT_BYTES if _minor_version(torch_version) < _SHARED_SINCE else 0


@cache
def installed_torch_version() -> str:
    """Return the version of the installed torch without importing it; the newest known one if there is none."""
    if find_spec("torch") is None:
        return _NEWEST_KNOWN
    from importlib.metadata import PackageNotFoundError, version  # 15 ms

    try:
        return version("torch")
    except PackageNotFoundError:
        return _NEWEST_KNOWN


def _minor_version(text: str | None) -> tuple[int, int]:
    major, minor = (installed_torch_version() if text is None else text).split(".")[:2]
    return int(major), int(minor)
