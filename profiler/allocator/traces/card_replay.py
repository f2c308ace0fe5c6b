"""Replay on a card: PyTorch's counters by phase and category, and the refused allocation.

Of a whole trace; or of a run piece by piece, whose state is carried on and whose steps have peaks of their own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from profiler.allocator.model.blocks import ORDER_SHIFT, SIZE_SHIFT, Block, FreeBlocks
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import AllocatorStats, OutOfMemoryError, Refusal
from profiler.allocator.settings import AllocatorConfig
from profiler.allocator.traces.trace import NOTHING_CLOSED, ClosedRuns, Piece, Trace
from profiler.domain.memory import Category, Phase


@dataclass(frozen=True, kw_only=True)
class StepPeaks:
    """Counters of one optimizer step, in bytes."""

    allocated_bytes: int
    """Peak of what tensors take."""
    reserved_bytes: int
    """Peak of what torch has taken from the driver."""
    reserved_after_bytes: int
    inactive_split_after_bytes: int
    """Free parts of segments that cannot be given back."""
    phase: Phase
    """The phase of the allocated peak."""


class RefusedError(Exception):
    """A request was refused; `refusal` says which, and `piece` is the number of its piece in the step."""

    def __init__(self, refusal: Refusal, piece: int) -> None:
        super().__init__(f"{refusal.requested_bytes} bytes were refused")
        self.refusal = refusal
        self.piece = piece


class StepReplay:
    """The allocator of a card during a run."""

    def __init__(self, *, capacity_bytes: int | None, config: AllocatorConfig, total_bytes: int | None = None) -> None:
        """Begin with nothing allocated; the arguments are those of `CachingAllocator`."""
        self._allocator = CachingAllocator(capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes)
        self._blocks: dict[int, Block] = {}
        self._sizes: list[int] = []

    def step(self, pieces: Iterable[Piece]) -> StepPeaks:
        """Replay the pieces of a step; return its peaks, which include the level at its beginning.

        Raises:
            RefusedError: The card has too little memory.
        """
        allocator = self._allocator
        allocator.reset_peaks()
        peak_bytes, peak_phase = -1, Phase.LOAD
        for number, piece in enumerate(pieces):
            self._begin(piece)
            for phase, first, end in phase_spans(piece.phases, len(piece.events)):
                try:
                    self._events(piece, first, end)
                except OutOfMemoryError as error:
                    raise RefusedError(_refusal(phase, error), number) from error
                if allocator.peak_allocated_bytes > peak_bytes:
                    peak_bytes, peak_phase = allocator.peak_allocated_bytes, phase
        stats = allocator.stats()
        return StepPeaks(
            allocated_bytes=stats.peak_allocated_bytes,
            reserved_bytes=stats.peak_reserved_bytes,
            reserved_after_bytes=stats.reserved_bytes,
            inactive_split_after_bytes=stats.inactive_split_bytes,
            phase=peak_phase,
        )

    def stats(self) -> AllocatorStats:
        """Return the counters after the last step, with its peaks."""
        return self._allocator.stats()

    def _begin(self, piece: Piece) -> None:
        # To read one number of an array takes longer than to allocate its block.
        self._sizes = list(piece.sizes_bytes)

    def _events(self, piece: Piece, first: int, end: int) -> None:
        for at in [at for at in piece.cache_emptied if first <= at < end or at == end == len(piece.events)]:
            self._play(piece, first, at)
            self._allocator.empty_cache()
            first = at
        self._play(piece, first, end)

    def _play(self, piece: Piece, first: int, end: int) -> None:
        """Inner loop: a step of a large model has 10^5 events."""
        blocks, sizes, base, streams = self._blocks, self._sizes, piece.first_block, piece.streams
        allocate, free, freed = self._allocator.allocate, self._allocator.free, self._blocks.pop
        for event in piece.events[first:end]:
            if event < 0:
                # A block of no bytes was never allocated.
                if (block := freed(-event - 1, None)) is not None:
                    free(block)
            elif size_bytes := sizes[event - 1 - base]:
                stream = streams.get(event - 1 - base, 0) if streams else 0
                blocks[event - 1] = allocate(size_bytes, stream) if stream else allocate(size_bytes)


@dataclass(frozen=True, kw_only=True)
class PhaseMemory:
    """Peaks during a phase, including the level at its beginning."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class CardReplay:
    """Result of a replay up to the refused allocation, or of the whole trace. Sizes in bytes."""

    peak_allocated_bytes: int
    """Sum of the sizes of the blocks in use, as `torch.cuda.max_memory_allocated` counts it."""
    peak_reserved_bytes: int
    """As `torch.cuda.max_memory_reserved`. Depends on the capacity: a full card makes it release."""
    peak_phase: Phase
    """The phase of the first instant of the allocated peak."""
    phases: Mapping[Phase, PhaseMemory]
    """Peaks of each phase, in the order in which the phases first began."""
    breakdown: Mapping[Category, int]
    """By category at the first instant of the allocated peak; sums to it. Wasted bytes are included."""
    live_bytes: Mapping[int, int]
    """Block of the trace -> its bytes on the card at that instant."""
    peak_event: int
    """The event of that instant; -1 if nothing was allocated."""
    peak_inactive_split_bytes: int
    peak_unreleasable_bytes: int
    """Maximum of memory that could not be released to the driver (`AllocatorStats`)."""
    num_alloc_retries: int
    """How often the whole cache was released because the card was full."""
    events_reached: int
    """Number of replayed events: the index of the refused one, or all."""
    refusal: Refusal | None


