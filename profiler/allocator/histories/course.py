"""The course of a replay: memory after each entry, and its peaks."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from profiler.allocator.histories.segment_count import SegmentCount
from profiler.allocator.model.caching import CachingAllocator

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
