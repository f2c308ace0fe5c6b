"""Replay traces, and pieces of a run, by compiled code where it was built, otherwise event by event.

The compiled code, `smallest_fit.c`, knows the ordinary case only, in which each request takes the smallest free block
that is large enough; it takes a twentieth of the time. The model decides all that is rare: what is taken from the
driver, and what a full card does. Tests compare both. numpy, which traces need, is imported where one is replayed.
"""

import ctypes
import hashlib
import logging
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import AllocatorStats
from profiler.allocator.settings import MIN_BLOCK_BYTES, SMALL_BYTES, AllocatorConfig
from profiler.allocator.traces.card_replay import CardReplay, CardRun, StepReplay, replay_on_card
from profiler.allocator.traces.trace import Piece, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from profiler.allocator.traces.replay import Repeated, Shortened

SOURCE = Path(__file__).with_name("smallest_fit.c")
BUILD = "python -m maintenance.environments.compiled_replay"
"""Builds the compiled code, in a clone with a C compiler."""


def replays(
    trace: Trace, config: AllocatorConfig, *, capacity_bytes: int, total_bytes: int
) -> tuple[CardReplay, CardReplay]:
    """Return the replays of a trace without a limit and with one; the same object where it is never reached.

    Args:
        trace: Allocations and frees.
        config: The allocator's settings.
        capacity_bytes: What the process can take from the driver, so without its context.
        total_bytes: All memory of the card, for `per_process_memory_fraction`.

    Raises:
        ValueError: The trace has no events.
    """
    from profiler.allocator.traces.replay import closed_runs, shortened

    library, short = compiled(), shortened(trace)
    replay: Callable[..., CardReplay]
    if library is None or not is_known(config, [trace.streams]):
        replay = partial(replay_on_card, trace, config=config, closed=closed_runs(trace))
    elif short is None:
        replay = partial(compiled_replay, library, arrays_of(trace), config=config)
    else:
        replay = partial(shortened_replay, library, trace, short, config=config)
    unlimited = replay(capacity_bytes=None)
    if unlimited.peak_reserved_bytes <= capacity_bytes and config.per_process_memory_fraction == 1.0:
        return unlimited, unlimited
    return unlimited, replay(capacity_bytes=capacity_bytes, total_bytes=total_bytes)


def counters_of(piece: Piece, config: AllocatorConfig) -> AllocatorStats:
    """Return the counters after a piece that begins with nothing, on a card of unlimited memory; without numpy."""
    library = compiled()
    if library is not None and is_known(config, [piece.streams]):
        run: StepReplay = _CompiledPiece(library, config)
    else:
        run = StepReplay(capacity_bytes=None, config=config)
    run.step([piece])
    return run.stats()


def is_known(config: AllocatorConfig, streams: Iterable[Mapping[int, int]]) -> bool:
    """Return whether the compiled code knows all that the settings and the streams of blocks have."""
    takes_the_smallest = CachingAllocator(config=config, capacity_bytes=0).takes_the_smallest
    return takes_the_smallest and max(config.roundup_power2_divisions) <= 1 and not any(streams)


_INT = ctypes.c_int64


class Counters(ctypes.Structure):
    """The first fields of `Allocator` in the compiled code."""

    _names = "allocated peak_allocated inactive peak_inactive peak_unreleasable highest highest_event"
    _fields_ = tuple((name, _INT) for name in _names.split())


class Cycle(ctypes.Structure):
    """A cycle of events that repeats in the compiled code, and where it is."""

    _names = "first end made blocks memory times time at requested growth"
    _fields_ = tuple((name, _INT) for name in _names.split())


