"""A trace as a sequence of tokens, in which a layer's part looks the same in each layer, and where layers repeat."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import (
    LAYER,
    NO_LAYER,
    OUTSIDE_LAYERS,
    SCALE_OF_GRADIENTS,
    Site,
    Trace,
    layer_in,
    places_of,
)
from profiler.domain.memory import Phase

LAYERS_RUN = 3
"""One layer is neither the first nor the last."""

MIDDLE, LAST = 1, 2

_MOST_CANDIDATES = 8
"""Events of the next layer that may repeat an event of the middle one: the first of its kind does, in most lists."""

_WINDOW = 512
"""Events in which the next layer is looked for, before the whole phase is."""

_OFTEN = 8
"""Repetitions of one length after which it is looked for in the whole phase at one time."""

_BARE_PHASES = frozenset({Phase.LOAD, Phase.OPTIMIZER})
"""Phases that work on parameters one after another, outside modules."""

_TYPES_OF_TOKENS = frozenset({"bool", "int32", "int64"})
"""Types of no weight, gradient or state."""


Numbers = npt.NDArray[np.int64]

NORMS = "aten._foreach_norm.Scalar"
SCRATCH_OF_NORMS = "aten._foreach_norm.Scalar's kernel"
LIST_OF_NORMS = "aten.stack"
"""Operations of gradient clipping: a norm per trained tensor, computed for all tensors of a type together, with as many
values of scratch for each as the largest of them has chunks; then all norms as one list. No other block's size may
depend on the number of layers.

Source: `_get_total_norm` in torch/nn/utils/clip_grad.py; `_foreach_norm` in simulation/cuda/scratch/kernel_scratch.py.
"""

_DENSE = 8
"""Values with a range of at most so many times their number are dense."""


class DepthDiffersError(Exception):
    """The trace does not consist of repetitions by layer: the trial has to run with all its layers."""


class Mark(Enum):
    """What happens between two events, if no phase starts."""

    EMPTIED = "the cache is emptied"
    CYCLE = "a cycle starts next to cycles that are left out"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A trace as tokens: for each event the kind of its block, negative where it is freed, without layer numbers."""

    trace: Trace
    tokens: Numbers
    block: Numbers
    """The block of each event."""
    layer_of: Numbers
    """The layer of each block; negative without one, and for lists with a value per trained tensor."""
    marks: Sequence[Phase | Mark]
    """Phases where they start, and what else happens between two events, in their order."""
    starts: Sequence[int]
    """The first event after each mark."""


def tokens_of(trace: Trace, cycles: Iterable[int] = ()) -> Tokens:
    """Return the tokens of a trace, in which cycles start; equal kinds of blocks have equal numbers."""
    events = np.array(trace.events, dtype=np.int64)
    block = np.abs(events) - 1
    kinds = _combined(_kind_columns(trace))
    others: list[tuple[int, Phase | Mark]] = [(at, Mark.EMPTIED) for at in trace.cache_emptied]
    others += [(at, Mark.CYCLE) for at in cycles]
    marks = sorted([*others, *trace.phase_starts], key=lambda mark: mark[0])
    return Tokens(
        trace=trace,
        tokens=np.sign(events) * (kinds[block] + 1),
        block=block,
        layer_of=_layers(trace),
        marks=[phase for _, phase in marks],
        starts=[start for start, _ in marks],
    )


def _layers(trace: Trace) -> Numbers:
    site_of = np.array(trace.site_of, dtype=np.int64)
    of_sites = [OUTSIDE_LAYERS if _is_of_all(site) else site.layer for site in trace.sites]
    layers = np.array(of_sites, dtype=np.int64)[site_of]
    named = {block: layer_in(name) for block, name in trace.names.items()}
    without = [block for block, layer in named.items() if layer < 0 and layers[block] >= 0]
    for block in without:
        del named[block]
    layers[list(named)] = list(named.values())
    return layers


def _is_of_all(site: Site) -> bool:
    """Return whether a block of `site` belongs to all layers together, whatever its operand."""
    of_all = LIST_OF_NORMS, SCRATCH_OF_NORMS, SCALE_OF_GRADIENTS
    return site.operation in of_all and not site.module and len(site.shape) <= 1


