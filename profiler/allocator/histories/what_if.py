"""A recorded program under other conditions, and the answer to the question about them.

A recorded program under other conditions: other settings of the allocator, or another card.

The history contains the requests of the program, their streams, its frees and its calls of `empty_cache()`. They are
replayed through a new allocator, which creates its own segments.

The replay begins with the blocks that were in use before the first entry, requested by address: their order is not
recorded. Memory that was only cached at that instant is not recreated.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.histories.course import BEFORE, CountedCard, Course, CourseBuilder, OutOfMemory
from profiler.allocator.histories.history import Action, Entry, RecordedHistory
from profiler.allocator.histories.recorded import HeldLines, RecordedComparison, held_lines, replay_history
from profiler.allocator.model.blocks import Block, BlockState
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import OutOfMemoryError
from profiler.allocator.settings import SMALL_BYTES, AllocatorConfig, block_bytes
from profiler.domain.cards.gpu import Gpu

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


SUGGESTED = "expandable_segments:True"
"""The setting that is tried by default: PyTorch's own message recommends it against fragmentation."""


class CapacitySource(StrEnum):
    """How the memory that the process could take is known."""

    GPU = "gpu"
    """Memory of a named card without the assumed CUDA context."""
    OOM = "oom"
    """Reserved memory plus the driver's free memory at an out-of-memory error."""
    FULL = "full"
    """A request made the allocator release memory, so the card was full: the most that was ever reserved."""
    UNKNOWN = "unknown"
    """The history does not show it: a card without limit."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Memory that a process can take from the driver."""

    size_bytes: int | None
    """Lower bound; None: no limit."""
    source: CapacitySource
    most_bytes: int | None = None
    """Upper bound if it differs; `FULL` only."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The conditions to try."""

    alloc_conf: str | None = None
    """Text of PYTORCH_ALLOC_CONF that replaces all recorded settings; None: the recorded ones."""
    gpu: Gpu | None = None
    """None: the card of the recording."""

    @property
    def is_empty(self) -> bool:
        """Whether no condition is given, so that `SUGGESTED` is tried."""
        return self.alloc_conf is None and self.gpu is None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Result of the program under one set of conditions."""

    config: AllocatorConfig
    gpu: Gpu | None
    capacity: Capacity
    result: WhatIf
    might_fit: bool
    """Whether it fits into the upper bound (`Capacity.most_bytes`)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A history, its replay, and the scenarios that were tried."""

    history: RecordedHistory
    comparison: RecordedComparison
    question: Question
    anew: Scenario | None
    """With the recorded settings, begun with the blocks in use only; None where the recording begins empty.

    What a setting changes shows against this: beginning without cached memory makes a difference of its own.
    """
    held: HeldLines | None
    """Which lines of code hold the memory; None where the entries contradict each other."""
    after: Scenario | None
    """What was asked, or suggested; None where the entries contradict each other, or nothing is left to suggest."""


def answer(history: RecordedHistory, question: Question) -> Answer:
    """Replay a history and try the conditions of the question.

    Raises:
        UsageError: `alloc_conf` is wrong, or the history has private pools, which the model does not have.
    """
    comparison = replay_history(history)
    capacity = recorded_capacity(comparison)
    config = history.config if question.alloc_conf is None else parse_alloc_conf(question.alloc_conf)
    if question.is_empty:
        config = replace(config, expandable_segments=True)
    is_new = config != history.config or question.gpu is not None
    after = anew = None
    if comparison.is_consistent and (is_new or not question.is_empty):
        after = _tried(history, comparison, config=config, gpu=question.gpu, recorded=capacity)
    if comparison.is_consistent and comparison.first.segments:
        anew = _tried(history, comparison, config=history.config, gpu=None, recorded=capacity)
    held = held_lines(history, comparison) if comparison.is_consistent else None
    return Answer(history=history, comparison=comparison, question=question, anew=anew, held=held, after=after)


def recorded_capacity(comparison: RecordedComparison) -> Capacity:
    """Return the known capacity of the recorded card."""
    for refusal in comparison.course.refusals:
        if refusal.driver_free_bytes is not None:
            return Capacity(size_bytes=refusal.reserved_bytes + refusal.driver_free_bytes, source=CapacitySource.OOM)
    if comparison.course.num_alloc_retries:
        held, refused = comparison.recorded_peak_reserved_bytes, comparison.refused_bytes
        # A refusal below the reserved memory was caused by other programs on the card.
        most = None if refused is None or refused <= held else refused - 1
        return Capacity(size_bytes=held, source=CapacitySource.FULL, most_bytes=most)
    return Capacity(size_bytes=None, source=CapacitySource.UNKNOWN)


def _tried(
    history: RecordedHistory,
    comparison: RecordedComparison,
    *,
    config: AllocatorConfig,
    gpu: Gpu | None,
    recorded: Capacity,
) -> Scenario:
    capacity, total_bytes = recorded, None
    if gpu is not None:
        capacity = Capacity(size_bytes=gpu.usable_bytes, source=CapacitySource.GPU)
        total_bytes = gpu.memory_bytes

    def run(capacity_bytes: int | None) -> WhatIf:
        return what_if(history, comparison, config=config, capacity_bytes=capacity_bytes, total_bytes=total_bytes)

    result = run(capacity.size_bytes)
    might_fit = result.fits or (capacity.most_bytes is not None and run(capacity.most_bytes).fits)
    return Scenario(config=config, gpu=gpu, capacity=capacity, result=result, might_fit=might_fit)
