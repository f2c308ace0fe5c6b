"""Continue a trace of three equal layers to more of them by repeating the events of the middle one."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import (
    LAYER,
    Categories,
    Integers,
    LazySites,
    LeftOut,
    Site,
    Trace,
    layer_in,
    places_of,
)
from profiler.domain.memory import Phase
from profiler.simulation.depth.repetitions import (
    LAYERS_RUN,
    LIST_OF_NORMS,
    MIDDLE,
    NORMS,
    SCRATCH_OF_NORMS,
    Blocks,
    DepthDiffersError,
    Mark,
    Numbers,
    Repetition,
    Tokens,
    Zones,
    check_origins,
    ranks,
    repetitions_of,
    spans,
    tokens_of,
)
from profiler.simulation.extrapolation.left_out import StepsDifferError, written_out


@dataclass(frozen=True, kw_only=True)
class TrainedTensors:
    """How many tensors are trained, of which gradient clipping makes lists."""

    few: int
    """With the layers that ran."""
    all: int


def continued(trace: Trace, *, layers: int, trained: TrainedTensors, left_out: Sequence[LeftOut] = ()) -> Trace:
    """Return the trace with `layers` layers, from one with `LAYERS_RUN`, and with what that one leaves out.

    Each event of the middle layer must be in a range of events that repeat by layer, and each block that is repeated
    must have a layer, or be freed where it is made.

    Raises:
        DepthDiffersError: The trace is another one, or the continued trace would free another block than it allocated.
    """
    tokens = tokens_of(trace, [start for cycles in left_out for start in cycles.starts])
    repetitions = list(repetitions_of(tokens))
    check_origins(tokens, repetitions)
    result = _numbered(tokens, repetitions, layers=layers)
    further = layers - LAYERS_RUN
    starts = _starts(tokens, repetitions, further)
    deeper = _trace(tokens, result, starts, trained, further)
    moved = [start for start, mark in zip(starts, tokens.marks, strict=True) if mark is Mark.CYCLE]
    begins = zip(moved[::3], moved[1::3], moved[2::3], strict=True)
    try:
        return written_out(deeper, [replace(each, starts=three) for each, three in zip(left_out, begins, strict=True)])
    except StepsDifferError as error:
        raise DepthDiffersError(str(error)) from error


Short = npt.NDArray[Any]
"""Integers of 32 bits: of millions of events they take half the memory, and half the time."""

# ---- events at the real depth ----------------------------------------------------------------------------------------


def _parts(repetitions: Sequence[Repetition], events: int, turns: int) -> Iterator[tuple[Numbers, Short]]:
    """Yield the events that those at the real depth repeat, some thousands at a time, and their turns, from 0.

    By hand, events 0 to 7 with one repetition of two, from event 1 on, in two turns: 0, 1, 2, 3, 4, 3, 4, 5, 6 and 7.
    """
    order, turn, waiting, at = [], [], 0, 0
    for found in repetitions:
        second, third = found.start + found.length, found.start + 2 * found.length
        order += [np.arange(at, second), np.tile(np.arange(second, third), turns)]
        turn += [np.zeros(second - at, dtype=np.int32), np.repeat(np.arange(turns, dtype=np.int32), found.length)]
        waiting += second - at + turns * found.length
        at = third
        if waiting >= _AT_ONCE:
            yield np.concatenate(order), np.concatenate(turn)
            order, turn, waiting = [], [], 0
    yield (
        np.concatenate([*order, np.arange(at, events)]),
        np.concatenate([*turn, np.zeros(events - at, dtype=np.int32)]),
    )


_AT_ONCE = 1 << 16
"""Events that are numbered together: arrays of ten million go to memory and back, each time."""


def _starts(tokens: Tokens, repetitions: Sequence[Repetition], further: int) -> Sequence[int]:
    """Return the first event after each mark, with `further` more layers."""
    inserted_before = np.zeros(len(tokens.tokens) + 1, dtype=np.int64)
    for found in repetitions:
        inserted_before[found.start + 2 * found.length] += found.length
    before = np.cumsum(inserted_before)
    return [start + further * int(before[start]) for start in tokens.starts]


@dataclass(frozen=True, kw_only=True)
class _Numbered:
    """Events and blocks at the real depth."""

    events: Short
    """As `Trace.events`."""
    origin: Short
    """The block that each block repeats."""
    moved: Short
    """By how many layers each block moves."""


def _numbered(tokens: Tokens, repetitions: Sequence[Repetition], *, layers: int) -> _Numbered:
    """Number the blocks at the real depth, in the order of their allocation.

    Raises:
        DepthDiffersError: A block is not freed once, later, as what it is.
    """
    turns = layers - LAYERS_RUN + 1
    numbering = _Numbering(tokens, repetitions, turns=turns, layers=layers)
    parts = [numbering.number(*part) for part in _parts(repetitions, len(tokens.tokens), turns)]
    events, origin, moved = (np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(_Numbered))
    return _Numbered(events=events, origin=origin, moved=moved)


class _Numbering:
    """The numbers of blocks at the real depth, by what they repeat and their layer."""

    def __init__(self, tokens: Tokens, repetitions: Sequence[Repetition], *, turns: int, layers: int) -> None:
        """Find the layers in which the block of each event is repeated.

        Raises:
            DepthDiffersError: One of them does not exist, or a block is freed in one layer and not in the next.
        """
        zones, blocks = Zones(tokens, repetitions, layers=layers), Blocks(tokens, repetitions)
        layer = blocks.layer[tokens.block]
        outside = layer < 0
        moved, per_turn = np.where(outside, 0, zones.moved), np.where(outside, 0, zones.per_turn)
        for reached in (layer + moved, layer + moved + (turns - 1) * per_turn):
            if reached.max(initial=0) >= layers or not np.array_equal(reached < 0, outside):
                raise DepthDiffersError("a block belongs to a layer that does not exist")
        kin = ranks(blocks.kin)[tokens.block]
        kins = int(kin.max(initial=-1)) + 1
        self._moved, self._per_turn = moved.astype(np.int32), per_turn.astype(np.int32)
        self._block, self._kinds = tokens.block.astype(np.int32), tokens.tokens.astype(np.int32)
        # Blocks of a layer are made one after another, and so are found near each other.
        self._key, self._key_per_turn = kin + kins * np.where(outside, 0, layer + moved + 1), kins * per_turn
        self._number_of = np.full(kins * (layers + 1), _NOT_MADE, dtype=np.int32)
        self._kind_of = np.zeros(len(self._number_of), dtype=np.int32)
        self._made = 0

    def number(self, order: Numbers, turn: Short) -> _Numbered:
        """Return the next events, which repeat those of `order` in their turns, and the blocks that they make.

        Raises:
            DepthDiffersError: As `_numbered`.
        """
        keys, kinds = self._key[order] + turn * self._key_per_turn[order], self._kinds[order]
        makes, frees = np.flatnonzero(kinds > 0), np.flatnonzero(kinds < 0)
        events = np.empty(len(order), dtype=np.int32)
        events[makes] = self._make(keys[makes], kinds[makes]) + 1
        freed = self._free(keys[frees], -kinds[frees])
        is_new = freed >= self._made - len(makes)
        if (makes[freed[is_new] - (self._made - len(makes))] > frees[is_new]).any():
            raise DepthDiffersError("a block is freed before it is made")
        events[frees] = -freed - 1
        repeated = order[makes]
        moved = self._moved[repeated] + turn[makes] * self._per_turn[repeated]
        return _Numbered(events=events, origin=self._block[repeated], moved=moved)

    def _make(self, keys: Numbers, kinds: Short) -> Short:
        """Return the numbers of blocks that are made."""
        numbers = np.arange(self._made, self._made + len(keys), dtype=np.int32)
        was_made = (self._number_of[keys] != _NOT_MADE).any()
        self._number_of[keys], self._kind_of[keys] = numbers, kinds
        if was_made or not np.array_equal(self._number_of[keys], numbers):
            raise DepthDiffersError("a block is made twice")
        self._made += len(keys)
        return numbers

    def _free(self, keys: Numbers, kinds: Short) -> Short:
        """Return the numbers of blocks that are freed."""
        numbers: Short = self._number_of[keys]
        freed = _FREED - np.arange(len(keys), dtype=np.int32)
        self._number_of[keys] = freed
        if numbers.min(initial=0) < 0 or not np.array_equal(self._number_of[keys], freed):
            raise DepthDiffersError("a block is freed that does not exist")
        if not np.array_equal(self._kind_of[keys], kinds):
            raise DepthDiffersError("a block is freed that is another one")
        return numbers


_NOT_MADE, _FREED = -1, -2
"""Instead of the number of a block; of those freed together each has one of its own, from `_FREED` downwards."""


# ---- the trace -------------------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


def _trace(tokens: Tokens, result: _Numbered, starts: Sequence[int], trained: TrainedTensors, further: int) -> Trace:
    trace, origin = tokens.trace, result.origin
    sites, site_of = _sites(trace, result, trained)
    marks = list(zip(starts, tokens.marks, strict=True))
    return Trace(
        sizes_bytes=Integers(_sizes(tokens, trained, further)[origin]),
        categories=Categories(places_of(trace.categories)[origin]),
        events=Integers(result.events),
        phase_starts=tuple((start, mark) for start, mark in marks if isinstance(mark, Phase)),
        sites=sites,
        site_of=site_of,
        names={
            number: _in_layer(trace.names[block], int(result.moved[number]))
            for number, block in _repeating(trace.names, origin)
        },
        sizes_by_capability=_copied(trace.sizes_by_capability, origin),
        cache_emptied=tuple(start for start, mark in marks if mark is Mark.EMPTIED),
        streams=_copied(trace.streams, origin),
    )


def _sizes(tokens: Tokens, trained: TrainedTensors, further: int) -> Numbers:
    """Return the bytes of each block; those of lists with a value per trained tensor have all of them.

    Raises:
        DepthDiffersError: A list is not known to have one value, or a number of values, per trained tensor.
    """
    trace = tokens.trace
    sizes, site_of = np.array(trace.sizes_bytes, dtype=np.int64), np.array(trace.site_of, dtype=np.int64)
    listed = [at for at, site in enumerate(trace.sites) if _grows(site, trained)]
    lists, scratch = np.flatnonzero(np.isin(site_of, listed)), dict(_norms_with_scratch(tokens))
    few, middle = (sum(counts) for counts in zip(*scratch.values(), strict=True)) if scratch else (0, 0)
    if scratch and (few, few + further * middle) != (len(lists) * trained.few, len(lists) * trained.all):
        raise DepthDiffersError("norms are computed of other tensors than the trained ones")
    clipping = np.isin(np.arange(len(sizes)), tokens.block[_in_phase(tokens, Phase.OPTIMIZER)])
    may_grow = [site.shape == (trained.few,) and site.layer < 0 for site in trace.sites]
    unknown = clipping & np.isin(site_of, np.flatnonzero(may_grow))
    unknown[lists] = False
    if unknown.any() or not clipping[lists].all():
        raise DepthDiffersError("a list of unknown purpose may have a value per trained tensor")
    values = [(block, trained.few, trained.all) for block in lists.tolist()]
    values += [(block, few, few + further * middle) for block, (few, middle) in scratch.items()]
    for block, now, then in values:
        if not now or sizes[block] % now:
            raise DepthDiffersError("a list has not the same number of values per trained tensor")
        sizes[block] = sizes[block] // now * then
    return sizes


def _norms_with_scratch(tokens: Tokens) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the scratch of each launch that computes norms; of how many tensors, and how many of the middle layer."""
    sites, events = tokens.trace.sites, tokens.trace.events
    site_of = np.array(tokens.trace.site_of, dtype=np.int64)
    is_scratch = np.array([site.operation == SCRATCH_OF_NORMS for site in sites], dtype=np.bool_)
    is_norm = np.array([site.operation == NORMS for site in sites], dtype=np.bool_)
    makes = tokens.tokens > 0
    for start in np.flatnonzero(makes & is_scratch[site_of][tokens.block]).tolist():
        end = events.index(-events[start], start)
        made = tokens.block[start:end][makes[start:end]]
        norms = made[is_norm[site_of[made]]]
        yield int(tokens.block[start]), (len(norms), int((tokens.layer_of[norms] == MIDDLE).sum()))