Numbers: TypeAlias = Union["array[int]", "npt.NDArray[Any]"]
_SIGNED = ("i", "l", "q")
"""How Python's buffers name the whole numbers of C with a sign."""
_STATE = ctypes.POINTER(Counters)
_BYTES_PER_NUMBER = (4, 8, 8)
"""Of the arrays of `smallest_fit_run`. ctypes takes longer to check them than most runs take."""
_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "smallest_fit_new": (_STATE, (_INT, _INT)),
    "smallest_fit_number_up_to": (ctypes.c_int, (_STATE, _INT)),
    "smallest_fit_delete": (None, (_STATE,)),
    "smallest_fit_run": (_INT, (_STATE, *[ctypes.c_void_p for _ in _BYTES_PER_NUMBER], _INT, _INT)),
    "smallest_fit_repeat": (_INT, (_STATE, *[ctypes.c_void_p for _ in _BYTES_PER_NUMBER], ctypes.POINTER(Cycle))),
    "smallest_fit_add_segment": (ctypes.c_int, (_STATE, _INT, _INT, ctypes.c_int)),
    "smallest_fit_empty_cache": (_INT, (_STATE,)),
}
"""What each function of the compiled code returns and takes."""


@cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled code; None where it was not built from the source as it is now, or on another machine.

    Where it could be built, that is said once per process: a search by simulations takes minutes without it.
    """
    file = library_file()
    if file is None:
        return None
    try:
        return loaded(file)
    except OSError:  # not built, or of another processor or operating system, in a folder that machines share
        if file.exists():
            state = "was built for another machine"
        else:
            state = "is older than its source" if [*file.parent.glob(f"{SOURCE.stem}-*.so")] else "is not built"
        text = "The compiled replay %s, so replays run in Python, which takes up to 20 times longer. Build it: %s"
        logging.getLogger(__name__).warning(text, state, BUILD)
        return None


def library_file() -> Path | None:
    """Return the file of the compiled code, which its name binds to the source; None without the source."""
    if not SOURCE.exists():
        return None
    return SOURCE.with_name(f"{SOURCE.stem}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so")


def loaded(file: Path) -> ctypes.CDLL:
    """Return the compiled code of a file."""
    library = ctypes.CDLL(str(file))
    for name, (returned, taken) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, taken
    return library


class CompiledAllocator(CachingAllocator):
    """An allocator whose blocks are those of the compiled code."""

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        capacity_bytes: int | None,
        config: AllocatorConfig,
        total_bytes: int | None = None,
    ) -> None:
        super().__init__(capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes)
        self._library = library
        self._state = library.smallest_fit_new(MIN_BLOCK_BYTES, SMALL_BYTES)
        if not self._state:
            raise MemoryError
        self._arrays: tuple[Numbers, ...] = ()
        self._addresses: tuple[int, ...] = ()

    def __del__(self) -> None:
        self._library.smallest_fit_delete(self._state)

    def run(self, first: int, end: int, *arrays: Numbers) -> tuple[int, Counters]:
        """Replay arrays of C up to what needs new memory; return that event or `end`, and the counters."""
        return self._run(self._library.smallest_fit_run, (first, end), arrays)

    def repeat(self, cycle: Cycle, *arrays: Numbers) -> tuple[int, Counters]:
        """Replay a cycle the rest of its times; else as `run`. It ends where the cycle does."""
        return self._run(self._library.smallest_fit_repeat, (ctypes.byref(cycle),), arrays)

    def _run(
        self, replay: Callable[..., int], what: tuple[Any, ...], arrays: tuple[Numbers, ...]
    ) -> tuple[int, Counters]:
        if len(self._arrays) != len(arrays) or not all(map(is_, arrays, self._arrays)):
            self._begin(arrays)
        now = self._state.contents
        now.peak_allocated, now.peak_inactive = self.peak_allocated_bytes, self._peak_inactive_split_bytes
        now.peak_unreleasable = self._peak_unreleasable_bytes
        reached = replay(self._state, *self._addresses, *what)
        if reached < 0:
            raise MemoryError if reached == -1 else KeyError("a block is freed that is not in use")
        self.allocated_bytes, self.inactive_split_bytes = now.allocated, now.inactive
        self.peak_allocated_bytes, self._peak_inactive_split_bytes = now.peak_allocated, now.peak_inactive
        self._peak_unreleasable_bytes = now.peak_unreleasable
        return reached, now

    def _begin(self, arrays: tuple[Numbers, ...]) -> None:
        """Check arrays once: there may be thousands of runs between two requests for new memory."""
        for numbers, width in zip(arrays, _BYTES_PER_NUMBER, strict=True):
            each = memoryview(numbers)  # type: ignore[arg-type]  # declared by numpy from Python 3.12 on
            if not (each.format in _SIGNED and each.itemsize == width and each.c_contiguous):
                raise TypeError(f"arrays in C's order of whole numbers of {_BYTES_PER_NUMBER} bytes are replayed")
        if not self._library.smallest_fit_number_up_to(self._state, len(arrays[1])):
            raise MemoryError
        self._arrays, self._addresses = arrays, tuple(map(_address, arrays))

    def grow(self, requested_bytes: int) -> None:
        """Take new memory for a request; raise `OutOfMemoryError` as `allocate` does."""
        size, pools, *_ = self._requests.get(requested_bytes) or self._request(requested_bytes)
        block = self._new_memory(pools[0], size, requested_bytes)
        if not self._library.smallest_fit_add_segment(self._state, block.address, block.size_bytes, pools.is_small):
            raise MemoryError

    def empty_cache(self) -> None:
        """Release all segments that are entirely free."""
        self._card.taken_bytes -= self._library.smallest_fit_empty_cache(self._state)


def _address(numbers: Numbers) -> int:
    return numbers.buffer_info()[0] if isinstance(numbers, array) else numbers.ctypes.data


class _CompiledPiece(StepReplay):
    """A run of one piece, which begins with nothing."""

    def __init__(self, library: ctypes.CDLL, config: AllocatorConfig) -> None:
        super().__init__(capacity_bytes=None, config=config)
        self._allocator: CompiledAllocator = CompiledAllocator(library, capacity_bytes=None, config=config)
        self._arrays: tuple[Numbers, ...] = ()

    def _begin(self, piece: Piece) -> None:
        rounded = array("q", [size + MIN_BLOCK_BYTES - 1 & -MIN_BLOCK_BYTES for size in piece.sizes_bytes])
        self._arrays = array("i", piece.events), rounded, array("q", rounded)

    def _play(self, piece: Piece, first: int, end: int) -> None:
        while True:
            first, _ = self._allocator.run(first, end, *self._arrays)
            if first == end:
                return
            self._allocator.grow(piece.sizes_bytes[piece.events[first] - 1])


@dataclass(frozen=True, kw_only=True)
class TraceArrays:
    """A trace as the compiled code reads it."""

    trace: Trace
    events: "npt.NDArray[np.int32]"
    sizes: "npt.NDArray[np.int64]"
    actual: "npt.NDArray[np.int64]"
    """Bytes that each block had in the last replay, with a rest that is too little to be split off."""


def arrays_of(trace: Trace) -> TraceArrays:
    """Return the arrays of a trace."""
    import numpy as np

    from profiler.allocator.traces.replay import block_sizes

    events, sizes = np.ascontiguousarray(trace.events, dtype=np.int32), block_sizes(trace.sizes_bytes)
    return TraceArrays(trace=trace, events=events, sizes=sizes, actual=np.zeros_like(sizes))


def compiled_replay(
    library: ctypes.CDLL,
    arrays: TraceArrays,
    *,
    capacity_bytes: int | None,
    config: AllocatorConfig,
    total_bytes: int | None = None,
) -> CardReplay:
    """Replay a trace that the compiled code knows; the card and errors as of `replay_on_card`."""
    allocator = CompiledAllocator(library, capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes)
    return _CompiledRun(trace=arrays.trace, arrays=arrays, allocator=allocator).whole()


def shortened_replay(
    library: ctypes.CDLL,
    trace: Trace,
    short: "Shortened",
    *,
    capacity_bytes: int | None,
    config: AllocatorConfig,
    total_bytes: int | None = None,
) -> CardReplay:
    """Replay the shortened form of a trace, as `compiled_replay` does the whole one."""
    allocator = CompiledAllocator(library, capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes)
    run = _ShortenedRun(trace=short.trace, arrays=arrays_of(short.trace), allocator=allocator, shortened=short)
    found = run.whole()
    if not run.is_highest_repeated:
        return found
    limits = {"capacity_bytes": capacity_bytes, "total_bytes": total_bytes}
    return compiled_replay(library, arrays_of(trace), config=config, **limits)


@dataclass(kw_only=True)
class _CompiledRun(CardRun):
    allocator: CompiledAllocator
    arrays: TraceArrays

    def __post_init__(self) -> None:
        pass  # The lists that the model reads take long to make, and nothing here reads them.

    def play(self, first: int, end: int) -> None:
        """Replay events of one phase."""
        self.reached, arrays = first, self.arrays
        while True:
            self.reached, now = self.allocator.run(self.reached, end, arrays.events, arrays.sizes, arrays.actual)
            self.peak_bytes, self.peak_event = now.highest, now.highest_event
            if self.reached == end:
                return
            self.allocator.grow(self.trace.sizes_bytes[int(arrays.events[self.reached]) - 1])

    def live_at_the_peak(self) -> dict[int, int]:
        """Return block -> bytes after the event of the peak."""
        import numpy as np

        from profiler.allocator.traces.replay import in_use

        actual = self.arrays.actual
        live = np.flatnonzero(in_use(self.arrays.events[: self.peak_event + 1], len(actual)) & (actual > 0))
        return dict(zip(live.tolist(), actual[live].tolist(), strict=True))


@dataclass(kw_only=True)
class _ShortenedRun(_CompiledRun):
    """A replay of a shortened trace, in which cycles repeat; the result is that of the whole trace."""

    shortened: "Shortened"
    is_highest_repeated: bool = False
    """Whether the highest level is in a further time of a cycle: the blocks in use then are not known."""
    _refused_at: int | None = None
    """The refused event of the whole trace, if it is in a further time of a cycle."""
    _before: "list[tuple[int, slice, npt.NDArray[np.int64]]]" = field(default_factory=list)
    """The end of each cycle, and the bytes of the blocks whose numbers others get, before it repeats."""

    def play(self, first: int, end: int) -> None:
        """Replay events of one phase, and the cycles that are left out between them."""
        for each in self.shortened.repeated:
            if first < each.end <= end:
                self._between(first, each.end)
                self._repeat(each)
                first = each.end
        self._between(first, end)

    def _between(self, first: int, end: int) -> None:
        before = self.peak_bytes
        try:
            super().play(first, end)
        finally:
            self.is_highest_repeated &= self.peak_bytes == before

    def _repeat(self, each: "Repeated") -> None:
        import numpy as np

        arrays, made = self.arrays, slice(each.blocks.start, each.blocks.stop)
        requested = np.ascontiguousarray(self.trace.sizes_bytes, dtype=np.int64)[made]
        growth = np.ascontiguousarray(each.growth_bytes, dtype=np.int64)
        moved = slice(each.in_use.start - len(each.blocks), made.stop)
        self._before.append((each.end, moved, arrays.actual[moved].copy()))
        cycle = Cycle(each.first, each.end, made.start, len(growth), each.memory, each.times, 0, -1)
        cycle.requested, cycle.growth = _address(requested), _address(growth)
        while True:
            reached, now = self.allocator.repeat(cycle, arrays.events, arrays.sizes, arrays.actual)
            self.is_highest_repeated |= now.highest > self.peak_bytes
            self.peak_bytes, self.peak_event = now.highest, now.highest_event
            if reached == each.end:
                return
            length = each.end - each.first
            begun = self.shortened.event(each.end) - (each.times - cycle.time) * length
            self._refused_at = begun + reached - each.first
            block = int(arrays.events[reached]) - 1 - made.start
            self.allocator.grow(int(requested[block] + (cycle.time + 1) * growth[block]))
            self._refused_at = None

    def live_at_the_peak(self) -> dict[int, int]:
        """Return block -> bytes after the event of the peak, in the shortened trace."""
        for end, moved, before in reversed(self._before):
            if end > self.peak_event:
                self.arrays.actual[moved] = before
        return super().live_at_the_peak()

    def _result(self) -> CardReplay:
        import numpy as np

        found, short = super()._result(), self.shortened
        blocks = np.array([*found.live_bytes], dtype=np.int64)
        blocks += short.blocks_added(blocks, found.peak_event)
        return replace(
            found,
            live_bytes=dict(zip(blocks.tolist(), found.live_bytes.values(), strict=True)),
            peak_event=short.event(found.peak_event),
            events_reached=short.event(found.events_reached) if self._refused_at is None else self._refused_at,
        )
