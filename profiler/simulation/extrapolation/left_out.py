"""Write out the decoding steps that a trace leaves out, once it has all its layers.

Steps that are extrapolated repeat the ones before them. So a trace of few layers has only those around them, which are
continued to all layers as everything else is; the others are then written at the real depth, with arrays of all of
them together. The steps after them must be what the pattern says: otherwise nothing is written.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.replay import Lengthened, Repeated, Shortened
from profiler.allocator.traces.trace import Categories, LazySites, LeftOut, Site, Trace, places_of
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
class _Rows:
    """Numbers that repeat so many times, each of them larger by its own rate each time."""

    first: _Array
    rate: _Array | int = 0
    """0 for all of them, or of each."""
    times: int = 1

    def __len__(self) -> int:
        return self.times * len(self.first)

    def __getitem__(self, at: int) -> int:
        time, place = divmod(at, len(self.first))
        return int(self.first[place]) + time * (self.rate if isinstance(self.rate, int) else int(self.rate[place]))

    def written(self) -> _Array:
        """Return all of them, one time after the other."""
        if isinstance(self.rate, int):
            return np.tile(self.first, self.times)
        times = np.arange(self.times, dtype=self.first.dtype)[:, None]
        return np.asarray(self.first + times * self.rate, dtype=self.first.dtype).ravel()


class _Whole:
    """A trace while the cycles that it leaves out are written."""

    def __init__(self, trace: Trace) -> None:
        self._short, self._sites, self._events = trace, _GrownSites(trace.sites), np.asarray(trace.events, np.int32)
        sizes, site_of = np.asarray(trace.sizes_bytes, np.int64), np.asarray(trace.site_of, np.int32)
        self._columns: Sequence[_Array] = (sizes, places_of(trace.categories), site_of)
        self._made_before = np.concatenate([[0], np.cumsum(self._events > 0)])
        self._parts: Sequence[list[_Rows]] = ([], [], [], [])
        """Events; sizes, categories and sites of blocks."""
        self._repeated: list[Repeated] = []
        self._by_capability: dict[int, Mapping[Chip, int]] = {}

    def add(self, left_out: LeftOut) -> None:
        """Write what is before cycles that are left out, and those."""
        begin, last, end = left_out.starts
        length, cycles = end - last, left_out.cycles
        before, cycle, after = (self._events[at : at + length] for at in (begin, last, end))
        first, made, made_after = (slice(*self._made_before[[at, at + length]]) for at in (begin, last, end))
        blocks = made.stop - made.start
        (before_bytes, bytes_, after_bytes), places, sites = (
            [column[each] for each in (first, made, made_after)] for column in self._columns
        )
        growth = bytes_ - before_bytes if len(before_bytes) == blocks else np.zeros_like(bytes_)
        if not (
            begin + length == last
            and np.array_equal(_later(before, blocks), cycle)
            and np.array_equal(_later(cycle, blocks), after)
            and all(np.array_equal(places[1], each) for each in places)
            and np.array_equal(bytes_ + (cycles + 1) * growth, after_bytes)
        ):
            raise StepsDifferError("the cycles around those that are left out differ")
        self._copy(end)
        added = self._block(made.start) - made.start
        numbers, rates = self._sites.numbers(sites[0], sites[1], cycles)
        written = (
            _Rows(first=_later(cycle, added + blocks), rate=np.sign(cycle) * blocks, times=cycles),
            _Rows(first=bytes_ + growth, rate=growth, times=cycles),
            _Rows(first=places[1], times=cycles),
            _Rows(first=numbers, rate=rates, times=cycles),
        )
        for part, rows in zip(self._parts, written, strict=True):
            part.append(rows)
        for block, sizes in self._short.sizes_by_capability.items():
            if made.start <= block < made.stop:
                self._by_capability.update((block + added + time * blocks, sizes) for time in range(1, cycles + 1))
        made_in = range(int(made.start), int(made.stop))
        self._repeated.append(
            Repeated(first=last, end=end, times=cycles, memory=left_out.memory, blocks=made_in, growth_bytes=growth)
        )

    def _copy(self, end: int) -> None:
        """Write the events up to one of the short trace, which find the last of the cycles before them."""
        at = self._repeated[-1].end if self._repeated else 0
        events = self._events[at:end]
        by = self._shortened().blocks_added(np.abs(events) - 1, at)
        self._parts[0].append(_Rows(first=_later(events, by)))
        for part, column in zip(self._parts[1:], self._columns, strict=True):
            part.append(_Rows(first=column[self._made_before[at] : self._made_before[end]]))

    def _shortened(self) -> Shortened:
        return Shortened(trace=self._short, repeated=self._repeated)

    def _block(self, block: int) -> int:
        """Return the number of a block in the whole trace, where it is made."""
        return block + sum(each.times * len(each.blocks) for each in self._repeated if each.blocks.stop <= block)

    def finished(self) -> Trace:
        """Copy what is left, and return the trace, whose numbers are written when they are asked for."""
        self._copy(len(self._events))
        short, shortened = self._short, self._shortened()
        events, sizes, places, site_of = (_column(shortened, part) for part in self._parts)
        by_capability = {self._block(block): sizes for block, sizes in short.sizes_by_capability.items()}
        return replace(
            short,
            sizes_bytes=sizes,
            categories=Categories(places),
            events=events,
            phase_starts=tuple((shortened.event(start), phase) for start, phase in short.phase_starts),
            sites=self._sites,
            site_of=site_of,
            names={self._block(block): name for block, name in short.names.items()},
            sizes_by_capability=by_capability | self._by_capability,
            cache_emptied=tuple(map(shortened.event, short.cache_emptied)),
            streams={self._block(block): stream for block, stream in short.streams.items()},
        )


def _column(shortened: Shortened, parts: Sequence[_Rows]) -> Lengthened:
    """Return the numbers of parts that follow each other."""
    starts = [0, *accumulate(map(len, parts))]

    def at(index: int) -> int:
        part = bisect_right(starts, index) - 1
        return parts[part][index - starts[part]]

    return Lengthened(shortened, starts[-1], at, lambda: np.concatenate([rows.written() for rows in parts]))


def _later(events: _Array, blocks: _Array | int) -> _Array:
    """Return the same events of later blocks."""
    return np.asarray(events + np.sign(events) * blocks, dtype=np.int32)


class _GrownSites(LazySites):
    """Sites, and those of cycles that follow them."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._sites, self._len = sites, len(sites)
        self._lines: list[tuple[int, int, int]] = []
        """First number of sites that continue two others, and those."""

    def numbers(self, before: _Array, last: _Array, cycles: int) -> tuple[_Array, _Array]:
        """Return the sites of each block in the first of so many further cycles, by its sites in the last two.

        Also by how much each of them grows in each cycle.
        """
        numbers, moves = last.copy(), before != last
        pairs, line = np.unique(np.stack([before[moves], last[moves]]), axis=1, return_inverse=True)
        firsts = self._len + cycles * np.arange(pairs.shape[1])
        numbers[moves] = firsts[line]
        self._lines += zip(firsts.tolist(), *pairs.tolist(), strict=True)
        self._len += cycles * len(firsts)
        return numbers, moves.astype(last.dtype)

    def __len__(self) -> int:
        return self._len

    def _made(self, number: int) -> Site:
        if number < len(self._sites):
            return self._sites[number]
        first, before, last = self._lines[bisect_right(self._lines, number, key=lambda line: line[0]) - 1]
        shapes = self._sites[last].shape, self._sites[before].shape
        rates = [size - less for size, less in zip(*shapes, strict=True)]
        return grown(self._sites[last], rates, number - first + 1)