def _grows(site: Site, trained: TrainedTensors) -> bool:
    """Return whether a block of `site` is a list with a value per trained tensor.

    Raises:
        DepthDiffersError: The list may have a value per layer, but has not one per trained tensor.
    """
    if site.operation != LIST_OF_NORMS or site.module or len(site.shape) != 1 or site.shape[0] < LAYERS_RUN:
        return False
    if site.shape != (trained.few,):
        raise DepthDiffersError("a list has another length than trained tensors")
    return True


def _in_phase(tokens: Tokens, phase: Phase) -> Numbers:
    """Return the events of a phase."""
    found = [np.arange(start, end) for start, end, each in spans(tokens) if each is phase]
    return np.concatenate([np.arange(0), *found])


def _sites(trace: Trace, result: _Numbered, trained: TrainedTensors) -> tuple[Sequence[Site], Sequence[int]]:
    """Return the distinct sites, and the index of each block's site."""
    site_of = np.array(trace.site_of, dtype=np.int64)[result.origin]
    width = int(result.moved.max(initial=0)) + 1
    first, index = _distinct(site_of * width + result.moved)
    # The same operation in two layers has two sites, each of which continues to other layers.
    site, moved = site_of[first], result.moved[first]
    codes: dict[Hashable, int] = {}
    alike = [(codes.setdefault(kind, len(codes)), layer) for kind, layer in map(_without_layers, trace.sites)]
    kind, layer = np.array(alike, dtype=np.int64).reshape(-1, 2)[site].T
    rows, number_of = _distinct(kind * (width + LAYERS_RUN) + np.where(layer < 0, -1, layer + moved) + 1)
    made = _Sites(trace.sites, site[rows].tolist(), moved[rows].tolist(), trained)
    return made, Integers(number_of[index])


