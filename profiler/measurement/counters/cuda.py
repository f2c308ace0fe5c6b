"""Protocol of the CUDA calls of a measured trial, which tests implement with scripted values."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from profiler.measurement.counters.phase_counters import Counters

OutOfMemoryCallback = Callable[[int, int], None]
"""Called at an out-of-memory error with the requested bytes and the driver's free bytes."""


class CudaDevice(Counters, Protocol):
    """The one GPU that this process sees."""

    def set_allocator_settings(self, settings: str) -> None:
        """Set what `PYTORCH_ALLOC_CONF` sets; before the first allocation."""

    def name(self) -> str:
        """Return the vendor's name of the card."""

    def uuid(self) -> str:
        """Return the UUID in the driver's spelling: ``"GPU-..."``."""

    def compute_capability(self) -> tuple[int, int]:
        """Return (major, minor)."""

    def total_bytes(self) -> int:
        """Return the card's memory."""

    def free_bytes(self) -> int:
        """Return the driver's free memory, by `mem_get_info`."""

    def limit_allocator(self, size_bytes: int) -> None:
        """Limit the memory of the caching allocator."""

    def can_allocate(self, size_bytes: int) -> bool:
        """Allocate `size_bytes` and free them; return whether this succeeded."""

    def allocated_bytes(self) -> int:
        """Return the bytes in tensors now."""

    def reserved_bytes(self) -> int:
        """Return the bytes that the caching allocator holds now."""

    def peak_inactive_split_bytes(self) -> int:
        """Return the most free bytes between blocks in use since the last reset."""

    def counters_shared(self) -> AbstractContextManager[None]:
        """Return a context in which the program reads and resets the counters as if it were alone.

        Its resets take no peak from this object, and the resets of this object none from the program.
        """

    def alloc_retries(self) -> int:
        """Return how often the allocator has released its cache and retried."""

    def failed_allocations(self) -> int:
        """Return how many allocations have failed, also if the program went on."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` means that the GPU's memory is exhausted."""

    def has_no_handle(self, error: BaseException) -> bool:
        """Whether `error` means that a library could not create its handle, as happens on a full card."""

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Call `callback` at each out-of-memory error, if this build of torch supports it."""

    def record_history(self, *, most_entries: int) -> None:
        """Record the last `most_entries` allocations and frees."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return segments and history in the memory viewer's format."""
