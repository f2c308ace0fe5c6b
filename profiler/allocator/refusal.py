"""The allocation that a card refuses, and the sentence PyTorch prints about it."""

from dataclasses import dataclass

from profiler.domain.gpu import Gpu
from profiler.domain.memory import Phase
from profiler.domain.units import GIB, KIB, MIB


class OutOfMemoryError(Exception):
    """The card has no memory for a request, whatever is given back before."""

    def __init__(
        self,
        *,
        requested_bytes: int,
        tried_bytes: int,
        free_bytes: int | None,
        allocated_bytes: int,
        reserved_bytes: int,
        retries: int,
    ) -> None:
        self.requested_bytes = requested_bytes
        """What the program asked for."""
        self.tried_bytes = tried_bytes
        """What the allocator asked the driver for: PyTorch's message names this."""
        self.free_bytes = free_bytes
        """What the driver had left; None: no capacity, the limit is a share that the process may take."""
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.retries = retries
        """`num_alloc_retries` by then, this one included."""
        super().__init__(f"{requested_bytes} bytes asked for, {free_bytes} free")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The first allocation that did not fit, and what the memory was like when it failed."""

    phase: Phase
    requested_bytes: int
    """What the program asked for."""
    tried_bytes: int
    """What the allocator asked the driver for: the request, rounded up to a segment."""
    free_bytes: int
    """What the driver had left, after everything cached that could be given back was."""
    allocated_bytes: int
    """In use when it was asked for."""
    reserved_bytes: int

    def message(self, gpu: Gpu) -> str:
        """The sentence PyTorch would print on `gpu`.

        "this process has ... in use" is what the card lacks of its total: the simulated process is alone on it.
        Source: the `TORCH_CHECK_WITH(OutOfMemoryError, ...)` of `DeviceCachingAllocator::malloc` and
        `reportProcessMemoryInfo`, c10/cuda/CUDACachingAllocator.cpp.
        """
        in_use_bytes = gpu.memory_bytes - self.free_bytes
        unallocated_bytes = self.reserved_bytes - self.allocated_bytes
        return (
            f"CUDA out of memory. Tried to allocate {size_text(self.tried_bytes)}. "
            f"GPU 0 has a total capacity of {size_text(gpu.memory_bytes)} "
            f"of which {size_text(self.free_bytes)} is free. "
            f"Including non-PyTorch memory, this process has {size_text(in_use_bytes)} memory in use. "
            f"Of the allocated memory {size_text(self.allocated_bytes)} is allocated by PyTorch, "
            f"and {size_text(unallocated_bytes)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
            "to avoid fragmentation."
        )


def size_text(size_bytes: int) -> str:
    """A size as PyTorch's messages show it: two digits, the unit that it exceeds (`format_size`, same file)."""
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    if size_bytes <= MIB:
        return f"{size_bytes / KIB:.2f} KiB"
    if size_bytes <= GIB:
        return f"{size_bytes / MIB:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"
