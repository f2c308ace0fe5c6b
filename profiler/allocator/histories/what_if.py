"""A recorded program under other conditions: other settings of the allocator, or another card.

The history contains the requests of the program, their streams, its frees and its calls of `empty_cache()`. They are
replayed through a new allocator, which creates its own segments.

The replay begins with the blocks that were in use before the first entry, requested by address: their order is not
recorded. Memory that was only cached at that instant is not recreated.
"""

from dataclasses import dataclass

from profiler.allocator.histories.course import BEFORE, CountedCard, Course, CourseBuilder, OutOfMemory
from profiler.allocator.histories.history import Action, Entry, RecordedHistory
from profiler.allocator.histories.recorded import RecordedComparison
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.held import BlockState
from profiler.allocator.refusals.refusal import OutOfMemoryError
from profiler.allocator.settings.config import AllocatorConfig
from profiler.allocator.settings.sizes import SMALL_BYTES, block_bytes

_REFUSED_AT = -1
"""Placeholder address of a block whose request was refused in the recording."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Result of the program under other conditions."""

    course: Course
    """The course up to `refused`, or all of it. Its refusals are requests that were also refused in the recording."""
    refused: OutOfMemory | None
    """The first request that succeeded in the recording and is refused here: the program ends."""
    served: tuple[int, ...]
    """Entries of requests that were refused in the recording and succeed here."""

    @property
    def fits(self) -> bool:
        """Whether every request succeeded, including those that were refused in the recording."""
        return self.refused is None and not self.course.refusals


def what_if(
    history: RecordedHistory,
    comparison: RecordedComparison,
    *,
    config: AllocatorConfig,
    capacity_bytes: int | None,
    total_bytes: int | None = None,
) -> WhatIf:
    """Replay a program through a new allocator.

    Args:
        history: The recording.
        comparison: Its replay, with the first state and the calls of `empty_cache()`.
        config: The settings of the allocator.
        capacity_bytes: Memory that the process can take, without its context; None: unlimited.
        total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
    """
    run = _Run(config=config, capacity_bytes=capacity_bytes, total_bytes=total_bytes)
    refused = run.begin(comparison) or run.feed(history, comparison)
    return WhatIf(course=run.course.finished(), refused=refused, served=tuple(run.served))


class _Run:
    """State of a program in another allocator."""

    def __init__(self, *, config: AllocatorConfig, capacity_bytes: int | None, total_bytes: int | None) -> None:
        self.served: list[int] = []
        self._config = config
        self._card = CountedCard(capacity_bytes=capacity_bytes)
        self._allocator = CachingAllocator(
            capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes, card=self._card
        )
        self.course = CourseBuilder(allocator=self._allocator, count=self._card.count)
        self._at: dict[int, Block] = {}
        """Blocks in use, by their address in the recording."""

    def begin(self, comparison: RecordedComparison) -> OutOfMemory | None:
        """Request the blocks in use before the first replayed entry; return the first refusal."""
        refused = None
        for segment in comparison.first.segments:
            for held in segment.blocks:
                if held.state is BlockState.IN_USE and refused is None:
                    refused = self._request(BEFORE, held.address, held.requested_bytes, segment.stream)
        self.course.note(BEFORE)
        for index in range(comparison.unverified_entries):
            self.course.note(index)
        return refused

    def feed(self, history: RecordedHistory, comparison: RecordedComparison) -> OutOfMemory | None:
        """Replay the entries; return the first refusal of a request that succeeded in the recording."""
        for index in range(comparison.unverified_entries, len(history.entries)):
            if index in comparison.emptied:
                self._allocator.empty_cache()
            refused = self._entry(index, history.entries[index])
            if refused is not None:
                return refused
            self.course.note(index)
            if _REFUSED_AT in self._at:
                # The program continued without this block and never freed it.
                self._allocator.free(self._at.pop(_REFUSED_AT))
        if len(history.entries) in comparison.emptied:
            self._allocator.empty_cache()
            self.course.note_end()
        return None

    def _entry(self, index: int, entry: Entry) -> OutOfMemory | None:
        if entry.action is Action.ALLOC:
            return self._request(index, entry.address, entry.size_bytes, entry.stream)
        if entry.action is Action.FREE_COMPLETED:
            self._allocator.free(self._at.pop(entry.address))
        elif entry.action is Action.OOM:
            refused = self._request(index, _REFUSED_AT, entry.size_bytes, entry.stream)
            if refused is None:
                self.served.append(index)
            else:
                self.course.refusals.append(refused)
        return None

    def _request(self, index: int, address: int, size_bytes: int, stream: int) -> OutOfMemory | None:
        try:
            self._at[address] = self._allocator.allocate(size_bytes, stream)
        except OutOfMemoryError as error:
            is_small = block_bytes(size_bytes, self._config) <= SMALL_BYTES
            return OutOfMemory(
                entry=index,
                requested_bytes=size_bytes,
                driver_free_bytes=error.free_bytes,
                allocated_bytes=error.allocated_bytes,
                reserved_bytes=error.reserved_bytes,
                largest_free_bytes=self._allocator.largest_free_bytes(is_small=is_small, stream=stream),
            )
        return None