def _kind_columns(trace: Trace) -> Sequence[Numbers]:
    """Return what makes two blocks alike, one array per property."""
    codes = _Codes()
    sites = np.array([codes.of(_without_layer(site)) for site in trace.sites], dtype=np.int64)
    names = {block: codes.of(LAYER.sub("*", name, count=1)) for block, name in trace.names.items()}
    by_capability = {block: codes.of(frozenset(sizes.items())) for block, sizes in trace.sizes_by_capability.items()}
    blocks = len(trace.sizes_bytes)
    return (
        sites[np.array(trace.site_of, dtype=np.int64)],
        places_of(trace.categories).astype(np.int64),
        np.array(trace.sizes_bytes, dtype=np.int64),
        _spread(names, blocks),
        _spread(by_capability, blocks),
        _spread(trace.streams, blocks),
    )


class _Codes:
    """Numbers of values."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._codes.setdefault(value, len(self._codes) + 1)


def _without_layer(site: Site) -> Hashable:
    """Return what of a site is the same in each layer."""
    is_of_layer = site.layer >= 0
    return site.operation, site.dtype, site.shape, LAYER.sub("*", site.module, count=1), is_of_layer


def _spread(values: Mapping[int, int], blocks: int) -> Numbers:
    """Return the value of each block."""
    spread = np.zeros(blocks, dtype=np.int64)
    spread[list(values)] = list(values.values())
    return spread


def _combined(columns: Iterable[Numbers]) -> Numbers:
    """Return one number per row of `columns`, equal for equal rows."""
    rows: Any = None
    for column in columns:
        # Most columns have one value for all blocks.
        if rows is None or (column != column[:1]).any():
            values = ranks(column)
            rows = values if rows is None else ranks(rows * (int(values.max(initial=0)) + 1) + values)
    return np.asarray(rows, dtype=np.int64)


def ranks(values: Numbers) -> Numbers:
    """Return the place of each value among the distinct ones, ascending; dense values need no sorting."""
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
    if highest - lowest > _DENSE * len(values):
        return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
    exists = np.zeros(highest - lowest + 1, dtype=np.bool_)
    exists[values - lowest] = True
    return (np.cumsum(exists) - 1)[values - lowest]


# ---- where layers repeat ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A range of events in which those of each layer repeat those of the one before.

    It begins and ends anywhere in a layer, and has at least two times `length` events. The second `length` of them are
    repeated.
    """

    start: int
    length: int
    """Events of one layer."""
    end: int
    step: int
    """1 where the layers follow each other as in forward, -1 where they do as in backward."""


def repetitions_of(tokens: Tokens) -> Iterator[Repetition]:
    """Yield the ranges that have all events of the middle layer, ascending; none extends over a mark."""
    layer = tokens.layer_of[tokens.block]
    middle = np.flatnonzero(layer == MIDDLE)
    for start, end, _ in spans(tokens):
        search = _Search(tokens.tokens, layer, start, end)
        at = start
        for event in middle[np.searchsorted(middle, start) : np.searchsorted(middle, end)].tolist():
            if event >= at:
                found = search.around(event, at)
                yield found
                at = found.end


