"""Blocks of segments: their search order, their plain values, and which segments are given back.

Choice of segments that the caching allocator releases before it flushes its whole cache.

Source of every rule: the function of c10/cuda/CUDACachingAllocator.cpp that a docstring names.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpandableSegment:
    """A range of addresses that memory is mapped into, page by page (`ExpandableSegment`, CUDACachingAllocator.cpp)."""

    address: int
    size_bytes: int
    """Size of the range, a multiple of the page; most of it has no memory."""
    page_bytes: int


class Block:
    """A piece of a segment (`Block`, CUDACachingAllocator.cpp). Returned by `allocate`; read-only for callers.

    Not a frozen value: blocks are split and merged in place, a hundred thousand times a trial.
    """

    __slots__ = (
        "address",
        "after",
        "allocated",
        "before",
        "expandable",
        "inserted_at_search",
        "key",
        "mapped",
        "order",
        "pool",
        "requested_bytes",
        "size_bytes",
    )

    requested_bytes: int
    """Requested size; valid while allocated."""
    key: int
    """Its place in the search order (`FreeBlocks.add`); valid while free and mapped."""
    inserted_at_search: int
    """The pool's `searches` when the block became free: its age, for garbage collection."""

    # Positions and no loop: half of all requests create a block.
    def __init__(
        self,
        address: int,
        size_bytes: int,
        pool: "FreeBlocks",
        expandable: ExpandableSegment | None = None,
        order: int = 0,
    ) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.pool = pool
        self.expandable = expandable
        self.order = order
        """Age of its segment (`registration_counter`): of two free blocks of equal size the older one is taken."""
        self.allocated = False
        self.mapped = True
        """Whether the addresses have memory; always true outside expandable segments."""
        self.before: Block | None = None
        """The adjacent block in the same segment."""
        self.after: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether the segment has other blocks."""
        return self.before is not None or self.after is not None

    def place_between(self, before: "Block | None", after: "Block | None") -> None:
        """Link the block into its segment (`Block::splice`)."""
        self.before, self.after = before, after
        if before is not None:
            before.after = self
        if after is not None:
            after.before = self


ORDER_SHIFT = 64
"""Bits of an address."""
SIZE_SHIFT = ORDER_SHIFT + 32
"""Bits of an address and of the order of a segment. A number that sorts as (size, order, address) is compared faster
than a tuple."""


class FreeBlocks:
    """The free blocks of one pool on one stream, by size, then order of their segment, then address (`BlockPool`)."""

    __slots__ = ("at", "is_small", "keys", "searches", "stream", "unmapped")

    def __init__(self, *, is_small: bool, stream: int = 0) -> None:
        self.is_small = is_small
        self.stream = stream
        self.keys: list[int] = []
        """The key of each free block with memory, ascending: size, order of its segment, address."""
        self.at: dict[int, Block] = {}
        """The block of each key."""
        self.unmapped: list[Block] = []
        """Blocks of expandable segments without memory, by address (`BlockComparatorAddress`)."""
        self.searches = 0
        """Number of searches for a block (`get_free_blocks_call_count`), counted while garbage is collected."""

    def add(self, block: Block) -> None:
        """Add a free block."""
        block.inserted_at_search = self.searches
        block.key = key = block.size_bytes << SIZE_SHIFT | block.order << ORDER_SHIFT | block.address
        insort(self.keys, key)
        self.at[key] = block

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        key = block.key
        del self.keys[bisect_left(self.keys, key)]
        del self.at[key]

    def first_of_at_least(self, size_bytes: int) -> int:
        """Return the index in `keys` of the smallest block that is large enough; the length if there is none."""
        # The key of every smaller block is less, and that of every other one is not.
        return bisect_left(self.keys, size_bytes << SIZE_SHIFT)

    def block_at(self, index: int) -> Block:
        """Return the block of `keys[index]`."""
        return self.at[self.keys[index]]

    def in_order(self) -> list[Block]:
        """Return all free blocks with memory, smallest first."""
        return [self.at[key] for key in self.keys]

    def add_unmapped(self, block: Block) -> None:
        """Add a block without memory."""
        insort(self.unmapped, block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        """Remove a block without memory."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]

    def merge(self, block: Block, neighbour: Block | None) -> int:
        """Merge `neighbour` into `block` if it is free and equally mapped; return its bytes, or 0.

        `block` itself is in no set at the time. Source: `DeviceCachingAllocator::try_merge_blocks`.
        """
        if neighbour is None or neighbour.allocated or neighbour.mapped != block.mapped:
            return 0
        if neighbour.mapped:
            self.remove(neighbour)
        else:
            self.remove_unmapped(neighbour)
        if neighbour is block.before:
            block.address = neighbour.address
            block.before = neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        block.size_bytes += neighbour.size_bytes
        return neighbour.size_bytes


