"""What the driver gives to one process: memory and addresses, and no when there is none left."""

from profiler.domain.units import GIB

FIRST_ADDRESS = 0x7F00_0000_0000
"""Where segments begin. Arbitrary: only the order of addresses matters, and only between free blocks of one size."""

UNLIMITED_ADDRESS_SPACE_BYTES = 16 * 1024 * GIB
"""Address space of an expandable segment on a card without a capacity: more than any trial needs."""


class CardMemory:
    """The memory that one process can still take from the driver.

    Addresses ascend and are not used again, which cudaMalloc does not promise: a driver may hand out the address of a
    freed segment. That decides nothing but which of two free blocks of equal size is taken first. Since torch 2.13 it
    is the one of the older segment (pytorch/pytorch#183591), which is what ascending addresses amount to.
    """

    def __init__(self, *, capacity_bytes: int | None) -> None:
        """`capacity_bytes` is what the process can take, so without its context; None: unlimited."""
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        """What the allocator holds: `reserved_bytes`, which its source also keeps as `total_allocated_memory`."""
        self.peak_taken_bytes = 0
        """The most since the last reset."""
        self._next_address = FIRST_ADDRESS

    @property
    def free_bytes(self) -> int | None:
        """What is left, as `cudaMemGetInfo` says; None: unlimited."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes

    def take_segment(self, size_bytes: int) -> int | None:
        """The address of new memory, or None: cudaMalloc."""
        return self.reserve_addresses(size_bytes) if self._take(size_bytes) else None

    def order_of_new_segment(self) -> int:
        """The place of a new segment among all, where addresses do not say it."""
        return 0

    def give_segment_back(self, address: int, size_bytes: int) -> None:  # noqa: ARG002 - recorders need it
        """A segment goes back: cudaFree."""
        self.taken_bytes -= size_bytes

    def reserve_addresses(self, size_bytes: int) -> int:
        """Addresses without memory: cuMemAddressReserve."""
        address = self._next_address
        self._next_address += size_bytes
        return address

    def map_pages(self, address: int, size_bytes: int) -> bool:  # noqa: ARG002 - as above
        """Memory at an address, all of it or none: cuMemCreate, cuMemMap. Whether there was enough."""
        return self._take(size_bytes)

    def unmap_pages(self, address: int, size_bytes: int) -> None:  # noqa: ARG002 - as above
        """Memory goes back, its addresses stay: cuMemUnmap, cuMemRelease."""
        self.taken_bytes -= size_bytes

    def address_space_bytes(self) -> int:
        """Addresses that an expandable segment reserves: 9/8 of the card (`ExpandableSegment`'s constructor)."""
        if self.capacity_bytes is None:
            return UNLIMITED_ADDRESS_SPACE_BYTES
        return self.capacity_bytes + self.capacity_bytes // 8

    def _take(self, size_bytes: int) -> bool:
        if self.capacity_bytes is not None and self.taken_bytes + size_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += size_bytes
        self.peak_taken_bytes = max(self.peak_taken_bytes, self.taken_bytes)
        return True
