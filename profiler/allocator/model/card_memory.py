"""The driver as one process sees it, what it refuses, expandable segments that it maps page by page, and counters.

Expandable segments: one segment per pool that grows page by page, and shrinks when memory is short.

Source of every rule: the function of the same meaning in c10/cuda/CUDACachingAllocator.cpp, named in its docstring.
"""

from dataclasses import dataclass

from profiler.allocator.model.blocks import Block, ExpandableSegment, FreeBlocks
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


@dataclass(frozen=True, kw_only=True)
class AllocatorStats:
    """The counters of `torch.cuda.memory_stats`, in bytes. Peaks are since the last `reset_peaks`."""

    allocated_bytes: int
    """Sizes of the blocks in use, including the unused part of each block."""
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    inactive_split_bytes: int
    """Free blocks in segments that are partly in use. As in PyTorch, without expandable segments."""
    peak_inactive_split_bytes: int
    peak_unreleasable_bytes: int
    """Peak of allocated plus inactive split memory, which `empty_cache` cannot release.

    Not a counter of PyTorch's; of expandable segments, which give back single pages, only what is allocated.
    """
    num_alloc_retries: int


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


def best_fit(pool: FreeBlocks, index: int) -> int:
    """Return the index of the block to take, given the smallest block that is large enough.

    A block at the growing end of a segment counts with all it could grow to, so that holes are filled first.
    Source: the loop over `expandable_size` in `DeviceCachingAllocator::get_free_block`.
    """
    while index + 1 < len(pool.keys) and _could_grow_to(pool, index + 1) < _could_grow_to(pool, index):
        index += 1
    return index


def _could_grow_to(pool: FreeBlocks, index: int) -> int:
    block = pool.block_at(index)
    after = block.after
    return block.size_bytes + (after.size_bytes if after is not None and not after.mapped else 0)


def grown_block(pool: FreeBlocks, size_bytes: int, *, page_bytes: int, card: CardMemory) -> Block | None:
    """Return a free block of at least `size_bytes`, not in a set, after mapping missing memory; None on failure.

    What was mapped before memory ran out stays mapped. Source: `try_allocate_expandable_block`.
    """
    block = _place_for(pool, size_bytes, page_bytes=page_bytes, card=card)
    if not block.mapped and not _map(block, min(block.size_bytes, size_bytes), card):
        return None
    while block.size_bytes < size_bytes:
        # Here a free block is always followed by one without memory; mapping merges the two.
        growth = block.after
        if growth is None or not _map(growth, min(size_bytes - block.size_bytes, growth.size_bytes), card):
            return None
        block = growth
    pool.remove(block)
    return block


def _place_for(pool: FreeBlocks, size_bytes: int, *, page_bytes: int, card: CardMemory) -> Block:
    """Return the lowest place with space for `size_bytes`, mapped or not; a new segment if there is none.

    Source: `find_expandable_block`.
    """
    for block in pool.unmapped:
        # The preceding free block can also be used.
        place = block.before if block.before is not None and not block.before.allocated else block
        if _has_space(place, size_bytes):
            return place
    pages = -(-card.address_space_bytes() // page_bytes)
    segment = ExpandableSegment(
        address=card.reserve_addresses(pages * page_bytes), size_bytes=pages * page_bytes, page_bytes=page_bytes
    )
    block = Block(
        address=segment.address,
        size_bytes=segment.size_bytes,
        pool=pool,
        expandable=segment,
        order=card.order_of_new_segment(),
    )
    block.mapped = False
    pool.add_unmapped(block)
    return block


def _has_space(block: Block | None, size_bytes: int) -> bool:
    space = 0
    while space < size_bytes and block is not None and not block.allocated:
        space += block.size_bytes
        block = block.after
    return space >= size_bytes


def _map(block: Block, size_bytes: int, card: CardMemory) -> bool:
    """Map the first pages of an unmapped block, as many as `size_bytes` need; return whether there was memory.

    The block becomes free, merged with its free neighbours. Source: `map_block`, `ExpandableSegment::map`.
    """
    segment, pool = block.expandable, block.pool
    assert segment is not None  # only blocks of expandable segments are unmapped
    mapped_bytes = -(-size_bytes // segment.page_bytes) * segment.page_bytes
    if not card.map_pages(block.address, mapped_bytes):
        return False
    pool.remove_unmapped(block)
    block.mapped = True
    if mapped_bytes < block.size_bytes:
        rest = Block(
            block.address + mapped_bytes, block.size_bytes - mapped_bytes, pool, expandable=segment, order=block.order
        )
        rest.mapped = False
        rest.place_between(block, block.after)
        pool.add_unmapped(rest)
        block.size_bytes = mapped_bytes
    pool.merge(block, block.before)
    pool.merge(block, block.after)
    pool.add(block)
    return True


def free_pages(block: Block) -> tuple[int, int]:
    """Return (first address, end) of the pages that lie entirely in a free block; end <= first if there are none.

    Source: `ExpandableSegment::unmap`.
    """
    segment = block.expandable
    assert segment is not None  # only called for blocks of expandable segments
    page = segment.page_bytes
    first = -(-(block.address - segment.address) // page) * page + segment.address
    end = (block.address + block.size_bytes - segment.address) // page * page + segment.address
    return first, end


def unmap_free_pages(block: Block, card: CardMemory) -> None:
    """Release the pages that lie entirely in a free block; its remaining ends stay free.

    A segment of which nothing is mapped any more is dropped. Source: `unmap_block`, `release_expandable_segment`.
    """
    first, end = free_pages(block)
    if first >= end:
        return
    pool = block.pool
    pool.remove(block)
    _keep_end(block, size_bytes=first - block.address, in_front=True)
    _keep_end(block, size_bytes=block.address + block.size_bytes - end, in_front=False)
    card.unmap_pages(block.address, block.size_bytes)
    block.mapped = False
    pool.merge(block, block.before)
    pool.merge(block, block.after)
    if block.is_split:
        pool.add_unmapped(block)


def _keep_end(block: Block, *, size_bytes: int, in_front: bool) -> None:
    """Split `size_bytes` off one end of a block, as a free block of its own."""
    if not size_bytes:
        return
    address = block.address if in_front else block.address + block.size_bytes - size_bytes
    kept = Block(address, size_bytes, block.pool, block.expandable, block.order)
    if in_front:
        kept.place_between(block.before, block)
        block.address += size_bytes
    else:
        kept.place_between(block, block.after)
    block.size_bytes -= size_bytes
    block.pool.add(kept)