def _without_layers(site: Site) -> tuple[Hashable, int]:
    """Return what of a site is the same in each layer, and its layer; negative for one that is the same in all."""
    of_module, of_operand = layer_in(site.module), site.operand_layer
    layer = of_module if of_module >= 0 else of_operand
    between = of_operand - of_module if of_module >= 0 and of_operand >= 0 else min(of_operand, 0)
    module = LAYER.sub("*", site.module, count=1)
    return (site.operation, site.shape, site.dtype, module, of_module < 0, between, site.call), layer


class _Sites(LazySites):
    """Sites of other layers, of which each is made once."""

    def __init__(
        self, sites: Sequence[Site], site: Sequence[int], moved: Sequence[int], trained: TrainedTensors
    ) -> None:
        self._sites, self._site, self._moved, self._trained = sites, site, moved, trained
        self._known: dict[int, Site] = {}

    def __len__(self) -> int:
        return len(self._site)

    def _made(self, number: int) -> Site:
        if number not in self._known:
            self._known[number] = _site(self._sites[self._site[number]], self._moved[number], self._trained)
        return self._known[number]


def _distinct(keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return, for each distinct key ascending, the first place that has it; and the index among them of every place."""
    first = np.full(int(keys.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    found = np.flatnonzero(first >= 0)
    number = np.cumsum(first >= 0) - 1
    return first[found], number[keys]


def _site(site: Site, moved: int, trained: TrainedTensors) -> Site:
    """Return `site` in another layer; a list of norms has a value per trained tensor."""
    if _grows(site, trained):
        return replace(site, shape=(trained.all,))
    if not moved:
        return site
    operand = site.operand_layer if site.operand_layer < 0 else site.operand_layer + moved
    # Thousands of them: `replace` takes three times as long.
    return Site(
        operation=site.operation,
        shape=site.shape,
        dtype=site.dtype,
        module=_in_layer(site.module, moved),
        operand_layer=operand,
        call=site.call,
    )


@cache
def _in_layer(path: str, moved: int) -> str:
    """Return a path with its layer's number moved, if it has one."""
    layer = layer_in(path)
    return path if layer < 0 else LAYER.sub(str(layer + moved), path, count=1)


def _copied(values: Mapping[int, _Value], origin: Short) -> dict[int, _Value]:
    """Return the values of the blocks that repeat those with a value."""
    return {block: values[number] for block, number in _repeating(values, origin)}


def _repeating(values: Mapping[int, object], origin: Short) -> Sequence[tuple[int, int]]:
    """Return the blocks that repeat those with a value, each with the block that it repeats."""
    if not values:
        return ()
    has_value = np.zeros(int(origin.max(initial=-1)) + 1, dtype=np.bool_)
    has_value[[block for block in values if block < len(has_value)]] = True
    blocks = np.flatnonzero(has_value[origin])
    return list(zip(blocks.tolist(), origin[blocks].tolist(), strict=True))
