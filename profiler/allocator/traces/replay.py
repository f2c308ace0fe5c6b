"""Replay of a trace: its peaks on a card of a given capacity, the shape of one optimizer step, and its closed runs.

Also the largest tensors among blocks in use: similar tensors from the same place in every layer form one group.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.model.card_memory import Refusal
from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.allocator.traces.trace import NO_SITE, NOTHING_CLOSED, ClosedRuns, Trace, places_of
from profiler.allocator.traces.trace import Integers as Numbers
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import TensorGroup

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of a trace up to the refused allocation, or of all of it."""

    peak_allocated_bytes: int
    peak_phase: Phase
    phases: Mapping[Phase, int]
    """Peak of each phase that began."""
    breakdown: Mapping[Category, int]
    """By category at the first instant of the peak; sums to it. Categories without bytes are left out."""
    refusal: Refusal | None


def block_sizes(sizes_bytes: Sequence[int]) -> Integers:
    """Return the bytes of each block after rounding; 0 for blocks of no bytes, which are never allocated."""
    return np.asarray(sizes_bytes, dtype=np.int64) + (MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES


def replay(trace: Trace, *, capacity_bytes: int | None = None) -> Peaks:
    """Return peaks by phase and category of `trace` on a card of `capacity_bytes` (None: unlimited).

    Allocated memory is the sum of the rounded sizes of the blocks in use, as `torch.cuda.memory_allocated` counts it
    but for what a large block wastes because its rest is too small to split off.

    Raises:
        ValueError: the trace has no events.
    """
    events = np.asarray(trace.events, dtype=np.int64)
    if not len(events):
        raise ValueError("a trace without events has no peak")
    sizes = np.maximum(block_sizes(trace.sizes_bytes), MIN_BLOCK_BYTES)
    allocated = np.cumsum(np.sign(events) * sizes[np.abs(events) - 1])
    refused_at = _first_beyond(allocated, capacity_bytes)
    reached = len(events) if refused_at is None else refused_at
    if reached == 0:
        return _refused_at_once(trace, capacity_bytes or 0)
    peak_at = int(np.argmax(allocated[:reached]))
    return Peaks(
        peak_allocated_bytes=int(allocated[peak_at]),
        peak_phase=_phase_at(trace, peak_at),
        phases=_phase_peaks(trace, allocated[:reached]),
        breakdown=_breakdown(trace, events[: peak_at + 1], sizes),
        refusal=None
        if refused_at is None
        else _refusal(trace, refused_at, int(allocated[refused_at - 1]), capacity_bytes or 0),
    )


def _first_beyond(allocated: Integers, capacity_bytes: int | None) -> int | None:
    if capacity_bytes is None:
        return None
    beyond = np.flatnonzero(allocated > capacity_bytes)
    return int(beyond[0]) if len(beyond) else None


def _refused_at_once(trace: Trace, capacity_bytes: int) -> Peaks:
    phase = _phase_at(trace, 0)
    return Peaks(
        peak_allocated_bytes=0,
        peak_phase=phase,
        phases={phase: 0},
        breakdown={},
        refusal=_refusal(trace, 0, 0, capacity_bytes),
    )


def _refusal(trace: Trace, event: int, allocated_bytes: int, capacity_bytes: int) -> Refusal:
    requested_bytes = trace.sizes_bytes[trace.events[event] - 1]
    return Refusal(
        phase=_phase_at(trace, event),
        requested_bytes=requested_bytes,
        tried_bytes=requested_bytes,
        free_bytes=capacity_bytes - allocated_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=allocated_bytes,
    )


def _phase_at(trace: Trace, event: int) -> Phase:
    starts = [start for start, _ in trace.phase_starts]
    index = int(np.searchsorted(starts, event, side="right")) - 1
    return trace.phase_starts[max(0, index)][1]


def _phase_peaks(trace: Trace, allocated: Integers) -> dict[Phase, int]:
    """Return the highest level during each phase, including the level at its beginning."""
    peaks: dict[Phase, int] = {}
    ends = [start for start, _ in trace.phase_starts[1:]] + [len(allocated)]
    for (start, phase), end in zip(trace.phase_starts, ends, strict=True):
        if start > len(allocated) or (start == len(allocated) and start > 0 and phase in peaks):
            continue
        levels = allocated[max(0, start - 1) : max(start, min(end, len(allocated)))]
        peaks[phase] = max(peaks.get(phase, 0), int(levels.max(initial=0)))
    return peaks


def _breakdown(trace: Trace, events: Integers, sizes: Integers) -> dict[Category, int]:
    """Return bytes by category of the blocks in use after `events`."""
    signed = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(signed, np.abs(events) - 1, np.sign(events))
    live = np.flatnonzero(signed)
    totals: dict[Category, int] = {}
    for block in live.tolist():
        category = trace.categories[block]
        totals[category] = totals.get(category, 0) + int(sizes[block])
    return totals


INSTANTS_A_STRETCH = 10
"""Number of instants kept of each run of one phase: the highest of each tenth."""


@dataclass(frozen=True, kw_only=True)
class ShapeInstant:
    """One instant of a step."""

    phase: Phase
    sizes_bytes: Mapping[Category, int]
    """Requested bytes, each block rounded up to 512; without empty categories."""


def step_shape(trace: Trace) -> tuple[ShapeInstant, ...]:
    """Return the last complete optimizer step of a trace, with optimizer states; empty if no step was finished.

    Events, not time, decide which tenth an instant belongs to: a trace knows no clock.
    """
    stretches, short = _last_step(trace), shortened(trace)
    if not stretches:
        return ()
    if short is not None and all(each.end <= _last_step(short.trace)[0][0] for each in short.repeated):
        # Nothing of the cycles before the step is in use any more.
        return step_shape(short.trace)
    begin, end = stretches[0][0], stretches[-1][1]
    earlier, events = (np.asarray(part, dtype=np.int32) for part in (trace.events[:begin], trace.events[begin:end]))
    sizes = block_sizes(trace.sizes_bytes)
    kinds, kind_of = list(Category), places_of(trace.categories)
    live = np.flatnonzero(in_use(earlier, len(sizes)))
    levels = np.zeros(len(kinds))
    levels += np.bincount(kind_of[live], weights=sizes[live], minlength=len(kinds))
    blocks = np.abs(events) - 1
    changes, kind_of = np.sign(events) * sizes[blocks], kind_of[blocks]
    total, found, before = np.cumsum(changes), [], 0
    for start, stop, phase in stretches:
        for at in _highest(total, start - begin, stop - begin):
            since = slice(before, at + 1)
            levels += np.bincount(kind_of[since], weights=changes[since], minlength=len(kinds))
            before = at + 1
            sizes_bytes = {kind: int(level) for kind, level in zip(kinds, levels, strict=True) if level}
            found.append(ShapeInstant(phase=phase, sizes_bytes=sizes_bytes))
    return tuple(found)


def in_use(events: npt.NDArray[np.int32], blocks: int) -> npt.NDArray[np.bool_]:
    """Return which of so many blocks, numbered in the order of their allocation, are in use after events.

    By hand, ``+a +b -a`` of three blocks: b alone.
    """
    freed = ~events[events < 0]  # of the event -(block + 1)
    found = np.zeros(blocks, dtype=np.bool_)
    found[: len(events) - len(freed)] = True
    found[freed] = False
    return found


def _last_step(trace: Trace) -> Sequence[tuple[int, int, Phase]]:
    """Return (first event, end, phase) of each non-empty part of the last step that ends with an optimizer."""
    starts = [*trace.phase_starts, (len(trace.events), None)]
    stretches = [(start, stop, phase) for (start, phase), (stop, _) in pairwise(starts) if phase is not None]
    ends = [number for number, (_, _, phase) in enumerate(stretches) if phase is Phase.OPTIMIZER]
    if not ends:
        return []
    first = ends[-2] + 1 if len(ends) > 1 else 0
    return [
        (start, stop, phase)
        for start, stop, phase in stretches[first : ends[-1] + 1]
        if stop > start and phase is not Phase.LOAD
    ]


def _highest(total: "np.ndarray[tuple[int], np.dtype[np.int64]]", start: int, stop: int) -> list[int]:
    """Return the highest instant of each tenth of a part."""
    bounds = np.linspace(start, stop, min(INSTANTS_A_STRETCH, stop - start) + 1).astype(int)
    return [int(low + np.argmax(total[low:high])) for low, high in pairwise(bounds)]


# ---- shortened traces ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A cycle of events that happens again and again, next to which a shortened trace has none of these cycles."""

    first: int
    end: int
    """The event of the shortened trace after it, before which its further times belong."""
    times: int
    memory: int
    """How many cycles back the oldest block lies that a cycle frees."""
    blocks: range
    """The blocks that it allocates."""
    growth_bytes: Integers
    """By how much each of them grows each time."""

    @property
    def in_use(self) -> range:
        """Blocks that may be in use after it."""
        return range(self.blocks.stop - self.memory * len(self.blocks), self.blocks.stop)


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """A trace without the cycles that it repeats.

    Where they are left out, later events free blocks of the cycle before them, in place of those of the last of them.
    """

    trace: Trace
    repeated: Sequence[Repeated]

    def event(self, event: int) -> int:
        """Return the number of an event in the whole trace."""
        return event + sum(each.times * (each.end - each.first) for each in self.repeated if each.end <= event)

    def blocks_added(self, blocks: npt.NDArray[Any], event: int) -> npt.NDArray[Any]:
        """Return how much later numbers blocks that are in use from an event on have in the whole trace."""
        added = np.zeros_like(blocks)
        for each in self.repeated:
            added[blocks >= each.in_use.start] += each.times * len(each.blocks) * (each.end <= event)
        return added


class Lengthened(Numbers):
    """Numbers of a trace, written out of its shortened form when they are asked for."""

    def __init__(
        self, shortened: Shortened, length: int, at: Callable[[int], int], write: Callable[[], npt.NDArray[Any]]
    ) -> None:
        """Write nothing yet; `at` returns one of the numbers, and `write` all."""
        self.shortened = shortened
        self._length, self._at, self._write = length, at, cache(write)

    @property
    def _array(self) -> npt.NDArray[Any]:
        return self._write()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> int | Numbers:  # type: ignore[override]  # as declared there
        return super().__getitem__(index) if isinstance(index, slice) else self._at(range(self._length)[index])


def shortened(trace: Trace) -> Shortened | None:
    """Return the shortened form of a trace, if all that is replayed of it is written out of one; else None."""
    events, sizes = trace.events, trace.sizes_bytes
    if not (isinstance(events, Lengthened) and isinstance(sizes, Lengthened)):
        return None
    return events.shortened if events.shortened is sizes.shortened and not trace.streams else None


# ---- largest tensors -------------------------------------------------------------------------------------------------

MOST_GROUPS = 10

_NUMBER_IN_PATH = re.compile(r"(?<=\.)\d+(?=\.|$)")


def layers_as_one(path: str) -> str:
    """Return the path of a module or tensor with ``*`` for the number of its layer."""
    return _NUMBER_IN_PATH.sub("*", path)


def largest_groups(trace: Trace, live_bytes: Mapping[int, int], *, most: int = MOST_GROUPS) -> tuple[TensorGroup, ...]:
    """Return the largest groups of the blocks in `live_bytes` (block -> bytes it takes), largest first.

    Blocks are alike if they have the same category, shape, data type, phase of making and name; where they have no
    name, the same module (layers as ``*``) and operation.
    """
    made_before = [_made_before(trace, start) for start, _ in trace.phase_starts]
    groups: defaultdict[TensorGroup, list[int]] = defaultdict(list)
    for block, size in live_bytes.items():
        phase = trace.phase_starts[max(0, bisect_right(made_before, block) - 1)][1]
        groups[_likeness(trace, block, phase)].append(size)
    found = [_filled(group, sizes) for group, sizes in groups.items()]
    found.sort(key=lambda group: (-group.size_bytes, group.name, group.module, group.operation))
    return tuple(found[:most])


def _made_before(trace: Trace, event: int) -> int:
    """Return how many blocks are allocated before an event: the number of the last one."""
    return next((each for at in range(event - 1, -1, -1) if (each := trace.events[at]) > 0), 0)


def _likeness(trace: Trace, block: int, phase: Phase) -> TensorGroup:
    """Return the group of a block, without sizes."""
    site = trace.sites[trace.site_of[block]] if trace.site_of else NO_SITE
    name = layers_as_one(trace.names.get(block, ""))
    return TensorGroup(
        category=trace.categories[block],
        size_bytes=0,
        tensors=0,
        shape=site.shape,
        dtype=site.dtype,
        name=name,
        module="" if name else layers_as_one(site.module),
        # Empty for weights and states; for a gradient, its origin: the backward of a layer, or a fused head.
        operation="" if name and trace.categories[block] is not Category.GRADIENTS else site.operation,
        phase=phase,
    )


def _filled(group: TensorGroup, sizes: list[int]) -> TensorGroup:
    return TensorGroup(
        category=group.category,
        size_bytes=sum(sizes),
        tensors=len(sizes),
        shape=group.shape,
        dtype=group.dtype,
        name=group.name,
        module=group.module,
        operation=group.operation,
        phase=group.phase,
    )


# ---- closed runs -----------------------------------------------------------------------------------------------------

_LONGEST_LIFE = 64
"""Events. Blocks that live longer lie between closed runs; 8 to 256 find the same runs in decoding steps."""

_FEWEST_EVENTS = 4
"""A shorter run takes as little time as to find out whether it happens again."""

_FEWEST_ALIKE = 8
"""To learn what a run does takes as long as to replay it three times."""


def closed_runs(trace: Trace) -> ClosedRuns:
    """Return ranges of events that free what they allocate, between events of blocks that live for longer.

    By hand: ``+a +b -b +c -c +d -a -d`` with a and d, which live for long, has the range ``+b -b +c -c``.
    """
    if trace.streams:
        return NOTHING_CLOSED
    events, sizes = np.array(trace.events, dtype=np.int64), np.array(trace.sizes_bytes, dtype=np.int64)
    block, makes = np.abs(events) - 1, events > 0
    # Blocks are numbered in the order of their allocation.
    made, freed = np.flatnonzero(makes), np.full(len(sizes), len(events) + _LONGEST_LIFE + 1)
    freed[block[~makes]] = np.flatnonzero(~makes)
    is_short = ((freed - made <= _LONGEST_LIFE) & (sizes > 0))[block]
    in_use = np.cumsum(np.where(is_short, np.sign(events), 0))
    rests = np.concatenate([[0], np.flatnonzero(in_use == 0) + 1])
    others = np.flatnonzero(~is_short)
    cuts = np.array([*(start for start, _ in trace.phase_starts), *trace.cache_emptied], dtype=np.int64)
    begins, ends = np.concatenate([[0], others + 1, cuts]), np.concatenate([others, cuts, [len(events)]])
    begins.sort()
    ends.sort()
    first, last = np.searchsorted(rests, begins), np.searchsorted(rests, ends, side="right") - 1
    exists = first < last
    firsts, lasts = rests[first[exists]], rests[last[exists]]
    is_long = lasts - firsts >= _FEWEST_EVENTS
    ranges = list(zip(firsts[is_long].tolist(), lasts[is_long].tolist(), strict=True))
    # What a range requests, and which of its blocks it frees.
    course = np.where(makes, sizes[block], made[block] - np.arange(len(events)))
    numbers: dict[bytes, int] = {}
    alike = [numbers.setdefault(course[start:end].tobytes(), len(numbers)) for start, end in ranges]
    is_frequent = (np.bincount(alike, minlength=1) >= _FEWEST_ALIKE).tolist()
    kept = [place for place, number in enumerate(alike) if is_frequent[number]]
    return ClosedRuns(
        firsts=[ranges[place][0] for place in kept],
        ends=[ranges[place][1] for place in kept],
        alike=[alike[place] for place in kept],
    )
