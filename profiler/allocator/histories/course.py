"""The course of a replay: memory and number of segments after each entry, and its peaks."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import CardMemory


class SegmentCount:
    """Number of segments, updated by each event of the driver."""

    def __init__(self) -> None:
        self._ordinary = 0
        self._begins: set[int] = set()
        """Ends of contiguous mapped ranges."""
        self._ends: set[int] = set()

    @property
    def segments(self) -> int:
        """Number of ordinary segments and of contiguous ranges of expandable ones."""
        return self._ordinary + len(self._begins)

    def add_segments(self, number: int) -> None:
        """Add ordinary segments; a negative number removes them."""
        self._ordinary += number

    def add_pages(self, address: int, size_bytes: int) -> None:
        """Add mapped pages: a new range, or part of adjacent ranges."""
        _toggle(self._begins, self._ends, address)
        _toggle(self._ends, self._begins, address + size_bytes)

    def remove_pages(self, address: int, size_bytes: int) -> None:
        """Remove mapped pages; a range around them is split."""
        _toggle(self._ends, self._begins, address)
        _toggle(self._begins, self._ends, address + size_bytes)


def _toggle(one: set[int], other: set[int], address: int) -> None:
    """Remove an end that touches another range; otherwise add it."""
    if address in other:
        other.remove(address)
    else:
        one.add(address)


class CountedCard(CardMemory):
    """A driver that counts segments."""

    def __init__(self, *, capacity_bytes: int | None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.count = SegmentCount()

    def take_segment(self, size_bytes: int) -> int | None:
        """Return the address of new memory, or None."""
        address = super().take_segment(size_bytes)
        self.count.add_segments(0 if address is None else 1)
        return address

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        """Release a segment."""
        super().give_segment_back(address, size_bytes)
        self.count.add_segments(-1)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """Return whether there was memory."""
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self.count.add_pages(address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        """Unmap pages."""
        super().unmap_pages(address, size_bytes)
        self.count.remove_pages(address, size_bytes)


BEFORE = -1
"""Number of the state before the first entry."""


@dataclass(frozen=True, kw_only=True)
class ReservedPeak:
    """The first instant of the peak of reserved memory."""

    entry: int
    """The entry before it; `BEFORE`: none."""
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    """The largest cached block of all pools and streams."""
    segments: int
    """Counted as in a snapshot: each contiguous mapped range of an expandable segment is one."""

    @property
    def free_bytes(self) -> int:
        """Reserved and not allocated: fragmentation, and memory cached for reuse."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """A request that was finally refused, with the state at that instant."""

    entry: int
    """`BEFORE`: one of the blocks in use before the first entry."""
    requested_bytes: int
    driver_free_bytes: int | None
    """Free memory of the driver; None: unknown, or a card without limit."""
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    """The largest cached block of the request's pool and stream."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A replay up to the first refusal of a request that succeeded in the recording, or all of it."""

    allocated_bytes: Sequence[int]
    """Before the first entry, then after each replayed entry: entry i is at index i + 1."""
    reserved_bytes: Sequence[int]
    peak: ReservedPeak
    peak_allocated_bytes: int
    peak_unreleasable_bytes: int
    """Peak of memory that could not be released to the driver (`AllocatorStats`): the least it can run with."""
    num_alloc_retries: int
    refusals: tuple[OutOfMemory, ...]
    """Ordered by entry."""


def reduced(levels: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Return at most `most` + 1 points of a course: where each part begins, and the highest level in it.

    The last point is the end of the last part, with the last level. By hand, at most two parts of (0, 3, 1, 2) are
    ([0, 2, 4], [3, 2, 2]).
    """
    parts = min(len(levels), most)
    starts = [number * len(levels) // parts for number in range(parts)]
    highest = [max(levels[start:end]) for start, end in pairwise([*starts, len(levels)])]
    return [*starts, len(levels)], [*highest, levels[-1]]


@dataclass(kw_only=True)
class CourseBuilder:
    """Builder of a course while an allocator runs."""

    allocator: CachingAllocator
    count: SegmentCount
    refusals: list[OutOfMemory] = field(default_factory=list)
    _allocated: "array[int]" = field(default_factory=lambda: array("q"))
    _reserved: "array[int]" = field(default_factory=lambda: array("q"))
    _peak: ReservedPeak | None = None

    def note(self, entry: int) -> None:
        """Record the state after entry number `entry`; start with `BEFORE`."""
        allocated, reserved = self.allocator.allocated_bytes, self.allocator.reserved_bytes
        self._allocated.append(allocated)
        self._reserved.append(reserved)
        if self._peak is None or reserved > self._peak.reserved_bytes:
            self._peak = ReservedPeak(
                entry=entry,
                reserved_bytes=reserved,
                allocated_bytes=allocated,
                largest_free_bytes=self.allocator.largest_free_bytes(),
                segments=self.count.segments,
            )

    def note_end(self) -> None:
        """Add memory released after the last entry to that entry."""
        self._reserved[-1] = self.allocator.reserved_bytes

    def finished(self) -> Course:
        """Return the course so far; `BEFORE` has been noted."""
        assert self._peak is not None  # `note` sets it
        stats = self.allocator.stats()
        return Course(
            allocated_bytes=self._allocated,
            reserved_bytes=self._reserved,
            peak=self._peak,
            peak_allocated_bytes=max(self._allocated),
            peak_unreleasable_bytes=stats.peak_unreleasable_bytes,
            num_alloc_retries=stats.num_alloc_retries,
            refusals=tuple(self.refusals),
        )