class _Search:
    """Finds repetitions by layer from the event `start` on and before `end`."""

    def __init__(self, tokens: Numbers, layer: Numbers, start: int, end: int) -> None:
        self._tokens, self._layer, self._start, self._end = tokens, layer, start, end
        self._found: Counter[tuple[int, int]] = Counter()
        self._differ: dict[tuple[int, int], Numbers] = {}
        """The events that do not repeat, for lengths and steps that were found often, as in a rollout's steps."""

    def around(self, event: int, begin: int) -> Repetition:
        """Return the repetition with an event of the middle layer, which begins at `begin` or later."""
        for window in (0, _WINDOW, self._end):
            until = min(self._end, event + window)
            for length, step in self._possible_lengths(event, until) if window else tuple(self._differ):
                start, end = self._extended(event, begin, length, step)
                if end - start >= 2 * length:
                    self._count(length, step)
                    return Repetition(start=start, length=length, end=end, step=step)
        raise DepthDiffersError(f"event {event} of a layer repeats nothing")

    def _count(self, length: int, step: int) -> None:
        """Note a length that was found; once it was found often, look for what it does not repeat at one time."""
        self._found[length, step] += 1
        if self._found[length, step] == _OFTEN:
            differs = np.flatnonzero(~self._repeats(self._start, self._end - length, length, step))
            self._differ[length, step] = np.concatenate([[-1], differs + self._start, [self._end - length]])

    def _possible_lengths(self, event: int, until: int) -> Sequence[tuple[int, int]]:
        """Return distances to equal events of the layers after and before, and which layer, shortest first."""
        alike = np.flatnonzero(self._tokens[event + 1 : until] == self._tokens[event]) + 1
        layers = self._layer[event + alike]
        return sorted(
            (length, step) for step in (1, -1) for length in alike[layers == MIDDLE + step][:_MOST_CANDIDATES].tolist()
        )

    def _extended(self, event: int, begin: int, length: int, step: int) -> tuple[int, int]:
        """Return the range around `event` whose events all repeat the one `length` events before."""
        if (length, step) in self._differ:
            differ = self._differ[length, step]
            following = int(np.searchsorted(differ, event))
            after = int(differ[following]) if following < len(differ) else event
            return max(begin, int(differ[following - 1]) + 1), max(after, event) + length
        end = size = event
        last = self._end - length
        size = length
        while end < last:
            stop = min(end + size, last)
            differ = np.flatnonzero(~self._repeats(end, stop, length, step))
            if len(differ):
                end += int(differ[0])
                break
            end, size = stop, 2 * size
        start, size = event, length
        while start > begin:
            stop = max(start - size, begin)
            differ = np.flatnonzero(~self._repeats(stop, start, length, step))
            if len(differ):
                start = stop + int(differ[-1]) + 1
                break
            start, size = stop, 2 * size
        return start, end + length

    def _repeats(self, start: int, end: int, length: int, step: int) -> npt.NDArray[np.bool_]:
        one, other = self._layer[start:end], self._layer[start + length : end + length]
        alike = self._tokens[start:end] == self._tokens[start + length : end + length]
        found: npt.NDArray[np.bool_] = alike & ((one + step == other) | ((one < 0) & (other < 0)))
        return found


def check_origins(tokens: Tokens, repetitions: Sequence[Repetition]) -> None:
    """Raise `DepthDiffersError` if an optimizer makes blocks of unknown origin as often as there are layers, or more.

    They may be a list with a value per layer, whose layers are not known.
    """
    sites, site_of = tokens.trace.sites, np.array(tokens.trace.site_of, dtype=np.int64)[tokens.block]
    unknown = (tokens.tokens > 0) & (tokens.layer_of[tokens.block] == NO_LAYER)
    unknown &= np.array([site.dtype not in _TYPES_OF_TOKENS for site in sites], dtype=np.bool_)[site_of]
    for found in repetitions:
        unknown[found.start : found.end] = False
    for start, end, phase in spans(tokens):
        if phase in _BARE_PHASES:
            _, counts = np.unique(tokens.tokens[start:end][unknown[start:end]], return_counts=True)
            if counts.max(initial=0) >= LAYERS_RUN:
                raise DepthDiffersError(f"blocks of unknown origin in phase {phase} may belong to layers")


def spans(tokens: Tokens) -> Iterator[tuple[int, int, Phase]]:
    """Yield (first event, end, phase) of each part between two marks."""
    phase = Phase.LOAD
    marks = [phase, *tokens.marks]
    for (start, end), mark in zip(pairwise([0, *tokens.starts, len(tokens.tokens)]), marks, strict=True):
        phase = mark if isinstance(mark, Phase) else phase
        yield start, end, phase


# ---- blocks at the real depth --------------------------------------------------------------------------------------


class Zones:
    """By how many layers the block of each event moves at the real depth."""

    def __init__(self, tokens: Tokens, repetitions: Sequence[Repetition], *, layers: int) -> None:
        further = layers - LAYERS_RUN
        # Outside repetitions there is no event of the middle layer.
        self.moved = np.where(tokens.layer_of[tokens.block] == LAST, further, 0)
        """In the first turn."""
        self.per_turn = np.zeros(len(tokens.tokens), dtype=np.int64)
        """More in each further turn of the event's repetition."""
        for found in repetitions:
            second, third = found.start + found.length, found.start + 2 * found.length
            moved_before, moved_after = (0, further) if found.step > 0 else (further, 0)
            self.moved[found.start : third] = moved_before
            self.moved[third : found.end] = moved_after
            self.per_turn[second:third] = found.step


class Blocks:
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
