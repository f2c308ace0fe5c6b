"""Memory that CUDA and its libraries take in addition to tensors."""

from collections.abc import Collection

import torch

from profiler.allocator.trace import TraceBuilder
from profiler.domain.context import cuda_context_bytes as cuda_context_bytes
from profiler.domain.gpu import Chip
from profiler.domain.memory import Category
from profiler.domain.units import MIB

_HOPPER = (9, 0)
_BLACKWELL_MAJORS = (10, 11, 12)
_INSTALLED = torch.__version__.split("+")[0]


def cublas_workspace_bytes(compute_capability: tuple[int, int], torch_version: str = _INSTALLED) -> int:
    """Bytes of one cuBLAS workspace: 32 MiB on Hopper, from torch 2.12 also on Blackwell; 8,519,680 elsewhere.

    torch keeps one for each pair of handle and stream, through its caching allocator. Handles belong to threads: the
    thread that runs forward has one and the thread that runs backward another. Later than 2.13 it is taken and given
    back at each call.

    Sources: `parseChosenWorkspaceSize` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175344 (Blackwell,
    February 2026). Seen in torch's CUDA builds 2.11 and 2.13 on an emulated driver.
    """
    blackwell = compute_capability[0] in _BLACKWELL_MAJORS and _version(torch_version) >= (2, 12)
    return 32 * MIB if compute_capability == _HOPPER or blackwell else 8_519_680


def cublaslt_workspace_bytes(torch_version: str = _INSTALLED) -> int:
    """Bytes of the workspace of cuBLASLt, which adds biases: 1 MiB before torch 2.12, cuBLAS's own since.

    Sources: `getCUDABlasLtWorkspace` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175879 (one memory
    for both, March 2026). Seen as above.
    """
    return MIB if _version(torch_version) < (2, 12) else 0


class CublasWorkspaces:
    """The workspaces of cuBLAS and cuBLASLt: each thread makes its own at its first product and keeps it.

    CUDA runs backward in a thread of its own, so there are two: the trainer's and the autograd engine's.
    """

    def __init__(self, trace: TraceBuilder, chip: Chip, others: Collection[Chip] = ()) -> None:
        self._trace = trace
        self._bytes = cublas_workspace_bytes(chip.compute_capability)
        self._elsewhere = {other: cublas_workspace_bytes(other.compute_capability) for other in others}

    def product(self, *, with_bias: bool = False) -> None:
        """A product is asked for by the running thread."""
        thread = "backward" if torch._C._current_graph_task_id() >= 0 else "forward"
        if with_bias and cublaslt_workspace_bytes():
            name = f"cuBLASLt workspace of the thread that runs {thread}"
            self._trace.keep(name, cublaslt_workspace_bytes(), Category.WORKSPACE)
        else:
            name = f"cuBLAS workspace of the thread that runs {thread}"
            self._trace.keep(name, self._bytes, Category.WORKSPACE, self._elsewhere)


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