def replay_on_card(
    trace: Trace,
    *,
    capacity_bytes: int | None,
    config: AllocatorConfig,
    total_bytes: int | None = None,
    closed: ClosedRuns = NOTHING_CLOSED,
) -> CardReplay:
    """Replay `trace` through the caching allocator.

    Args:
        trace: Allocations and frees; a block of 0 bytes takes nothing, as in `NativeCachingAllocator::allocate`.
        capacity_bytes: What the process can take from the driver, so without its context; None: unlimited.
        config: The allocator's settings.
        total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
        closed: Ranges of events that need not be replayed each time (`traces/replay.py` finds them). They change how
            long it takes, and nothing else.

    Raises:
        ValueError: The trace has no events.
    """
    allocator = CachingAllocator(capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes)
    closed = closed if allocator.takes_the_smallest else NOTHING_CLOSED
    return CardRun(trace=trace, allocator=allocator, closed=closed).whole()


def phase_spans(starts: Sequence[tuple[int, Phase]], events: int) -> Iterator[tuple[Phase, int, int]]:
    """Yield (phase, first event, end) of each phase; events before the first one belong to it, without any to LOAD."""
    bounds = [0, *(first for first, _ in starts[1:]), events]
    for (_, phase), (first, end) in zip(starts or [(0, Phase.LOAD)], pairwise(bounds), strict=True):
        yield phase, first, end


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passage:
    """A closed run that needed no new memory: what it found, and what it passed through."""

    found: Sequence[tuple[Sequence[int], int, Sequence[int]]]
    """Of each pool that it uses its keys (`FreeBlocks.keys`), the smallest that could serve it, and from there on those
    up to the largest that it took: all that it depends on."""
    rises: tuple[int, int, int]
    """Bytes above the levels at its beginning: allocated, inactive, and both together."""
    highest: int
    """The event of the highest level, counted from its first one."""
    sizes_bytes: Sequence[int]

    def happens_again(self) -> bool:
        """Return whether the free blocks on which it depends are the same now."""
        for keys, low, found in self.found:
            at = bisect_left(keys, low)
            if keys[at : at + len(found)] != found:
                return False
        return True


def _key_of_place(block: Block) -> int:
    """Return the key of the free block that a block was just taken of."""
    rest = block.after
    size_bytes = block.size_bytes + (0 if rest is None or rest.allocated else rest.size_bytes)
    return size_bytes << SIZE_SHIFT | block.order << ORDER_SHIFT | block.address


