"""Write out the decoding steps that a trace leaves out, once it has all its layers.

Steps that are extrapolated repeat the ones before them. So a trace of few layers has only those around them, which are
continued to all layers as everything else is; the others are then written at the real depth, with arrays of all of
them together. The steps after them must be what the pattern says: otherwise nothing is written.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import Categories, Integers, LazySites, LeftOut, Site, Trace, places_of
from profiler.domain.cards.gpu import Chip
from profiler.simulation.extrapolation.step_template import grown


class StepsDifferError(Exception):
    """Extrapolated steps are not what they were taken for."""


_Array = npt.NDArray[Any]


def written_out(trace: Trace, left_out: Sequence[LeftOut]) -> Trace:
    """Return a trace with the cycles that it leaves out.

    By hand, of cycles that allocate a block and free the one before it, with 2, 4, 6 and, after two that are left out,
    12 bytes: the two have 8 and 10.

    Raises:
        StepsDifferError: The cycles around those left out do not have one pattern.
    """
    whole = _Whole(trace)
    for cycles in left_out:
        whole.add(cycles)
    return whole.finished() if left_out else trace


@dataclass(frozen=True, kw_only=True)
class _Added:
    """How much was added up to a place of the short trace."""

    event: int
    """The event of the short trace before which the last cycles were added."""
    block: int
    """The first block of the short trace after them."""
    found: int
    """The first block of the short trace whose number later events find in the last of them."""
    events: int
    """Events that were added."""
    blocks: int
    """Blocks that were added."""


class _Whole:
    """A trace while the cycles that it leaves out are written."""

    def __init__(self, trace: Trace) -> None:
        self._short, self._sites, self._events = trace, _GrownSites(trace.sites), np.asarray(trace.events, np.int32)
        sizes, site_of = np.asarray(trace.sizes_bytes, np.int64), np.asarray(trace.site_of, np.int32)
        self._columns: Sequence[_Array] = (sizes, places_of(trace.categories), site_of)
        self._made_before = np.concatenate([[0], np.cumsum(self._events > 0)])
        self._parts: Sequence[list[_Array]] = ([], [], [], [])
        """Events; sizes, categories and sites of blocks."""
        self._added = [_Added(event=0, block=0, found=0, events=0, blocks=0)]
        self._by_capability: dict[int, Mapping[Chip, int]] = {}

    def add(self, left_out: LeftOut) -> None:
        """Write what is before cycles that are left out, and those."""
        begin, last, end = left_out.starts
        length, cycles, added = end - last, left_out.cycles, self._added[-1]
        before, cycle, after = (self._events[at : at + length] for at in (begin, last, end))
        first, made, made_after = (slice(*self._made_before[[at, at + length]]) for at in (begin, last, end))
        blocks = made.stop - made.start
        (before_bytes, bytes_, after_bytes), places, sites = (
            [column[each] for each in (first, made, made_after)] for column in self._columns
        )
        growth = bytes_ - before_bytes if len(before_bytes) == blocks else 0
        if not (
            begin + length == last
            and np.array_equal(_later(before, blocks), cycle)
            and np.array_equal(_later(cycle, blocks), after)
            and all(np.array_equal(places[1], each) for each in places)
            and np.array_equal(bytes_ + (cycles + 1) * growth, after_bytes)
        ):
            raise StepsDifferError("the cycles around those that are left out differ")
        self._copy(end)
        times = np.arange(1, cycles + 1, dtype=np.int32)[:, None]
        written = (
            _later(cycle, times * blocks + added.blocks),
            bytes_ + times * growth,
            np.tile(places[1], cycles),
            self._sites.numbers(sites[0], sites[1], cycles),
        )
        for part, rows in zip(self._parts, written, strict=True):
            part.append(rows.ravel())
        for block, sizes in self._short.sizes_by_capability.items():
            if made.start <= block < made.stop:
                self._by_capability.update((self._block(block) + time * blocks, sizes) for time in range(1, cycles + 1))
        self._added.append(
            _Added(
                event=end,
                block=made.stop,
                found=made.stop - left_out.memory * blocks,
                events=added.events + cycles * length,
                blocks=added.blocks + cycles * blocks,
            )
        )

    def _copy(self, end: int) -> None:
        """Write the events up to one of the short trace, which find the last of the cycles before them."""
        at = self._added[-1]
        events = self._events[at.event : end]
        by = np.array([each.blocks for each in self._added], dtype=np.int32)
        found = np.searchsorted([each.found for each in self._added], np.abs(events) - 1, side="right") - 1
        self._parts[0].append(_later(events, by[found]))
        for part, column in zip(self._parts[1:], self._columns, strict=True):
            part.append(column[at.block : self._made_before[end]])

    def _event(self, event: int) -> int:
        return event + self._added[bisect_right(self._added, event, key=lambda each: each.event) - 1].events

    def _block(self, block: int) -> int:
        return block + self._added[bisect_right(self._added, block, key=lambda each: each.block) - 1].blocks

    def finished(self) -> Trace:
        """Write what is left, and return the trace."""
        self._copy(len(self._events))
        short, (events, sizes, places, site_of) = self._short, map(np.concatenate, self._parts)
        by_capability = {self._block(block): sizes for block, sizes in short.sizes_by_capability.items()}
        return replace(
            short,
            sizes_bytes=Integers(sizes),
            categories=Categories(places),
            events=Integers(events),
            phase_starts=tuple((self._event(start), phase) for start, phase in short.phase_starts),
            sites=self._sites,
            site_of=Integers(site_of),
            names={self._block(block): name for block, name in short.names.items()},
            sizes_by_capability=by_capability | self._by_capability,
            cache_emptied=tuple(map(self._event, short.cache_emptied)),
            streams={self._block(block): stream for block, stream in short.streams.items()},
        )


def _later(events: _Array, blocks: _Array | int) -> _Array:
    """Return the same events of later blocks."""
    return np.asarray(events + np.sign(events) * blocks, dtype=np.int32)


class _GrownSites(LazySites):
    """Sites, and those of cycles that follow them."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sites, self._len = sites, len(sites)
        self._lines: list[tuple[int, int, int]] = []
        """First number of sites that continue two others, and those."""

    def numbers(self, before: _Array, last: _Array, cycles: int) -> _Array:
        """Return the sites of each block in so many further cycles, by its sites in the last two."""
        numbers, moving = np.tile(last, (cycles, 1)), np.flatnonzero(before != last)
        pairs, line = np.unique(np.stack([before[moving], last[moving]]), axis=1, return_inverse=True)
        firsts = self._len + cycles * np.arange(pairs.shape[1])
        numbers[:, moving] = firsts[line] + np.arange(cycles)[:, None]
        self._lines += zip(firsts.tolist(), *pairs.tolist(), strict=True)
        self._len += cycles * len(firsts)
        return numbers

    def __len__(self) -> int:
        return self._len

    def _made(self, number: int) -> Site:
        if number < len(self._sites):
            return self._sites[number]
        first, before, last = self._lines[bisect_right(self._lines, number, key=lambda line: line[0]) - 1]
        shapes = self._sites[last].shape, self._sites[before].shape
        rates = [size - less for size, less in zip(*shapes, strict=True)]
        return grown(self._sites[last], rates, number - first + 1)
