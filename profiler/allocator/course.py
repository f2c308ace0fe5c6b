"""The course of a replay: what was held after each entry, and the instants that matter."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from profiler.allocator.caching import CachingAllocator
from profiler.allocator.segment_count import SegmentCount

BEFORE = -1
"""Number of the state before the first entry."""


@dataclass(frozen=True, kw_only=True)
class ReservedPeak:
    """The first instant at which reserved memory was at its highest."""

    entry: int
    """The entry that it follows; `BEFORE`: none."""
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    """The largest cached block of all pools and streams."""
    segments: int
    """As a snapshot counts them: of an expandable segment each stretch with memory is one."""

    @property
    def free_bytes(self) -> int:
        """Reserved and not allocated: fragmentation, and what is kept for reuse."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """A request that the driver refused, with the state when it was refused for good."""

    entry: int
    """`BEFORE`: one of the blocks that the history begins with."""
    requested_bytes: int
    driver_free_bytes: int | None
    """What the driver had left; None: unknown, or a card without limit."""
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    """The largest cached block that the request could have used: of its pool and stream."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A replay, up to the first request that was refused against the record, or all of it."""

    allocated_bytes: Sequence[int]
    """After each entry that took place; in front, before the first. So entry i is at i + 1."""
    reserved_bytes: Sequence[int]
    peak: ReservedPeak
    peak_allocated_bytes: int
    peak_unreleasable_bytes: int
    """The most that could not have been given back to the driver (`AllocatorStats`): with less it cannot run."""
    num_alloc_retries: int
    refusals: tuple[OutOfMemory, ...]
    """In the order of entries."""


@dataclass(kw_only=True)
class CourseBuilder:
    """Collects a course while an allocator runs."""

    allocator: CachingAllocator
    count: SegmentCount
    refusals: list[OutOfMemory] = field(default_factory=list)
    _allocated: "array[int]" = field(default_factory=lambda: array("q"))
    _reserved: "array[int]" = field(default_factory=lambda: array("q"))
    _peak: ReservedPeak | None = None

    def note(self, entry: int) -> None:
        """Entry number `entry` took place; `BEFORE` comes first."""
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
        """What was given back after the last entry belongs to it."""
        self._reserved[-1] = self.allocator.reserved_bytes

    def finished(self) -> Course:
        """The course so far; `BEFORE` was noted."""
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
