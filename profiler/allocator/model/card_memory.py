"""The driver as one process sees it: memory and addresses, refused when none is left."""

from profiler.domain.units import GIB

FIRST_ADDRESS = 0x7F00_0000_0000
"""First address. Arbitrary: only the order of addresses matters, and only between free blocks of equal size."""

UNLIMITED_ADDRESS_SPACE_BYTES = 16 * 1024 * GIB
"""Address space of an expandable segment on a card without a capacity: more than any trial needs."""


class CardMemory:
    """The memory that one process can still take from the driver.

    Addresses go one way and are not used again, which cudaMalloc does not promise: a driver may hand out the address of
    a freed segment. That decides nothing but which of two free blocks of equal size is taken first. Since torch 2.13 it
    is the one of the older segment (pytorch/pytorch#183591), which is what ascending addresses amount to.
    """

    def __init__(self, *, capacity_bytes: int | None, descending: bool = False) -> None:
        """Create the memory.

        Args:
            capacity_bytes: Memory that the process can take, without its context; None: unlimited.
            descending: Whether a later address is lower.
        """
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        """Memory taken: `reserved_bytes`; the source also keeps it as `total_allocated_memory`."""
        self.peak_taken_bytes = 0
        """Maximum since the last reset."""
        self._next_address = FIRST_ADDRESS
        self._descending = descending

    @property
    def free_bytes(self) -> int | None:
        """Free memory, as `cudaMemGetInfo` reports it; None: unlimited."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes

    def take_segment(self, size_bytes: int) -> int | None:
        """Return the address of new memory, or None: cudaMalloc."""
        return self.reserve_addresses(size_bytes) if self._take(size_bytes) else None

    def order_of_new_segment(self) -> int:
        """Return the position of a new segment in the search order, if addresses do not determine it."""
        return 0

    def give_segment_back(self, address: int, size_bytes: int) -> None:  # noqa: ARG002 - recorders need it
        """Release a segment: cudaFree."""
        self.taken_bytes -= size_bytes

    def reserve_addresses(self, size_bytes: int) -> int:
        """Reserve addresses without memory: cuMemAddressReserve."""
        if self._descending:
            self._next_address -= size_bytes
            return self._next_address
        address = self._next_address
        self._next_address += size_bytes
        return address

    def map_pages(self, address: int, size_bytes: int) -> bool:  # noqa: ARG002 - as above
        """Map memory at an address, all or nothing; return whether there was enough: cuMemCreate, cuMemMap."""
        return self._take(size_bytes)

    def unmap_pages(self, address: int, size_bytes: int) -> None:  # noqa: ARG002 - as above
        """Release memory and keep its addresses: cuMemUnmap, cuMemRelease."""
        self.taken_bytes -= size_bytes

    def address_space_bytes(self) -> int:
        """Return the address space of an expandable segment: 9/8 of the card (constructor of `ExpandableSegment`)."""
        if self.capacity_bytes is None:
            return UNLIMITED_ADDRESS_SPACE_BYTES
        return self.capacity_bytes + self.capacity_bytes // 8

    def _take(self, size_bytes: int) -> bool:
        if self.capacity_bytes is not None and self.taken_bytes + size_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += size_bytes
        self.peak_taken_bytes = max(self.peak_taken_bytes, self.taken_bytes)
        return True