@dataclass(kw_only=True)
class CardRun:
    """A replay of a trace on a card."""

    trace: Trace
    allocator: CachingAllocator
    closed: ClosedRuns = NOTHING_CLOSED
    passages: dict[int, _Passage] = field(default_factory=dict)
    """The last passage of each kind of closed run."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """Blocks in use, by number."""
    requested: Sequence[int] = field(init=False)
    """Bytes that each block asks for."""
    sizes: list[int] = field(init=False)
    """Bytes of each block so far, others 0: a block in use never changes its size."""
    peak_bytes: int = 0
    peak_event: int = -1
    peak_phase: Phase = Phase.LOAD
    phases: dict[Phase, PhaseMemory] = field(default_factory=dict)
    peak_inactive_split_bytes: int = 0
    peak_unreleasable_bytes: int = 0
    reached: int = 0
    refused: Refusal | None = None

    def __post_init__(self) -> None:
        # To read one number of an array takes longer than to allocate its block.
        self.requested = list(self.trace.sizes_bytes)
        self.sizes = [0] * len(self.requested)

    def whole(self) -> CardReplay:
        """Replay the trace, as `replay_on_card` does."""
        if not self.trace.events:
            raise ValueError("a trace without events has no peak")
        for phase, first, end in phase_spans(self.trace.phase_starts, len(self.trace.events)):
            if self.refused is None:
                self._phase(phase, first, end)
        return self._result()

    def _phase(self, phase: Phase, first: int, end: int) -> None:
        self.allocator.reset_peaks()
        if not self.phases:
            self.peak_phase = phase
        before = self.peak_bytes
        try:
            for start, stop in self._between_emptyings(first, end):
                self.play(start, stop)
        except OutOfMemoryError as error:
            self.refused = _refusal(phase, error)
        if self.peak_bytes > before:
            self.peak_phase = phase
        self._note_peaks(phase)

    def _between_emptyings(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of events between calls of `empty_cache`."""
        for emptied in self.trace.cache_emptied:
            if first <= emptied < end:
                yield first, emptied
                self.allocator.empty_cache()
                first = emptied
        yield first, end

    def play(self, first: int, end: int) -> None:
        """Replay events of one phase, and of closed runs that happen again only their peaks."""
        closed, allocator = self.closed, self.allocator
        for number in range(bisect_left(closed.firsts, first), bisect_left(closed.firsts, end)):
            start, likeness = closed.firsts[number], closed.alike[number]
            if first < start:
                self._events(first, start)
            first = closed.ends[number]
            passage = self.passages.get(likeness)
            if passage is None or not passage.happens_again():
                self._learn(start, first, likeness)
                continue
            top_bytes = allocator.pass_over(*passage.rises)
            if top_bytes > self.peak_bytes:
                self.peak_bytes, self.peak_event = top_bytes, start + passage.highest
                made = self.trace.events[start] - 1
                self.sizes[made : made + len(passage.sizes_bytes)] = passage.sizes_bytes
        self._events(first, end)

    def _learn(self, first: int, end: int, likeness: int) -> None:
        """Replay a closed run; if it needs no new memory, keep what it finds and passes through."""
        allocator, made = self.allocator, self.trace.events[first] - 1
        allocated_bytes, inactive_bytes = allocator.allocated_bytes, allocator.inactive_split_bytes
        memory = allocator.reserved_bytes, allocator.num_alloc_retries
        rises = [(0, 0)]
        bounds: dict[FreeBlocks, tuple[int, int]] = {}
        number = made
        for index in range(first, end):
            self._events(index, index + 1)
            rises.append((allocator.allocated_bytes - allocated_bytes, allocator.inactive_split_bytes - inactive_bytes))
            if self.trace.events[index] > 0:
                block = self.blocks[number]
                place = _key_of_place(block)
                low, high = bounds.get(block.pool, (place, place))
                low = min(low, self.requested[number] << SIZE_SHIFT)
                bounds[block.pool] = low, max(high, place)
                number += 1
        if memory != (allocator.reserved_bytes, allocator.num_alloc_retries):
            return
        tops = [allocated for allocated, _ in rises[1:]]
        self.passages[likeness] = _Passage(
            # It leaves the free blocks as it finds them.
            found=[
                (pool.keys, low, pool.keys[bisect_left(pool.keys, low) : bisect_right(pool.keys, high)])
                for pool, (low, high) in bounds.items()
            ],
            rises=(max(tops), max(each[1] for each in rises), max(map(sum, rises))),
            highest=tops.index(max(tops)),
            sizes_bytes=self.sizes[made:number],
        )

    def _events(self, first: int, end: int) -> None:
        """Inner loop over events; a trial has 10^5 or more."""
        requested, streams = self.requested, self.trace.streams
        blocks, sizes, allocator, peak_bytes = self.blocks, self.sizes, self.allocator, self.peak_bytes
        allocate, free = allocator.allocate, allocator.free
        for index, event in enumerate(self.trace.events[first:end], first):
            if event > 0:
                number = event - 1
                size_bytes = requested[number]
                if not size_bytes:
                    continue
                try:
                    block = allocate(size_bytes, streams.get(number, 0)) if streams else allocate(size_bytes)
                except OutOfMemoryError:
                    self.reached = index
                    raise
                blocks[number] = block
                sizes[number] = block.size_bytes
                if allocator.allocated_bytes > peak_bytes:
                    self.peak_bytes = peak_bytes = allocator.allocated_bytes
                    self.peak_event = index
            elif requested[-event - 1]:
                free(blocks.pop(-event - 1))
        self.reached = end

    def _note_peaks(self, phase: Phase) -> None:
        stats = self.allocator.stats()
        seen = self.phases.get(phase, PhaseMemory(peak_allocated_bytes=0, peak_reserved_bytes=0))
        self.phases[phase] = PhaseMemory(
            peak_allocated_bytes=max(seen.peak_allocated_bytes, stats.peak_allocated_bytes),
            peak_reserved_bytes=max(seen.peak_reserved_bytes, stats.peak_reserved_bytes),
        )
        self.peak_inactive_split_bytes = max(self.peak_inactive_split_bytes, stats.peak_inactive_split_bytes)
        self.peak_unreleasable_bytes = max(self.peak_unreleasable_bytes, stats.peak_unreleasable_bytes)

    def _result(self) -> CardReplay:
        live_bytes = self.live_at_the_peak()
        return CardReplay(
            peak_allocated_bytes=self.peak_bytes,
            peak_reserved_bytes=max(phase.peak_reserved_bytes for phase in self.phases.values()),
            peak_phase=self.peak_phase,
            phases=self.phases,
            breakdown=_by_category(self.trace, live_bytes),
            live_bytes=live_bytes,
            peak_event=self.peak_event,
            peak_inactive_split_bytes=self.peak_inactive_split_bytes,
            peak_unreleasable_bytes=self.peak_unreleasable_bytes,
            num_alloc_retries=self.allocator.stats().num_alloc_retries,
            events_reached=self.reached,
            refusal=self.refused,
        )

    def live_at_the_peak(self) -> dict[int, int]:
        """Return block -> bytes after the event of the peak: of the blocks until then, those that are not freed yet."""
        if self.peak_event < 0:
            return {}
        made, later = self.trace.events[self.peak_event], self.trace.events[self.peak_event + 1 : self.reached]
        freed_later = [-event - 1 for event in later if -made <= event < 0]
        live = sorted([*(block for block in self.blocks if block < made), *freed_later])
        return {block: self.sizes[block] for block in live if self.sizes[block]}


def _by_category(trace: Trace, live_bytes: Mapping[int, int]) -> dict[Category, int]:
    totals: dict[Category, int] = {}
    for block, size_bytes in live_bytes.items():
        category = trace.categories[block]
        totals[category] = totals.get(category, 0) + size_bytes
    return totals


def _refusal(phase: Phase, error: OutOfMemoryError) -> Refusal:
    return Refusal(
        phase=phase,
        requested_bytes=error.requested_bytes,
        tried_bytes=error.tried_bytes,
        free_bytes=error.free_bytes or 0,
        allocated_bytes=error.allocated_bytes,
        reserved_bytes=error.reserved_bytes,
    )
