"""The allocations and frees of a step as a pattern, and runs that end when their steps repeat.

Blocks of a decoding step that need no extrapolation, because they leave the caching allocator unchanged.

Blocks of at most 1 MiB live in segments of their own (`kSmallSize` in `c10/cuda/CUDACachingAllocator.cpp`), so small
and large blocks do not affect each other. A sequence of events of small blocks is neutral if it frees exactly what it
allocates: each piece returns to the free block from which it was split. The same sequence some steps later finds the
same free blocks, needs no new segment and changes nothing. It runs in full in the first steps and in the last one,
which has the highest level.

ASSUMED: the blocks between such sequences (ids, masks) leave free blocks in the same places as before. A test compares
segments and peaks with and without. On a full card, where cached segments are released during the rollout, the two may
differ by small segments of 2 MiB.

The allocations and frees of a decoding step, as a pattern that repeats with sizes that grow by constant amounts.

A cycle is one step, or several where the steps themselves alternate (a mask padded to a multiple of 8 repeats every
eighth step). The pattern is taken from three cycles in a row, which must agree in everything: order, categories, sites,
which block of which cycle each event frees, and growth. Neutral blocks (`step_template.py`) need no extrapolation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import TrainerCallback

from profiler.allocator.traces.trace import LeftOut, Site, TraceBuilder
from profiler.domain.memory import MIB, Category
from profiler.simulation.tracing.recorder import Recorder

_SMALL_BYTES = MIB


def cycles_until_large(sizes_bytes: npt.NDArray[np.int64], growth_bytes: npt.NDArray[np.int64], cycles: int) -> int:
    """Return how many of these cycles pass until the last growing block exceeds 1 MiB; all if none does.

    From there on more blocks are neutral: a small block that grows interrupts the sequences of the others.
    """
    leaving = (growth_bytes > 0) & (sizes_bytes <= _SMALL_BYTES) & (sizes_bytes + cycles * growth_bytes > _SMALL_BYTES)
    if not leaving.any():
        return cycles
    last = int(((_SMALL_BYTES - sizes_bytes[leaving]) // growth_bytes[leaving]).max()) + 1
    return min(last, cycles)


def neutral_blocks(
    allocates: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.int64],
    sizes_bytes: npt.NDArray[np.int64],
    growth_bytes: npt.NDArray[np.int64],
) -> set[int]:
    """Return the neutral blocks of a cycle.

    `allocates` and `numbers` are the cycle's events, with blocks counted from its first; sizes are those of the last
    cycle, growth is per cycle. There are none if a block shrinks: the last step is not the highest then.
    """
    if growth_bytes.min() < 0:
        return set()
    blocks = len(sizes_bytes)
    small = sizes_bytes + growth_bytes <= _SMALL_BYTES
    events = [
        (int(number), bool(allocated))
        for number, allocated in zip(numbers, allocates, strict=True)
        if small[number % blocks]
    ]
    freed_at = {number: index for index, (number, allocated) in enumerate(events) if not allocated}
    for number in np.flatnonzero(growth_bytes):
        # It may exceed 1 MiB in a later cycle.
        freed_at.pop(int(number), None)
    found: set[int] = set()
    start = 0
    while start < len(events):
        end = _end_of_sequence(events, freed_at, start)
        if end is None:
            start += 1
            continue
        found.update(number for number, _ in events[start : end + 1])
        start = end + 1
    return found


def _end_of_sequence(events: list[tuple[int, bool]], freed_at: dict[int, int], start: int) -> int | None:
    """Return the last event of the shortest neutral sequence from `start`; None if there is none."""
    made: set[int] = set()
    index = end = start
    while index <= end:
        number, allocated = events[index]
        if not allocated and number not in made:
            return None
        if allocated:
            if number not in freed_at:
                return None
            made.add(number)
            end = max(end, freed_at[number])
        index += 1
    return end


Numbers = npt.NDArray[np.int64]
TracePosition = tuple[int, int]
"""The start of a step: the number of events and the number of blocks before it."""

_CYCLES = 3
"""Two cycles define the growth, the third confirms it."""


@dataclass(frozen=True, kw_only=True)
class _Cycle:
    """The events of one cycle, with blocks counted from its first."""

    allocates: npt.NDArray[np.bool_]
    """Whether each event is an allocation."""
    numbers: Numbers
    """The block of each event, relative to the first block of the cycle; negative for blocks of earlier cycles."""
    sizes_bytes: Numbers
    categories: list[Category]
    site_of: Numbers


@dataclass(frozen=True, kw_only=True)
class Template:
    """A cycle that repeats: `cycle` is its last occurrence; the other fields say how it changes each time."""

    cycle: _Cycle
    growth_bytes: Numbers
    """Growth of each block per cycle."""
    moving_sites: tuple[tuple[Site, tuple[int, ...], tuple[int, ...]], ...]
    """Sites whose shape grows: the last shape, the growth of each dimension, and the blocks that have them."""
    every_block: bool
    """Whether neutral blocks are extrapolated, too."""

    @cached_property
    def extrapolated(self) -> Numbers:
        """The blocks that are extrapolated, ascending."""
        cycle = self.cycle
        left_out = (
            set()
            if self.every_block
            else neutral_blocks(cycle.allocates, cycle.numbers, cycle.sizes_bytes, self.growth_bytes)
        )
        return np.array([block for block in range(self.blocks) if block not in left_out], dtype=np.int64)

    @property
    def blocks(self) -> int:
        """Number of blocks that a cycle allocates."""
        return len(self.cycle.sizes_bytes)

    @property
    def memory(self) -> int:
        """How many cycles back the oldest block lies that a cycle frees."""
        return int(-(self.cycle.numbers.min() // self.blocks))

    def after(self, cycles: int) -> "Template":
        """Return the pattern after this many more cycles. Its `cycle.site_of` is not updated."""
        moved = tuple((grown(site, rates, cycles), rates, blocks) for site, rates, blocks in self.moving_sites)
        sizes = self.cycle.sizes_bytes + cycles * self.growth_bytes
        return replace(self, cycle=replace(self.cycle, sizes_bytes=sizes), moving_sites=moved)

    def segment_length(self, cycles: int) -> int:
        """Return how many of these cycles are best extrapolated at once."""
        return cycles if self.every_block else cycles_until_large(self.cycle.sizes_bytes, self.growth_bytes, cycles)

    def number_extrapolated(self, numbers: Numbers) -> Numbers:
        """Return the numbers that blocks get in extrapolated cycles, which have the extrapolated blocks only."""
        cycles = numbers // self.blocks
        return cycles * len(self.extrapolated) + np.searchsorted(self.extrapolated, numbers - cycles * self.blocks)


def learn(
    trace: TraceBuilder, positions: Sequence[TracePosition], steps_in_cycle: int, *, every_block: bool
) -> Template | None:
    """Return the pattern of the last three cycles before the last of `positions`; None if they do not repeat."""
    if len(positions) < _CYCLES * steps_in_cycle + 1:
        return None
    ends = [positions[-1 - steps_in_cycle * back] for back in range(_CYCLES, -1, -1)]
    blocks = {after[1] - before[1] for before, after in pairwise(ends)}
    if len(blocks) != 1 or 0 in blocks:
        return None
    cycles = [_cycle(trace, before, after) for before, after in pairwise(ends)]
    first, second, last = cycles
    growth = last.sizes_bytes - second.sizes_bytes
    if not all(_same_pattern(last, other) for other in (first, second)) or not _closed(last):
        return None
    if not np.array_equal(second.sizes_bytes - first.sizes_bytes, growth):
        return None
    moving = _moving_sites(trace.sites(), cycles)
    if moving is None:
        return None
    return Template(cycle=last, growth_bytes=growth, moving_sites=moving, every_block=every_block)


def repeated(trace: TraceBuilder, positions: Sequence[TracePosition]) -> Template | None:
    """Return the last of the cycles between `positions` if it equals the one before it; else None."""
    if len(positions) < _CYCLES:
        return None
    before, last = (_cycle(trace, begin, end) for begin, end in pairwise(positions[-_CYCLES:]))
    equal = np.array_equal(before.sizes_bytes, last.sizes_bytes) and np.array_equal(before.site_of, last.site_of)
    if not (equal and _same_pattern(before, last) and _closed(last)):
        return None
    return Template(cycle=last, growth_bytes=np.zeros_like(last.sizes_bytes), moving_sites=(), every_block=True)


def cycles_left_out(template: Template, cycles: int) -> int:
    """Return how many of `cycles` more cycles a trace need not have: others like them stand on both sides.

    By hand, of 100 whose blocks the next cycle frees, 96: one stands after them, and before them two of which each
    frees what the one before it made, after a first that does not.
    """
    return max(0, cycles - template.memory - 2 - max(1, template.memory))


def continue_trace(trace: TraceBuilder, template: Template, cycles: int, *, left_out: int = 0) -> None:
    """Append the events of `cycles` more cycles, as if they had run; `left_out` of them are noted only."""
    cycle, kept, first = template.cycle, template.extrapolated, len(trace.sizes_bytes)
    happened = np.arange(cycles, dtype=np.int64)
    if left_out:
        begin = template.memory + 2
        happened = np.delete(happened, np.s_[begin : begin + left_out])
        length = int(np.isin(cycle.numbers % template.blocks, kept).sum())
        starts = np.arange(begin - 2, begin + 1) * length + len(trace.events)
        before, last, end = starts.tolist()
        trace.left_out.append(LeftOut(starts=(before, last, end), cycles=left_out, memory=template.memory))
        cycles -= left_out
    times = np.arange(cycles, dtype=np.int64)[:, None]
    happens = np.isin(cycle.numbers % template.blocks, kept)
    allocates, numbers = cycle.allocates[happens], cycle.numbers[happens] + times * template.blocks
    # Blocks that the first of these cycles free keep the numbers from when they were allocated.
    numbers = first + 1 + np.where(numbers < 0, numbers, template.number_extrapolated(numbers))
    trace.events.extend(np.where(allocates, numbers, -numbers).ravel().tolist())
    sizes = cycle.sizes_bytes[kept] + (happened[:, None] + 1) * template.growth_bytes[kept]
    trace.sizes_bytes.extend(sizes.ravel().tolist())
    trace.categories.extend([cycle.categories[block] for block in kept] * cycles)
    _continue_by_capability(trace, template, cycles, first)
    site_of = np.tile(cycle.site_of, (cycles, 1))
    for site, rates, blocks in template.moving_sites:
        indices = [trace.site_index(grown(site, rates, time + 1)) for time in happened.tolist()]
        site_of[:, list(blocks)] = np.array(indices, dtype=np.int64)[:, None]
    trace.site_of.extend(site_of[:, kept].ravel().tolist())


def _continue_by_capability(trace: TraceBuilder, template: Template, cycles: int, first: int) -> None:
    """Copy the sizes on other cards to every cycle. Only scratch has such sizes, and it does not grow."""
    kept = template.extrapolated
    for place, block in enumerate(kept.tolist()):
        by_capability = trace.sizes_by_capability.get(first - template.blocks + block)
        if by_capability is not None:
            trace.sizes_by_capability.update(
                (first + time * len(kept) + place, by_capability) for time in range(cycles)
            )


def matches_prediction(
    trace: TraceBuilder, begin: TracePosition, template: Template, cycles_before: int, *, complete: bool
) -> bool:
    """Whether the events since `begin`, after `cycles_before` cycles of `template`, are the template's next cycles.

    Without `complete` the last cycle may be incomplete, and frees after the last allocation are ignored: the end of a
    rollout frees everything.
    """
    ran = _cycle(trace, begin, (len(trace.events), len(trace.sizes_bytes)))
    made, cycle = len(ran.sizes_bytes), template.cycle
    cycles = -(-made // template.blocks)
    if cycles == 0:
        return False
    events = len(ran.numbers) if complete else int(np.flatnonzero(ran.allocates)[-1]) + 1
    times = np.arange(cycles, dtype=np.int64)[:, None]
    numbers = (cycle.numbers + times * template.blocks).ravel()
    numbers = np.where(numbers < 0, template.number_extrapolated(numbers), numbers)
    sizes = (cycle.sizes_bytes + (cycles_before + 1 + times) * template.growth_bytes).ravel()
    return (
        np.array_equal(ran.allocates[:events], np.tile(cycle.allocates, cycles)[:events])
        and np.array_equal(ran.numbers[:events], numbers[:events])
        and np.array_equal(ran.sizes_bytes, sizes[:made])
        and ran.categories == (cycle.categories * cycles)[:made]
    )


def _cycle(trace: TraceBuilder, begin: TracePosition, end: TracePosition) -> _Cycle:
    events = np.array(trace.events[begin[0] : end[0]], dtype=np.int64)
    blocks = slice(begin[1], end[1])
    return _Cycle(
        allocates=events > 0,
        numbers=np.abs(events) - 1 - begin[1],
        sizes_bytes=np.array(trace.sizes_bytes[blocks], dtype=np.int64),
        categories=trace.categories[blocks],
        site_of=np.array(trace.site_of[blocks], dtype=np.int64),
    )


def _same_pattern(one: _Cycle, other: _Cycle) -> bool:
    return (
        np.array_equal(one.allocates, other.allocates)
        and np.array_equal(one.numbers, other.numbers)
        and one.categories == other.categories
    )


def _closed(cycle: _Cycle) -> bool:
    """Whether each block of a cycle is freed once, in its own cycle or in one of the next two."""
    freed = cycle.numbers[~cycle.allocates]
    blocks = len(cycle.sizes_bytes)
    if len(freed) != blocks or freed.min() < -(_CYCLES - 1) * blocks:
        return False
    return np.array_equal(np.sort(freed % blocks), np.arange(blocks))


def _moving_sites(
    sites: Sequence[Site], cycles: Sequence[_Cycle]
) -> tuple[tuple[Site, tuple[int, ...], tuple[int, ...]], ...] | None:
    """Return the sites that differ between the cycles, with their growth; None if more than a shape differs."""
    blocks_of: dict[tuple[int, int, int], list[int]] = {}
    for block, indices in enumerate(zip(*(cycle.site_of.tolist() for cycle in cycles), strict=True)):
        if len(set(indices)) > 1:
            blocks_of.setdefault(indices, []).append(block)
    moving = []
    for indices, blocks in blocks_of.items():
        first, second, last = (sites[index] for index in indices)
        rates = tuple(now - before for now, before in zip(last.shape, second.shape, strict=False))
        if grown(first, rates, 1) != second or grown(second, rates, 1) != last:
            return None
        moving.append((last, rates, tuple(blocks)))
    return tuple(moving)


def grown(site: Site, rates: Sequence[int], times: int) -> Site:
    """Return `site` with a shape that grew `times` times by `rates`."""
    # `replace` takes three times as long, and a long rollout has a hundred thousand.
    return Site(
        operation=site.operation,
        shape=tuple([size + times * rate for size, rate in zip(site.shape, rates, strict=False)]),
        dtype=site.dtype,
        module=site.module,
        operand_layer=site.operand_layer,
        call=site.call,
    )


MOST_EVENTS_EXTRAPOLATED = 5_000_000
"""Steps beyond this many events are not extrapolated: an allocator does nothing new after many equal steps."""


class RepeatedSteps(TrainerCallback):
    """Ends training after the first optimizer step that repeats the previous one, and extrapolates the others.

    If two steps in a row allocate and free the same bytes in the same order at the same sites, all further steps do so:
    the trainer is deterministic, and memory depends only on shapes and on the host values of ids and masks. With ragged
    completions the steps differ, because trl shuffles completions into micro-batches in each step: all of them run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._positions: list[TracePosition] = []
        self.steps_extrapolated = 0
        """Optimizer steps that did not run."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End an optimizer step. A step lasts from one such call to the next, so that it includes logging."""
        trace = self._recorder.trace
        self._positions.append((len(trace.events), len(trace.sizes_bytes)))
        left = int(state.max_steps) - int(state.global_step)
        template = repeated(trace, self._positions) if left > 0 else None
        if template is None:
            return
        control.should_training_stop = True
        self.steps_extrapolated = left
        self._extrapolate(template, min(left, max(1, MOST_EVENTS_EXTRAPOLATED // len(template.cycle.numbers))))

    def _extrapolate(self, template: Template, steps: int) -> None:
        trace = self._recorder.trace
        (first_event, first_block), (end_event, end_block) = self._positions[-2:]
        events, blocks = end_event - first_event, end_block - first_block
        starts = [(index, phase) for index, phase in trace.phase_starts if first_event <= index < end_event]
        names = {block: name for block, name in trace.names.items() if first_block <= block < end_block}
        emptied = [index for index in trace.cache_emptied if first_event <= index < end_event]
        left_out = [cycles for cycles in trace.left_out if first_event <= cycles.starts[0] < end_event]
        by_capability = {
            block: by for block, by in trace.sizes_by_capability.items() if first_block <= block < end_block
        }
        streams = {block: stream for block, stream in trace.streams.items() if first_block <= block < end_block}
        continue_trace(trace, template, steps)
        for step in range(1, steps + 1):
            trace.phase_starts.extend((index + step * events, phase) for index, phase in starts)
            trace.cache_emptied.extend(index + step * events for index in emptied)
            trace.left_out.extend(cycles.later(step * events) for cycles in left_out)
            trace.names.update({block + step * blocks: name for block, name in names.items()})
            trace.sizes_by_capability.update({block + step * blocks: by for block, by in by_capability.items()})
            trace.streams.update({block + step * blocks: stream for block, stream in streams.items()})
        alive = np.arange(end_block - template.memory * blocks, end_block).tolist()
        self._recorder.renumber({block: block + steps * blocks for block in alive})
