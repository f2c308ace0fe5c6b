"""PyTorch's CUDA caching allocator, as of torch 2.13.

Each method names the function of c10/cuda/CUDACachingAllocator.cpp (class `DeviceCachingAllocator`) whose rules it
follows. Not modelled, because a training step has none of it: CUDA graphs and other private memory pools, callbacks
that free memory, settings that change while the program runs.
"""

from bisect import bisect_left
from collections.abc import Iterator

from profiler.allocator.model.blocks import (
    SIZE_SHIFT,
    Block,
    FreeBlocks,
    HeldSegment,
    StreamPools,
    old_blocks,
    oversize_blocks,
    rebuilt_blocks,
)
from profiler.allocator.model.card_memory import (
    AllocatorStats,
    CardMemory,
    OutOfMemoryError,
    best_fit,
    free_pages,
    grown_block,
    unmap_free_pages,
)
from profiler.allocator.settings import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorConfig,
    block_bytes,
    segment_bytes,
)

_NO_REST = 1 << 62
"""More than any block has: no rest is split off."""


class CachingAllocator:
    """Blocks and segments for a stream of requests and frees.

    Equal requests in equal order give equal blocks.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None,
        config: AllocatorConfig,
        total_bytes: int | None = None,
        card: CardMemory | None = None,
    ) -> None:
        """Create an empty allocator.

        Args:
            capacity_bytes: What the process can take from the driver, so without its context; None: unlimited.
            config: Its settings.
            total_bytes: All memory of the card: what `per_process_memory_fraction` is a share of. None: the capacity.
            card: The driver that is asked, where it is not the ordinary one of `capacity_bytes`.
        """
        self._config = config
        self._card = card or CardMemory(capacity_bytes=capacity_bytes, descending=config.addresses_descend)
        self._small = StreamPools(is_small=True)
        self._large = StreamPools(is_small=False)
        self._in_use: set[Block] = set()
        self._requests: dict[int, tuple[int, StreamPools, int, int]] = {}
        self._chooses = config.expandable_segments or config.max_split_bytes is not None
        """Whether another block than the smallest that is large enough may be taken."""
        self._allowed_bytes = _allowed_bytes(config, capacity_bytes if total_bytes is None else total_bytes)
        self._collects_garbage = self._allowed_bytes is not None and config.garbage_collection_threshold > 0
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.inactive_split_bytes = 0
        self._peak_inactive_split_bytes = 0
        self._peak_unreleasable_bytes = 0
        self.num_alloc_retries = 0

    @property
    def reserved_bytes(self) -> int:
        """Memory taken from the driver."""
        return self._card.taken_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum since the last `reset_peaks`."""
        return self._card.peak_taken_bytes

    def stats(self) -> AllocatorStats:
        """Return the current counters."""
        return AllocatorStats(
            allocated_bytes=self.allocated_bytes,
            peak_allocated_bytes=self.peak_allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            inactive_split_bytes=self.inactive_split_bytes,
            peak_inactive_split_bytes=self._peak_inactive_split_bytes,
            peak_unreleasable_bytes=self._peak_unreleasable_bytes,
            num_alloc_retries=self.num_alloc_retries,
        )

    def reset_peaks(self) -> None:
        """Set the peaks to the current values (`torch.cuda.reset_peak_memory_stats`)."""
        self.peak_allocated_bytes = self.allocated_bytes
        self._card.peak_taken_bytes = self._card.taken_bytes
        self._peak_inactive_split_bytes = self.inactive_split_bytes
        self._peak_unreleasable_bytes = self.allocated_bytes + self.inactive_split_bytes

    @property
    def takes_the_smallest(self) -> bool:
        """Whether each request takes the smallest free block that is large enough, whatever happened before."""
        return not self._chooses and not self._collects_garbage

    def pass_over(self, allocated_bytes: int, inactive_split_bytes: int, unreleasable_bytes: int) -> int:
        """Raise the peaks as a sequence does that rises so far above the current levels and leaves all as it was.

        Returns:
            Its highest level of allocated bytes.
        """
        allocated_bytes += self.allocated_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, allocated_bytes)
        inactive_split_bytes += self.inactive_split_bytes
        self._peak_inactive_split_bytes = max(self._peak_inactive_split_bytes, inactive_split_bytes)
        unreleasable_bytes += self.allocated_bytes + self.inactive_split_bytes
        self._peak_unreleasable_bytes = max(self._peak_unreleasable_bytes, unreleasable_bytes)
        return allocated_bytes

    def segments(self) -> list[list[Block]]:
        """Return the blocks of each segment, both in the order of addresses; read-only.

        Of an expandable segment each stretch that has memory is one (`DeviceCachingAllocator::snapshot`).
        """
        blocks = {*self._small.free_blocks(), *self._large.free_blocks(), *self._in_use}
        heads = [block for block in blocks if block.before is None or not block.before.mapped]
        return [list(_stretch(head)) for head in sorted(heads, key=lambda head: head.address)]

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        """Return a block for a request of `size_bytes`, at least 1 (`malloc`; requests of 0 never reach the allocator).

        A stream is served from its own free blocks only; what is given back under pressure is of all streams.

        Raises:
            OutOfMemoryError: The card has too little memory left; free segments were given back before.
        """
        size, pools, least_rest, least_key = self._requests.get(size_bytes) or self._request(size_bytes)
        pool = pools[stream]
        if self._collects_garbage:
            pools.count_search()
        # What `_best_fit` does in the ordinary case, without calling it.
        keys = pool.keys
        index = self._best_fit(pool, size) if self._chooses else bisect_left(keys, least_key)
        if index is None or index == len(keys):
            block = self._new_memory(pool, size, size_bytes)
        else:
            block = pool.at.pop(keys.pop(index))
        if block.size_bytes - size >= least_rest:
            block = self._split(block, size)
        elif block.expandable is None and (block.before is not None or block.after is not None):
            self.inactive_split_bytes -= block.size_bytes
        block.allocated = True
        block.requested_bytes = size_bytes
        self._in_use.add(block)
        self.allocated_bytes += block.size_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        # It grows only here: freed memory leaves it, or moves from one of the two to the other.
        unreleasable = self.allocated_bytes + self.inactive_split_bytes
        if unreleasable > self._peak_unreleasable_bytes:
            self._peak_unreleasable_bytes = unreleasable
        return block

    def free(self, block: Block) -> None:
        """Free a block of `allocate` and merge it with free neighbours; keep its segment (`free_block`).

        Raises:
            KeyError: The block is not in use.
        """
        self._in_use.remove(block)
        block.allocated = False
        self.allocated_bytes -= block.size_bytes
        pool = block.pool
        was_inactive = 0
        if block.before is not None and not block.before.allocated:
            was_inactive = pool.merge(block, block.before)
        if block.after is not None and not block.after.allocated:
            was_inactive += pool.merge(block, block.after)
        pool.add(block)
        if block.expandable is None:
            if block.before is not None or block.after is not None:
                was_inactive -= block.size_bytes
            self.inactive_split_bytes -= was_inactive
            if self.inactive_split_bytes > self._peak_inactive_split_bytes:
                self._peak_inactive_split_bytes = self.inactive_split_bytes

    def empty_cache(self) -> None:
        """Release all segments that are entirely free (`emptyCache`, `release_cached_blocks`, `release_blocks`)."""
        for block in (*self._large.free_blocks(), *self._small.free_blocks()):
            if block.expandable is not None:
                unmap_free_pages(block, self._card)
            elif not block.is_split:
                self._release(block)

    def releasable(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of each range that `empty_cache` would release now, in its order."""
        pieces = []
        for block in (*self._large.free_blocks(), *self._small.free_blocks()):
            if block.expandable is not None:
                first, end = free_pages(block)
                if first < end:
                    pieces.append((first, end - first))
            elif not block.is_split:
                pieces.append((block.address, block.size_bytes))
        return pieces

    def serves_from_cache(self, size_bytes: int, stream: int = 0) -> bool:
        """Return whether `allocate` would use a cached block now, without new memory."""
        size = block_bytes(size_bytes, self._config)
        pool = (self._small if size <= SMALL_BYTES else self._large)[stream]
        return self._best_fit(pool, size) is not None

    def largest_free_bytes(self, *, is_small: bool | None = None, stream: int | None = None) -> int:
        """Return the size of the largest free block with memory, of one pool and stream if given; 0 if none."""
        pools = [pools for pools in (self._small, self._large) if is_small in (None, pools.is_small)]
        found = [pool for each in pools for pool in each.values() if stream in (None, pool.stream)]
        return max((pool.block_at(-1).size_bytes for pool in found if pool.keys), default=0)

    def hold(self, segment: HeldSegment) -> list[Block]:
        """Adopt a segment whose memory is already taken from the driver; return its blocks in use, by address.

        Peaks do not see it before the next `reset_peaks`. Its free blocks count as free since now.
        """
        pool = (self._small if segment.is_small else self._large)[segment.stream]
        blocks = rebuilt_blocks(segment, pool)
        in_use = [block for block in blocks if block.allocated]
        in_use_bytes = sum(block.size_bytes for block in in_use)
        mapped_bytes = sum(block.size_bytes for block in blocks if block.mapped)
        self._in_use.update(in_use)
        self._card.taken_bytes += mapped_bytes
        self.allocated_bytes += in_use_bytes
        if in_use and segment.page_bytes is None:
            self.inactive_split_bytes += mapped_bytes - in_use_bytes
        return in_use

    def _request(self, size_bytes: int) -> tuple[int, StreamPools, int, int]:
        """Return block size, pools and smallest split rest of a request; kept for the next one of this size."""
        size = block_bytes(size_bytes, self._config)
        pools = self._small if size <= SMALL_BYTES else self._large
        found = size, pools, self._least_rest(size, is_small=pools.is_small), size << SIZE_SHIFT
        self._requests[size_bytes] = found
        return found

    def _best_fit(self, pool: FreeBlocks, size: int) -> int | None:
        """Return the index of the smallest usable free block of at least `size` (`get_free_block`)."""
        index = pool.first_of_at_least(size)
        if index == len(pool.keys):
            return None
        if not self._chooses:
            return index
        if self._config.expandable_segments:
            index = best_fit(pool, index)
        limit = self._config.max_split_bytes
        if limit is not None:
            found = pool.block_at(index).size_bytes
            if size < limit <= found:
                return None
            if size >= limit and found >= size + self._config.max_non_split_rounding_bytes:
                return None
        return index

    def _least_rest(self, size: int, *, is_small: bool) -> int:
        """Return the smallest rest that is split off; less is wasted and counts as allocated (`should_split`)."""
        if is_small or self._config.expandable_segments:
            return MIN_BLOCK_BYTES
        limit = self._config.max_split_bytes
        return SMALL_BYTES + 1 if limit is None or size < limit else _NO_REST

    def _split(self, rest: Block, size: int) -> Block:
        """Split the first `size` bytes off `rest`, whose end stays free (`alloc_found_block`)."""
        was_split = rest.before is not None or rest.after is not None
        block = Block(rest.address, size, rest.pool, rest.expandable, rest.order)
        block.after = rest
        if rest.before is not None:
            block.before, rest.before.after = rest.before, block
        rest.before = block
        rest.address += size
        rest.size_bytes -= size
        rest.pool.add(rest)
        if rest.expandable is None:
            self.inactive_split_bytes += -size if was_split else rest.size_bytes
            if self.inactive_split_bytes > self._peak_inactive_split_bytes:
                self._peak_inactive_split_bytes = self.inactive_split_bytes
        return block

    def _new_memory(self, pool: FreeBlocks, size: int, requested_bytes: int) -> Block:
        """Return a block of new memory; if the card is full, release cached memory first (`malloc`)."""
        if self._collects_garbage:
            self._collect_garbage()
        block = self._grow(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._grow(pool, size)
        if block is None:
            raise OutOfMemoryError(
                requested_bytes=requested_bytes,
                tried_bytes=segment_bytes(size, self._config),
                free_bytes=self._card.free_bytes,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
                retries=self.num_alloc_retries,
            )
        return block

    def _grow(self, pool: FreeBlocks, size: int) -> Block | None:
        """Return a block of new memory, or None if the card has none (`alloc_block`)."""
        segment = segment_bytes(size, self._config)
        if self._allowed_bytes is not None and self.reserved_bytes + segment > self._allowed_bytes:
            return None
        if self._config.expandable_segments:
            page = SMALL_SEGMENT_BYTES if pool.is_small else self._config.large_segment_bytes
            return grown_block(pool, size, page_bytes=page, card=self._card)
        address = self._card.take_segment(segment)
        if address is None:
            return None
        return Block(address, segment, pool, order=self._card.order_of_new_segment())

    def _release_oversize(self, pool: FreeBlocks, size: int) -> bool:
        """Release unsplittable blocks (`release_available_cached_blocks`); return whether they suffice."""
        limit = self._config.max_split_bytes
        if limit is None or self._config.expandable_segments:
            return False
        wanted = max(size, limit)
        blocks = oversize_blocks(pool, wanted, limit)
        for block in blocks:
            self._release(block)
        return sum(block.size_bytes for block in blocks) >= wanted

    def _collect_garbage(self) -> None:
        """Release old segments when reserved memory nears the limit (`garbage_collect_cached_blocks`)."""
        assert self._allowed_bytes is not None  # see `_collects_garbage`
        threshold = int(self._config.garbage_collection_threshold * self._allowed_bytes)
        for block in old_blocks(self._large, self.reserved_bytes - threshold):
            self._release(block)

    def _release(self, block: Block) -> None:
        """Release a free segment to the driver (`release_block`)."""
        block.pool.remove(block)
        self._card.give_segment_back(block.address, block.size_bytes)


def _allowed_bytes(config: AllocatorConfig, total_bytes: int | None) -> int | None:
    """Return the limit set by a share of the card, or None (`setMemoryFraction`: only below 1)."""
    if total_bytes is None or config.per_process_memory_fraction >= 1:
        return None
    return int(config.per_process_memory_fraction * total_bytes)


def _stretch(head: Block) -> Iterator[Block]:
    block: Block | None = head
    while block is not None and block.mapped:
        yield block
        block = block.after
