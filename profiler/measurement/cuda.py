"""What a measured trial asks of CUDA through torch, as one protocol that a script can stand in for."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from profiler.measurement.phase_counters import Counters

OutOfMemoryCallback = Callable[[int, int], None]
"""Called at the very moment of an out-of-memory error: (bytes asked for, bytes the driver has left)."""


class CudaDevice(Counters, Protocol):
    """The one GPU that this process sees."""

    def set_allocator_settings(self, settings: str) -> None:
        """As `PYTORCH_ALLOC_CONF`; before anything is allocated."""

    def name(self) -> str:
        """The maker's name of the card."""

    def uuid(self) -> str:
        """As the driver spells it: ``"GPU-..."``."""

    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""

    def total_bytes(self) -> int:
        """The card's memory."""

    def free_bytes(self) -> int:
        """What the driver has left, by `mem_get_info`."""

    def limit_allocator(self, size_bytes: int) -> None:
        """Let the caching allocator hold no more than that."""

    def can_allocate(self, size_bytes: int) -> bool:
        """Try it, and give it back at once."""

    def allocated_bytes(self) -> int:
        """In tensors now."""

    def reserved_bytes(self) -> int:
        """Held by the caching allocator now."""

    def peak_inactive_split_bytes(self) -> int:
        """The most that lay free between blocks in use, since the last reset."""

    def alloc_retries(self) -> int:
        """How often the allocator has given its cache back to make room."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that the GPU's memory ran out."""

    def has_no_handle(self, error: BaseException) -> bool:
        """Whether `error` says that a library could not make its handle, which a full card looks like too."""

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Have `callback` called at each out-of-memory error, where this torch can."""

    def record_history(self, *, most_entries: int) -> None:
        """Keep the history of allocations, the last `most_entries` of them."""

    def snapshot(self) -> Mapping[str, Any]:
        """Segments and history in the memory viewer's format."""
