"""An allocator that keeps every counter of `torch.cuda.memory_stats`.

Source: c10/cuda/CUDACachingAllocator.cpp (`alloc_found_block`, `free_block`, `alloc_block`, `release_block`,
`map_block`, `unmap_block`) and `THCPModule_memoryStats` (torch/csrc/cuda/Module.cpp).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import CardMemory, OutOfMemoryError
from profiler.allocator.settings import SMALL_BYTES, AllocatorConfig, block_bytes

_BY_POOL = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_OVERSIZE = ("oversize_allocations", "oversize_segments")


class Level:
    """One counter: its level now, its peak, and what was added and taken away in all (`Stat`, c10/core/Allocator.h)."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, amount: int) -> None:
        """Add `amount`, or take it away if it is negative."""
        self.current += amount
        if amount < 0:
            self.freed -= amount
            return
        self.allocated += amount
        if self.current > self.peak:
            self.peak = self.current

    def as_dict(self) -> dict[str, int]:
        """Return the values by torch's names."""
        return {name: getattr(self, name) for name in ("current", "peak", "allocated", "freed")}


class PoolLevels:
    """One counter for both pools together and for each of them (`StatArray`)."""

    __slots__ = ("all", "large", "small")

    def __init__(self) -> None:
        self.all, self.large, self.small = Level(), Level(), Level()

    def change(self, amount: int, *, is_small: bool) -> None:
        """Change the counter of a pool, and of both."""
        self.all.change(amount)
        (self.small if is_small else self.large).change(amount)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the values by torch's names."""
        return {"all": self.all.as_dict(), "large_pool": self.large.as_dict(), "small_pool": self.small.as_dict()}

    def levels(self) -> Iterable[Level]:
        """Return all three counters."""
        return self.all, self.large, self.small


class _Counted:
    """The counters that allocator and driver share."""

    def __init__(self, max_split_bytes: int | None) -> None:
        self.by_pool: Mapping[str, PoolLevels] = {name: PoolLevels() for name in _BY_POOL}
        self.oversize: Mapping[str, Level] = {name: Level() for name in _OVERSIZE}
        self.device_allocations = self.device_frees = 0
        self._max_split_bytes = max_split_bytes

    def change_oversize(self, name: str, size_bytes: int, amount: int) -> None:
        """Count a block or a segment that is too large to be split."""
        if self._max_split_bytes is not None and size_bytes >= self._max_split_bytes:
            self.oversize[name].change(amount)

    def levels(self) -> Iterable[Level]:
        """Return every counter."""
        yield from self.oversize.values()
        for each in self.by_pool.values():
            yield from each.levels()


