"""Replay of a run piece by piece: the allocator's state is carried on, and each step has its peaks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.refusal import OutOfMemoryError, Refusal
from profiler.allocator.settings import AllocatorConfig
from profiler.allocator.traces.trace import Trace
from profiler.domain.memory import Phase


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some events of a run, in their order."""

    events: Sequence[int]
    """As `Trace.events`, with the numbers that the blocks have in the run."""
    first_block: int
    sizes_bytes: Sequence[int]
    """Of each block that the piece allocates, from `first_block` on."""
    phases: Sequence[tuple[int, Phase]]
    """Where phases begin, as indices of `events`; the first entry is the phase in which the piece begins."""
    cache_emptied: Sequence[int] = ()
    """Indices of events before which the program empties the cache, ascending."""
    streams: Mapping[int, int] = field(default_factory=dict)
    """Streams of blocks that are not on the default one, by number counted from `first_block`."""


def piece_of(trace: Trace, first: int, end: int, *, first_block: int) -> Piece:
    """Return the events of a trace from `first` to before `end`; blocks before `first_block` were made earlier."""
    begun = [phase for at, phase in trace.phase_starts if at <= first]
    within = [(at - first, phase) for at, phase in trace.phase_starts if first < at < end]
    return Piece(
        events=trace.events[first:end],
        first_block=first_block,
        sizes_bytes=trace.sizes_bytes[first_block:],
        phases=[(0, begun[-1] if begun else Phase.LOAD), *within],
        cache_emptied=[at - first for at in trace.cache_emptied if first <= at < end],
        streams={block - first_block: stream for block, stream in trace.streams.items() if block >= first_block},
    )


@dataclass(frozen=True, kw_only=True)
class StepPeaks:
    """Counters of one optimizer step, in bytes."""

    allocated_bytes: int
    """Peak of what tensors take."""
    reserved_bytes: int
    """Peak of what torch has taken from the driver."""
    reserved_after_bytes: int
    allocated_after_bytes: int
    inactive_split_after_bytes: int
    """Free parts of segments that cannot be given back."""
    phase: Phase
    """The phase of the allocated peak."""
    num_alloc_retries: int
    """How often the whole cache was given back, since the start of the program."""


class RefusedError(Exception):
    """A request was refused; `refusal` says which, and `piece` is the number of its piece in the step."""

    def __init__(self, refusal: Refusal, piece: int) -> None:
        super().__init__(f"{refusal.requested_bytes} bytes were refused")
        self.refusal = refusal
        self.piece = piece


class StepReplay:
    """The allocator of a card during a run."""

    def __init__(self, *, capacity_bytes: int | None, config: AllocatorConfig) -> None:
        """Begin with nothing allocated; the arguments are those of `CachingAllocator`."""
        self._allocator = CachingAllocator(capacity_bytes=capacity_bytes, config=config)
        self._blocks: dict[int, Block] = {}

    def step(self, pieces: Iterable[Piece]) -> StepPeaks:
        """Replay the pieces of a step; return its peaks, which include the level at its beginning.

        Raises:
            RefusedError: The card has too little memory.
        """
        allocator = self._allocator
        allocator.reset_peaks()
        peak_bytes, peak_phase = -1, Phase.LOAD
        for number, piece in enumerate(pieces):
            for phase, first, end in _spans(piece):
                try:
                    self._events(piece, first, end)
                except OutOfMemoryError as error:
                    raise RefusedError(Refusal.of(phase, error), number) from error
                if allocator.peak_allocated_bytes > peak_bytes:
                    peak_bytes, peak_phase = allocator.peak_allocated_bytes, phase
        stats = allocator.stats()
        return StepPeaks(
            allocated_bytes=stats.peak_allocated_bytes,
            reserved_bytes=stats.peak_reserved_bytes,
            reserved_after_bytes=stats.reserved_bytes,
            allocated_after_bytes=stats.allocated_bytes,
            inactive_split_after_bytes=stats.inactive_split_bytes,
            phase=peak_phase,
            num_alloc_retries=stats.num_alloc_retries,
        )

    def _events(self, piece: Piece, first: int, end: int) -> None:
        """Inner loop: a step of a large model has 10^5 events."""
        emptied = [at for at in piece.cache_emptied if first <= at < end]
        for at in emptied:
            self._play(piece, first, at)
            self._allocator.empty_cache()
            first = at
        self._play(piece, first, end)

    def _play(self, piece: Piece, first: int, end: int) -> None:
        blocks, sizes, base, streams = self._blocks, piece.sizes_bytes, piece.first_block, piece.streams
        allocate, free, freed = self._allocator.allocate, self._allocator.free, self._blocks.pop
        for event in piece.events[first:end]:
            if event < 0:
                # A block of no bytes was never allocated.
                block = freed(-event - 1, None)
                if block is not None:
                    free(block)
            elif size_bytes := sizes[event - 1 - base]:
                stream = streams.get(event - 1 - base, 0) if streams else 0
                blocks[event - 1] = allocate(size_bytes, stream) if stream else allocate(size_bytes)


def _spans(piece: Piece) -> Iterator[tuple[Phase, int, int]]:
    """Yield (phase, first event, end)."""
    ends = [*(first for first, _ in piece.phases[1:]), len(piece.events)]
    for (first, phase), end in zip(piece.phases, ends, strict=True):
        yield phase, first, end
