"""Memory that the libraries of CUDA allocate in addition to tensors."""

from collections.abc import Collection

import torch

from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.cards.cublas import cublas_workspace_bytes, cublaslt_workspace_bytes
from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category


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