class StreamPools(dict[int, FreeBlocks]):
    """One pool of PyTorch: the free blocks by stream, created at the first request of a stream.

    PyTorch keeps one set ordered by stream, then size (`BlockComparatorSize`), and a search never leaves its stream.
    """

    __slots__ = ("is_small",)

    def __init__(self, *, is_small: bool) -> None:
        super().__init__()
        self.is_small = is_small

    def __missing__(self, stream: int) -> FreeBlocks:
        pool = self[stream] = FreeBlocks(is_small=self.is_small, stream=stream)
        return pool

    def free_blocks(self) -> list[Block]:
        """Return all free blocks with memory, by stream, then size."""
        return [block for stream in sorted(self) for block in self[stream].in_order()]

    def count_search(self) -> None:
        """Count a search for a block. Ages are counted per pool, over all streams."""
        for pool in self.values():
            pool.searches += 1


def _address(block: Block) -> int:
    return block.address


class BlockState(StrEnum):
    """State of one piece of a segment."""

    IN_USE = "in use"
    """Allocated, or freed by the program while a stream may still use it (`active_pending_free`)."""
    FREE = "free"
    UNMAPPED = "unmapped"
    """Addresses of an expandable segment without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBlock:
    """One piece of a segment."""

    address: int
    size_bytes: int
    requested_bytes: int
    """Requested size; 0 unless in use."""
    state: BlockState


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldSegment:
    """One segment: all its pieces in the order of addresses, without gaps."""

    stream: int
    is_small: bool
    """Whether it belongs to the pool of requests of up to 1 MiB."""
    page_bytes: int | None
    """Page size of an expandable segment; None: an ordinary segment."""
    blocks: tuple[HeldBlock, ...]


def rebuilt_blocks(segment: HeldSegment, pool: FreeBlocks) -> list[Block]:
    """Return the linked blocks of a segment, by address; add free ones to `pool`, the pool of its stream."""
    expandable = _address_range(segment)
    blocks: list[Block] = []
    for held in segment.blocks:
        block = Block(held.address, held.size_bytes, pool, expandable)
        block.requested_bytes = held.requested_bytes
        block.place_between(blocks[-1] if blocks else None, None)
        block.allocated = held.state is BlockState.IN_USE
        block.mapped = held.state is not BlockState.UNMAPPED
        if held.state is BlockState.FREE:
            pool.add(block)
        elif held.state is BlockState.UNMAPPED:
            pool.add_unmapped(block)
        blocks.append(block)
    return blocks


def _address_range(segment: HeldSegment) -> ExpandableSegment | None:
    """Return the addresses of an expandable segment; None for an ordinary one."""
    if segment.page_bytes is None:
        return None
    return ExpandableSegment(
        address=segment.blocks[0].address,
        size_bytes=sum(block.size_bytes for block in segment.blocks),
        page_bytes=segment.page_bytes,
    )


def oversize_blocks(pool: FreeBlocks, wanted_bytes: int, limit_bytes: int) -> list[Block]:
    """Return the smallest unsplittable block of a stream that suffices alone, else the largest until they suffice.

    They may not suffice: the caller compares their sum with `wanted_bytes`.
    Source: `release_available_cached_blocks`.
    """
    index = pool.first_of_at_least(wanted_bytes)
    if index < len(pool.keys):
        return [pool.in_order()[index]]
    found: list[Block] = []
    missing = wanted_bytes
    for block in reversed(pool.in_order()):
        if missing <= 0 or block.size_bytes < limit_bytes:
            break
        missing -= block.size_bytes
        found.append(block)
    return found


def old_blocks(pools: StreamPools, to_reclaim_bytes: int) -> list[Block]:
    """Return the segments of all streams that were free for longest.

    Each round takes those at least as old as the mean of the remaining ones, until enough is reclaimed.
    Source: `garbage_collect_cached_blocks`.
    """
    ages = {
        block: block.pool.searches - block.inserted_at_search
        for block in pools.free_blocks()
        if not block.is_split and block.expandable is None
    }
    found: list[Block] = []
    while to_reclaim_bytes > 0 and ages:
        mean_age = sum(ages.values()) / len(ages)
        for block in [block for block, age in ages.items() if age >= mean_age]:
            del ages[block]
            to_reclaim_bytes -= block.size_bytes
            found.append(block)
    return found
