"""An allocation that a card refuses, and the message of PyTorch about it."""

from dataclasses import dataclass

from profiler.domain.cards.gpu import Gpu
from profiler.domain.memory import GIB, KIB, MIB, Phase


class OutOfMemoryError(Exception):
    """The card has no memory for a request, even after releasing the cache."""

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
        """Size of the program's request."""
        self.tried_bytes = tried_bytes
        """Size of the allocator's request to the driver; PyTorch's message contains this."""
        self.free_bytes = free_bytes
        """Free memory of the driver; None: no capacity, only a limit for the process."""
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.retries = retries
        """`num_alloc_retries`, this one included."""
        super().__init__(f"{requested_bytes} bytes asked for, {free_bytes} free")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The first allocation that failed, and the memory in use at that instant."""

    phase: Phase
    requested_bytes: int
    """Size of the program's request."""
    tried_bytes: int
    """Size of the allocator's request to the driver: rounded up to a segment."""
    free_bytes: int
    """Free memory of the driver after releasing the cache."""
    allocated_bytes: int
    """Allocated memory at the request."""
    reserved_bytes: int

    def message(self, gpu: Gpu) -> str:
        """Return the message of PyTorch on `gpu`.

        "this process has ... in use" is the total without the free memory: the simulated process is alone on the card.
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
    """Format a size as in PyTorch's messages: two digits, the unit that it exceeds (`format_size`, same file)."""
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    if size_bytes <= MIB:
        return f"{size_bytes / KIB:.2f} KiB"
    if size_bytes <= GIB:
        return f"{size_bytes / MIB:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"
