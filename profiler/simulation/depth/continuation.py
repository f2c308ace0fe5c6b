"""Continue a trace to more layers by repeating what one more layer added, where it is found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from profiler.allocator.traces.trace import Site, Trace
from profiler.simulation.depth.tokens import BLOCK, LAYER, LENGTH, MODULE, NAME, SIZE, Numbers, Tokens, tokens_of

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


_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class _Continued:
    """The events at the real depth."""

    order: Numbers
    """The event of the deeper of the two traces that each event repeats."""
    quantities: Numbers
    """One row per event (`tokens.py`)."""
    allocates: Numbers
    """The events that allocate, in the order of their blocks."""


def continued(shallow: Trace, deep: Trace, *, layers_of_deep: int, layers: int) -> Trace:
    """Return the trace with `layers` layers.

    Args:
        shallow: The trace with one layer less than `deep`.
        deep: The trace with `layers_of_deep` layers.
        layers_of_deep: At least 3, so that one layer is neither the first nor the last.
        layers: The real depth.

    Raises:
        DepthDiffersError: The traces do not differ by one layer's repetitions, or the continued trace would free
            another block than it allocated.
    """
    few, more = tokens_of((shallow, deep))
    alignment = align(few, more)
    turns = layers - layers_of_deep + 1
    order, turn = _order(alignment, len(more.tokens), turns)
    at_depth, per_turn = _linear(few, more, alignment, layers - layers_of_deep)
    quantities = at_depth[order] + turn[:, None] * per_turn[order]
    tokens = more.tokens[order]
    result = _Continued(order=order, quantities=quantities, allocates=np.flatnonzero(tokens > 0))
    _check(tokens, result, layers)
    return _trace(more, result, _starts(more, alignment, turns - 1))


def _order(alignment: Alignment, events: int, turns: int) -> tuple[Numbers, Numbers]:
    """Return the event of the deeper trace that each event repeats, and the turn of its repetition, from 0."""
    order, turn = [], []
    at = 0
    for insertion in alignment.insertions:
        end = insertion.start + insertion.length
        order += [np.arange(at, insertion.start), np.tile(np.arange(insertion.start, end), turns)]
        turn += [np.zeros(insertion.start - at, dtype=np.int64), np.repeat(np.arange(turns), insertion.length)]
        at = end
    order.append(np.arange(at, events))
    turn.append(np.zeros(events - at, dtype=np.int64))
    return np.concatenate(order), np.concatenate(turn)


def _linear(few: Tokens, more: Tokens, alignment: Alignment, further: int) -> tuple[Numbers, Numbers]:
    """Return the quantities of the deeper trace's events with `further` more layers, and their change per turn.

    The change per layer comes from the same event at both depths, the change per turn from the event that an inserted
    one repeats.
    """
    repeats = np.arange(len(more.tokens), dtype=np.int64)
    for insertion in alignment.insertions:
        repeats[insertion.start : insertion.start + insertion.length] -= insertion.length
    place = alignment.place[repeats]
    if (place < 0).any():
        raise DepthDiffersError("an insertion repeats another one")
    per_turn = more.quantities - more.quantities[repeats]
    per_layer = more.quantities[repeats] - few.quantities[place]
    return more.quantities + further * per_layer, per_turn


def _starts(more: Tokens, alignment: Alignment, further: int) -> Sequence[int]:
    """Return the first event after each mark, with `further` more layers."""
    inserted_before = np.zeros(len(more.tokens) + 1, dtype=np.int64)
    for insertion in alignment.insertions:
        inserted_before[insertion.start + insertion.length] += insertion.length
    before = np.cumsum(inserted_before)
    return [start + further * int(before[start]) for start in more.starts]


def _check(tokens: Numbers, result: _Continued, layers: int) -> None:
    """Raise `DepthDiffersError` unless each block is numbered in its order, and freed once, later, as what it is."""
    blocks, allocates = result.quantities[:, BLOCK], result.allocates
    if not np.array_equal(blocks[allocates], np.arange(len(allocates))):
        raise DepthDiffersError("blocks are not numbered in the order of their allocation")
    if result.quantities[:, [MODULE, NAME]].max() >= layers or result.quantities[:, [MODULE, NAME]].min() < -1:
        raise DepthDiffersError("a block belongs to a layer that does not exist")
    frees = np.flatnonzero(tokens < 0)
    freed = blocks[frees]
    exist = not len(freed) or (freed.min() >= 0 and freed.max() < len(allocates))
    if not exist or np.bincount(freed).max(initial=0) > 1:
        raise DepthDiffersError("a block is freed that does not exist")
    made = allocates[freed]
    alike = np.array_equal(tokens[made], -tokens[frees])
    if not alike or (made > frees).any() or not np.array_equal(result.quantities[made], result.quantities[frees]):
        raise DepthDiffersError("a block is freed that is another one")


def _trace(more: Tokens, result: _Continued, starts: Sequence[int]) -> Trace:
    deep = more.trace
    blocks = result.quantities[result.allocates]
    origin = (np.abs(np.array(deep.events, dtype=np.int64)) - 1)[result.order[result.allocates]]
    sites, site_of = _sites(deep, origin, blocks)
    categories = np.array(deep.categories, dtype=object)
    signs = np.full(len(result.order), -1, dtype=np.int64)
    signs[result.allocates] = 1
    marks = list(zip(starts, more.marks, strict=True))
    return Trace(
        sizes_bytes=tuple(blocks[:, SIZE].tolist()),
        categories=tuple(categories[origin].tolist()),
        events=tuple((signs * (result.quantities[:, BLOCK] + 1)).tolist()),
        phase_starts=tuple((start, phase) for start, phase in marks if phase is not None),
        sites=sites,
        site_of=site_of,
        names=_names(deep, origin, blocks[:, NAME]),
        sizes_by_capability=_copied(deep.sizes_by_capability, origin),
        cache_emptied=tuple(start for start, phase in marks if phase is None),
        streams=_copied(deep.streams, origin),
    )


def _sites(deep: Trace, origin: Numbers, blocks: Numbers) -> tuple[Sequence[Site], Sequence[int]]:
    """Return the distinct sites of blocks that repeat those of `origin`, and the index of each block's site."""
    site_of = np.array(deep.site_of, dtype=np.int64)[origin]
    layer, length = blocks[:, MODULE] + 1, blocks[:, LENGTH] + 1
    # Few blocks have a length, and few lengths differ: with their positions the keys are dense, which saves sorting.
    lengths = np.unique(length)
    layers = int(layer.max(initial=0)) + 1
    keys = (site_of * layers + layer) * len(lengths) + np.searchsorted(lengths, length)
    first, index = _distinct(keys)
    # The same operation in two layers has two sites, each of which continues to other layers.
    numbers: dict[Site, int] = {}
    rows = zip(site_of[first].tolist(), layer[first].tolist(), length[first].tolist(), strict=True)
    found = [_site(deep.sites[site], number - 1, size - 1) for site, number, size in rows]
    number_of = np.array([numbers.setdefault(site, len(numbers)) for site in found], dtype=np.int64)
    return tuple(numbers), tuple(number_of[index].tolist())


