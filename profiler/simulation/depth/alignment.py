"""Where the trace of one more layer has more events than the trace without it, and that these are repetitions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profiler.simulation.depth.tokens import Numbers, Tokens

_LOOK_AHEAD = 64
"""After so many equal events behind an insertion its length counts as found; else the length with most of them does.

Lists that grow close to each other, as those of an optimizer that works on all tensors at once, have fewer in between.
A wrong length cannot stay unnoticed: all events have to be matched in the end, and all blocks freed that were made.
"""


class DepthDiffersError(Exception):
    """The traces of two depths do not differ by one layer's repetitions: the trial has to run with all its layers."""


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Events of the deeper trace that repeat the events directly before them."""

    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How the deeper of two traces consists of the shallower one and insertions."""

    insertions: Sequence[Insertion]
    """Ascending; none extends over a mark."""
    place: Numbers
    """The event of the shallower trace at the place of each event of the deeper one; -1 where it is inserted."""


def align(shallow: Tokens, deep: Tokens) -> Alignment:
    """Align the traces of two depths, part by part between their marks.

    Raises:
        DepthDiffersError: Their phases differ, or an insertion repeats nothing.
    """
    if shallow.marks != deep.marks:
        raise DepthDiffersError("the phases differ")
    insertions: list[Insertion] = []
    place = np.full(len(deep.tokens), -1, dtype=np.int64)
    for (start, end), (begin, stop) in zip(_parts(shallow), _parts(deep), strict=True):
        stretch = _Stretch(shallow.tokens[start:end], deep.tokens[begin:stop])
        found, places = stretch.aligned()
        place[begin:stop] = np.where(places < 0, -1, places + start)
        insertions.extend(Insertion(start=each.start + begin, length=each.length) for each in found)
    return Alignment(insertions=insertions, place=place)


def _parts(tokens: Tokens) -> Iterable[tuple[int, int]]:
    bounds = [0, *tokens.starts, len(tokens.tokens)]
    return pairwise(bounds)


class _Stretch:
    """The events between two marks, at both depths."""

    def __init__(self, shallow: Numbers, deep: Numbers) -> None:
        self._shallow, self._deep = shallow, deep

    def aligned(self) -> tuple[Sequence[Insertion], Numbers]:
        place = np.full(len(self._deep), -1, dtype=np.int64)
        insertions: list[Insertion] = []
        old = new = 0
        while True:
            equal = self._equal_from(old, new, len(self._deep))
            place[new : new + equal] = np.arange(old, old + equal)
            old, new = old + equal, new + equal
            if new == len(self._deep):
                break
            length = self._length_of_insertion(old, new)
            insertions.append(Insertion(start=new, length=length))
            new += length
        if old != len(self._shallow):
            raise DepthDiffersError("the shallower trace has more events")
        return insertions, place

    def _equal_from(self, old: int, new: int, most: int) -> int:
        """Return how many events are equal from here on, up to `most`."""
        begin, step = old, 64
        most = min(most, len(self._shallow) - old, len(self._deep) - new)
        while old - begin < most:
            step = min(step, most - (old - begin))
            differ = np.flatnonzero(self._shallow[old : old + step] != self._deep[new : new + step])
            if len(differ):
                return old - begin + int(differ[0])
            old, new, step = old + step, new + step, step * 2
        return most

    def _length_of_insertion(self, old: int, new: int) -> int:
        """Return the length of the insertion at `new`: it repeats what is before it, and the trace goes on after it."""
        best, most = 0, -1
        for length in self._possible_lengths(old, new).tolist():
            if not np.array_equal(self._deep[new - length : new], self._deep[new : new + length]):
                continue
            equal = self._equal_from(old, new + length, _LOOK_AHEAD)
            if equal > most:
                best, most = length, equal
            if equal == _LOOK_AHEAD:
                break
        if not best:
            raise DepthDiffersError(f"event {new} of {len(self._deep)} of a phase repeats nothing")
        return best

    def _possible_lengths(self, old: int, new: int) -> Numbers:
        """Return lengths, ascending, after which the next event is the same, and whose first event is a repetition."""
        left = len(self._deep) - new
        if old == len(self._shallow):
            lengths = np.array([left] if left <= new else [], dtype=np.int64)
        else:
            after = self._deep[new + 1 : new + min(new, left - 1) + 1]
            lengths = np.flatnonzero(after == self._shallow[old]).astype(np.int64) + 1
        return lengths[self._deep[new - lengths] == self._deep[new]]
