"""Continue a trace of three equal layers to more of them by repeating the events of the middle one."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import LAYER, Integers, Site, Trace, layer_in
from profiler.domain.memory import Phase
from profiler.simulation.depth.repetitions import (
    LAST,
    LAYERS_RUN,
    LIST_OF_NORMS,
    MIDDLE,
    NORMS,
    SCRATCH_OF_NORMS,
    DepthDiffersError,
    Numbers,
    Repetition,
    Tokens,
    check_origins,
    ranks,
    repetitions_of,
    spans,
    tokens_of,
)


@dataclass(frozen=True, kw_only=True)
class TrainedTensors:
    """How many tensors are trained, of which gradient clipping makes lists."""

    few: int
    """With the layers that ran."""
    all: int


def continued(trace: Trace, *, layers: int, trained: TrainedTensors) -> Trace:
    """Return the trace with `layers` layers, from one with `LAYERS_RUN`.

    Each event of the middle layer must be in a range of events that repeat by layer, and each block that is repeated
    must have a layer, or be freed where it is made.

    Raises:
        DepthDiffersError: The trace is another one, or the continued trace would free another block than it allocated.
    """
    tokens = tokens_of(trace)
    repetitions = list(repetitions_of(tokens))
    check_origins(tokens, repetitions)
    zones = _Zones(tokens, repetitions, layers=layers)
    blocks = _Blocks(tokens, repetitions)
    further = layers - LAYERS_RUN
    order, turn = _order(repetitions, len(tokens.tokens), further + 1)
    result = _numbered(tokens, zones, blocks, order, turn, layers)
    return _trace(tokens, result, _starts(tokens, repetitions, further), trained, further)


Short = npt.NDArray[Any]
"""Integers of 32 bits: of millions of events they take half the memory, and half the time."""

# ---- events at the real depth ----------------------------------------------------------------------------------------


class _Zones:
    """By how many layers the block of each event moves at the real depth."""

    def __init__(self, tokens: Tokens, repetitions: Sequence[Repetition], *, layers: int) -> None:
        further = layers - LAYERS_RUN
        # Outside repetitions there is no event of the middle layer.
        self._moved = np.where(tokens.layer_of[tokens.block] == LAST, further, 0).astype(np.int32)
        self._per_turn = np.zeros(len(tokens.tokens), dtype=np.int32)
        for found in repetitions:
            second, third = found.start + found.length, found.start + 2 * found.length
            moved_before, moved_after = (0, further) if found.step > 0 else (further, 0)
            self._moved[found.start : third] = moved_before
            self._moved[third : found.end] = moved_after
            self._per_turn[second:third] = found.step

    def moved(self, order: Numbers, turn: Short) -> Short:
        """Return by how many layers the blocks of events in their turns move."""
        moved: Short = self._moved[order] + turn * self._per_turn[order]
        return moved


class _Blocks:
    """Blocks of the trace: their layers, and which of them are the same block of other layers."""

    def __init__(self, tokens: Tokens, repetitions: Sequence[Repetition]) -> None:
        """Find them.

        Raises:
            DepthDiffersError: A block is freed in one layer and not in the next.
        """
        starts, lengths, ends, steps = np.array(
            [(found.start, found.length, found.end, found.step) for found in repetitions] or [(0, 1, 0, 1)],
            dtype=np.int64,
        ).T
        events = np.arange(len(tokens.tokens))
        repetition = np.searchsorted(starts, events, side="right") - 1
        within = (repetition >= 0) & (events < ends[repetition])
        makes = tokens.tokens > 0
        self.layer = tokens.layer_of.copy()
        self._place(
            tokens, np.where(within, repetition, -1), (events - starts[repetition]) // lengths[repetition], steps
        )
        repeated = np.flatnonzero(within & makes & (events + lengths[repetition] < ends[repetition]))
        one, other = tokens.block[repeated], tokens.block[repeated + lengths[repetition[repeated]]]
        both = (self.layer[one] >= 0) & (self.layer[other] >= 0)
        is_freed = np.isin(np.arange(len(self.layer)), tokens.block[~makes])
        if (is_freed[one] != is_freed[other]).any():
            raise DepthDiffersError("a block is freed in one layer and not in another one")
        kin = np.arange(len(self.layer))
        kin[other[both]] = one[both]
        while not np.array_equal(kin, kin[kin]):
            kin = kin[kin]
        self.kin = kin
        """The same number for the same block of other layers."""

    def _place(self, tokens: Tokens, repetition: Numbers, period: Numbers, steps: Numbers) -> None:
        """Set the layer of blocks without one that are freed where they are made: that of their place."""
        makes = tokens.tokens > 0
        made_in = np.full(len(self.layer), -1, dtype=np.int64)
        made_in[tokens.block[makes]] = repetition[makes]
        freed_in = np.full(len(self.layer), -2, dtype=np.int64)
        freed_in[tokens.block[~makes]] = repetition[~makes]
        placed = np.flatnonzero(makes & (tokens.layer_of[tokens.block] < 0) & (period <= LAST))
        blocks = tokens.block[placed]
        placed, blocks = (each[made_in[blocks] == freed_in[blocks]] for each in (placed, blocks))
        inside = repetition[placed] >= 0
        placed, blocks = placed[inside], blocks[inside]
        at = period[placed]
        self.layer[blocks] = np.where(steps[repetition[placed]] > 0, at, LAST - at)


def _order(repetitions: Sequence[Repetition], events: int, turns: int) -> tuple[Numbers, Short]:
    """Return the event that each event at the real depth repeats, and the turn of its repetition, from 0."""
    order, turn = [], []
    at = 0
    for found in repetitions:
        second, third = found.start + found.length, found.start + 2 * found.length
        order += [np.arange(at, second), np.tile(np.arange(second, third), turns)]
        turn += [np.zeros(second - at, dtype=np.int32), np.repeat(np.arange(turns, dtype=np.int32), found.length)]
        at = third
    order.append(np.arange(at, events))
    turn.append(np.zeros(events - at, dtype=np.int32))
    return np.concatenate(order), np.concatenate(turn)


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


def _numbered(tokens: Tokens, zones: _Zones, blocks: _Blocks, order: Numbers, turn: Short, layers: int) -> _Numbered:
    """Number the blocks at the real depth.

    Raises:
        DepthDiffersError: A block is not freed once, later, as what it is.
    """
    of_block, of_token, of_layer, of_kin = (
        each.astype(np.int32) for each in (tokens.block, tokens.tokens, blocks.layer, ranks(blocks.kin))
    )
    block, kinds = of_block[order], of_token[order]
    layer = of_layer[block]
    outside = layer < 0
    moved = zones.moved(order, turn)
    moved[outside] = 0
    layer += moved
    if layer.max(initial=0) >= layers or not np.array_equal(layer < 0, outside):
        raise DepthDiffersError("a block belongs to a layer that does not exist")
    places = np.where(outside, 0, layer + 1)
    keys = of_kin[block].astype(np.int64) * (layers + 1) + places
    makes, frees = np.flatnonzero(kinds > 0), np.flatnonzero(kinds < 0)
    made = np.arange(len(makes), dtype=np.int32)
    number_of = np.full((int(of_kin.max(initial=-1)) + 1) * (layers + 1), -1, dtype=np.int32)
    number_of[keys[makes]] = made
    if not np.array_equal(number_of[keys[makes]], made):
        raise DepthDiffersError("a block is made twice")
    freed = number_of[keys[frees]]
    if freed.min(initial=0) < 0 or np.bincount(freed).max(initial=0) > 1:
        raise DepthDiffersError("a block is freed that does not exist")
    if (makes[freed] > frees).any() or not np.array_equal(kinds[makes[freed]], -kinds[frees]):
        raise DepthDiffersError("a block is freed that is another one")
    events = np.empty(len(order), dtype=np.int32)
    events[makes], events[frees] = made + 1, -freed - 1
    return _Numbered(events=events, origin=block[makes], moved=moved[makes])


# ---- the trace -------------------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


def _trace(tokens: Tokens, result: _Numbered, starts: Sequence[int], trained: TrainedTensors, further: int) -> Trace:
    trace, origin = tokens.trace, result.origin
    sites, site_of = _sites(trace, result, trained)
    marks = list(zip(starts, tokens.marks, strict=True))
    return Trace(
        sizes_bytes=Integers(_sizes(tokens, trained, further)[origin]),
        categories=tuple(np.array(trace.categories, dtype=object)[origin].tolist()),
        events=Integers(result.events),
        phase_starts=tuple((start, phase) for start, phase in marks if phase is not None),
        sites=sites,
        site_of=site_of,
        names={
            number: _in_layer(trace.names[block], int(result.moved[number]))
            for number, block in _repeating(trace.names, origin)
        },
        sizes_by_capability=_copied(trace.sizes_by_capability, origin),
        cache_emptied=tuple(start for start, phase in marks if phase is None),
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


class _Sites(Sequence[Site]):
    """Sites of other layers, each made when it is asked for: few of a hundred thousand are."""

    def __init__(
        self, sites: Sequence[Site], site: Sequence[int], moved: Sequence[int], trained: TrainedTensors
    ) -> None:
        self._sites, self._site, self._moved, self._trained = sites, site, moved, trained
        self._made: dict[int, Site] = {}

    def __len__(self) -> int:
        return len(self._site)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = _site(self._sites[self._site[index]], self._moved[index], self._trained)
        return self._made[index]


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