def _distinct(keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return, for each distinct key ascending, the first place that has it; and the index among them of every place."""
    first = np.full(int(keys.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    found = np.flatnonzero(first >= 0)
    number = np.cumsum(first >= 0) - 1
    return first[found], number[keys]


def _site(site: Site, layer: int, length: int) -> Site:
    """Return `site` in another layer, and with the length of a list of norms where it has one."""
    module, shape = _in_layer(site.module, layer), site.shape if length < 0 else (length,)
    if (module, shape) == (site.module, site.shape):
        return site
    return Site(operation=site.operation, shape=shape, dtype=site.dtype, module=module)


def _names(deep: Trace, origin: Numbers, layers: Numbers) -> dict[int, str]:
    return {
        block: _in_layer(deep.names[number], int(layers[block])) for block, number in _repeating(deep.names, origin)
    }


@cache
def _in_layer(path: str, layer: int) -> str:
    return LAYER.sub(str(layer), path, count=1) if layer >= 0 else path


def _copied(values: Mapping[int, _Value], origin: Numbers) -> dict[int, _Value]:
    """Return the values of the blocks that repeat those with a value."""
    return {block: values[number] for block, number in _repeating(values, origin)}


def _repeating(values: Mapping[int, object], origin: Numbers) -> Sequence[tuple[int, int]]:
    """Return the blocks that repeat those with a value, each with the block that it repeats."""
    has_value = np.zeros(int(origin.max(initial=-1)) + 1, dtype=np.bool_)
    has_value[[block for block in values if block < len(has_value)]] = True
    blocks = np.flatnonzero(has_value[origin])
    return list(zip(blocks.tolist(), origin[blocks].tolist(), strict=True))