class _CountingCard(CardMemory):
    """A driver that counts what each pool takes."""

    def __init__(self, *, capacity_bytes: int | None, counted: _Counted) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.is_small = False
        """Pool of the current request."""
        self._counted = counted
        self._pools: list[tuple[int, bool]] = []
        """(first address, whether the small pool's) of each reservation; addresses ascend."""

    def reserve_addresses(self, size_bytes: int) -> int:
        address = super().reserve_addresses(size_bytes)
        self._pools.append((address, self.is_small))
        return address

    def take_segment(self, size_bytes: int) -> int | None:
        address = super().take_segment(size_bytes)
        if address is not None:
            self._change(address, size_bytes, segments=1)
        return address

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        super().give_segment_back(address, size_bytes)
        self._change(address, -size_bytes, segments=-1)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self._change(address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        super().unmap_pages(address, size_bytes)
        self._change(address, -size_bytes)

    def _change(self, address: int, size_bytes: int, segments: int = 0) -> None:
        counted = self._counted
        is_small = self._pools[bisect_right(self._pools, address, key=lambda each: each[0]) - 1][1]
        counted.by_pool["reserved_bytes"].change(size_bytes, is_small=is_small)
        if segments:
            counted.by_pool["segment"].change(segments, is_small=is_small)
            counted.change_oversize("oversize_segments", abs(size_bytes), segments)
        if size_bytes > 0:
            counted.device_allocations += 1
        else:
            counted.device_frees += 1


class CountingAllocator(CachingAllocator):
    """A caching allocator with all counters of torch."""

    def __init__(self, *, capacity_bytes: int | None, config: AllocatorConfig, total_bytes: int | None = None) -> None:
        """Create an empty allocator; the arguments are those of `CachingAllocator`."""
        self._counted = _Counted(config.max_split_bytes)
        self._counting_card = _CountingCard(capacity_bytes=capacity_bytes, counted=self._counted)
        super().__init__(
            capacity_bytes=capacity_bytes,
            config=config,
            total_bytes=capacity_bytes if total_bytes is None else total_bytes,
            card=self._counting_card,
        )
        self._splits = self._refusals = self._emptied = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        """Return a block, as `CachingAllocator.allocate` does."""
        self._counting_card.is_small = block_bytes(size_bytes, self._config) <= SMALL_BYTES
        inactive, splits = self.inactive_split_bytes, self._splits
        try:
            block = super().allocate(size_bytes, stream)
        except OutOfMemoryError:
            self._refusals += 1
            raise
        change = self.inactive_split_bytes - inactive
        if self._splits > splits:
            # A whole segment leaves a rest behind; the rest of a split one shrinks.
            self._change_inactive(block, change, blocks=1 if change > 0 else 0)
        else:
            self._change_inactive(block, change, blocks=-1 if change < 0 else 0)
        self._change_active(block, 1)
        return block

    def free(self, block: Block) -> None:
        """Free a block, as `CachingAllocator.free` does."""
        self._change_active(block, -1)
        inactive, merged = self.inactive_split_bytes, sum(_merges(block, each) for each in (block.before, block.after))
        super().free(block)
        if block.expandable is None:
            change = self.inactive_split_bytes - inactive
            self._change_inactive(block, change, blocks=int(block.is_split) - merged)

    def empty_cache(self) -> None:
        """Release all segments that are entirely free."""
        self._emptied += 1
        super().empty_cache()

    def reset_peaks(self) -> None:
        """Set the peaks to the current values."""
        super().reset_peaks()
        for level in self._counted.levels():
            level.peak = level.current

    def reset_accumulated(self) -> None:
        """Forget what was added and taken away (`torch.cuda.reset_accumulated_memory_stats`)."""
        for level in self._counted.levels():
            level.allocated = level.freed = 0
        self._counted.device_allocations = self._counted.device_frees = 0
        self.num_alloc_retries = self._refusals = self._emptied = 0

    def torch_stats(self) -> dict[str, Any]:
        """Return the counters as `torch.cuda.memory_stats_as_nested_dict` does."""
        limit, counted = self._config.max_split_bytes, self._counted
        return {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self._refusals,
            "max_split_size": -1 if limit is None else limit,
            "num_sync_all_streams": self._emptied,
            "num_device_alloc": counted.device_allocations,
            "num_device_free": counted.device_frees,
            "num_oom_rejections": 0,
            **{name: levels.as_dict() for name, levels in counted.by_pool.items()},
            "reserved_bytes_by_private_pools": {},
            **{name: level.as_dict() for name, level in counted.oversize.items()},
        }

    def _split(self, rest: Block, size: int) -> Block:
        self._splits += 1
        return super()._split(rest, size)

    def _change_active(self, block: Block, amount: int) -> None:
        is_small, by_pool = block.pool.is_small, self._counted.by_pool
        for name in ("allocation", "active"):
            by_pool[name].change(amount, is_small=is_small)
        for name in ("allocated_bytes", "active_bytes"):
            by_pool[name].change(amount * block.size_bytes, is_small=is_small)
        by_pool["requested_bytes"].change(amount * block.requested_bytes, is_small=is_small)
        self._counted.change_oversize("oversize_allocations", block.size_bytes, amount)

    def _change_inactive(self, block: Block, size_bytes: int, blocks: int) -> None:
        is_small, by_pool = block.pool.is_small, self._counted.by_pool
        by_pool["inactive_split_bytes"].change(size_bytes, is_small=is_small)
        by_pool["inactive_split"].change(blocks, is_small=is_small)


def _merges(block: Block, neighbour: Block | None) -> bool:
    """Return whether `neighbour` becomes part of `block` when that is freed (`FreeBlocks.merge`)."""
    return neighbour is not None and not neighbour.allocated and neighbour.mapped == block.mapped
