"""A trace, cut into the pieces of its optimizer steps, and sizes of blocks as functions of the lengths of rows.

A piece is what precedes the first micro-batch, or a micro-batch.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.allocator.traces.trace import Trace
from profiler.domain.memory import Phase
from profiler.simulation.cuda.scratch.deferred_scratch import ScratchCall, Sizes

Numbers = npt.NDArray[np.int64]

_COMBINED = 23
"""Features of which two are tried together."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Values, each a constant and the multiples of two features."""

    constant: Numbers
    feature: Numbers
    """[2, values]: numbers of the features; those that are not needed have 0 of feature 0."""
    factor: Numbers
    """[2, values]."""

    @property
    def used(self) -> set[int]:
        """The features of which values are multiples."""
        return set(self.feature[self.factor != 0].tolist())

    def of(self, found: Numbers) -> Numbers:
        """Return the values for these features."""
        values: Numbers = self.constant + (self.factor * found[self.feature]).sum(axis=0)
        return values


def fitted(found: Numbers, values: Numbers, *, are_sizes: bool = False) -> Fitted | int:
    """Return integers as functions of the features; or the number of one that is none.

    Args:
        found: [occurrences, features], the likeliest first; the first ones are combined.
        values: [occurrences, values].
        are_sizes: Whether they are bytes of blocks. One that follows from no length, and never exceeds a smallest
            block, is one: it is a count of rows, which only the values of tokens decide.
    """
    constant, count = values[0].copy(), values.shape[1]
    feature, factor = np.zeros((2, count), dtype=np.int64), np.zeros((2, count), dtype=np.int64)
    left = np.flatnonzero((values != values[0]).any(axis=0))
    for number in range(found.shape[1]):
        if not len(left):
            break
        base, slope = _line(found[:, number], values[:, left])
        fits = (base + slope * found[:, [number]] == values[:, left]).all(axis=0)
        done = left[fits]
        constant[done], feature[0, done], factor[0, done] = base[fits], number, slope[fits]
        left = left[~fits]
    for one, other in combinations(range(min(_COMBINED, found.shape[1])), 2):
        if not len(left):
            break
        fits, solution = _plane(found[:, [one, other]], values[:, left])
        done = left[fits]
        constant[done], factor[0, done], factor[1, done] = solution[:, fits]
        feature[0, done], feature[1, done] = one, other
        left = left[~fits]
    if are_sizes:
        of_left = values[:, left]
        smallest = ((of_left > 0) & (of_left <= MIN_BLOCK_BYTES)).all(axis=0)
        constant[left[smallest]] = MIN_BLOCK_BYTES
        left = left[~smallest]
    return int(left[0]) if len(left) else Fitted(constant=constant, feature=feature, factor=factor)


class Indistinct:
    """Features that were always equal in what was learnt from: a size may follow from either.

    In rows of 3, 11 and 27 tokens alone, each 5 short of a multiple of 8, a mask rounded up to one looks like 5 tokens
    more; and where each row has 300 tokens, no size shows how it follows from them. Steps whose features differ there
    are unknown.
    """

    def __init__(self, found: Numbers, used: Iterable[int]) -> None:
        """Take the features, [occurrences, features], of which some are used."""
        self._first = found[0]
        change = found - found[0]
        self._constant = np.flatnonzero((change == 0).all(axis=0))
        pairs: list[tuple[int, int, int, int]] = []
        for one in sorted(set(used) & set(range(found.shape[1])) - set(self._constant.tolist())):
            most = int(np.abs(change[:, one]).argmax())
            # Two products that are equal are so in 64 bits too.
            both = (change * change[most, one] == change[:, [one]] * change[most]).all(axis=0)
            others = [other for other in np.flatnonzero(both).tolist() if other != one and change[most, other]]
            pairs += [(one, other, int(change[most, one]), int(change[most, other])) for other in others]
        self._pairs = np.array(pairs, dtype=np.int64).reshape(-1, 4).T

    def allows(self, found: Numbers) -> bool:
        """Return whether features go together as they did."""
        change = found[: len(self._first)] - self._first
        one, other, step, further = self._pairs
        return not change[self._constant].any() and bool((change[one] * further == change[other] * step).all())


def _line(found: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return constant and slope of the line through the least and the greatest value of a feature."""
    low, high = int(found.argmin()), int(found.argmax())
    width = max(1, int(found[high] - found[low]))
    slope = (values[high] - values[low]) // width
    return values[low] - slope * found[low], slope


def _plane(found: Numbers, values: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Return which values are a constant and whole multiples of two features, and [constant, multiples] of each."""
    scale = np.maximum(1, np.abs(found).max(axis=0))
    design = np.concatenate([np.ones((len(found), 1)), found / scale], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, values.astype(np.float64), rcond=None)
    if rank < design.shape[1]:
        return np.zeros(values.shape[1], dtype=np.bool_), np.zeros((3, values.shape[1]), dtype=np.int64)
    slopes = np.rint(solution[1:] / scale[:, None]).astype(np.int64)
    constant = values[0] - found[0] @ slopes
    return (constant + found @ slopes == values).all(axis=0), np.concatenate([constant[None], slopes])


def step_bounds(trace: Trace) -> list[tuple[int, int]]:
    """Return the first event and the end of each optimizer step, with the logging and the evaluation after it.

    None begins with a score: that is of a reference before training.
    """
    starts: list[int] = []
    before = Phase.LOAD
    for first, phase in trace.phase_starts:
        between = (Phase.LOAD, Phase.OPTIMIZER)
        if phase not in (*between, Phase.EVALUATION, Phase.SCORE) and before in between:
            starts.append(first)
        before = phase
    return list(pairwise([*starts, len(trace.events)]))


def evaluation_cuts(trace: Trace) -> list[list[int]]:
    """Return, of each evaluation, its first event, where each batch that is marked begins and ends, and its end."""
    found: list[list[int]] = []
    is_open = False
    for at, phase in (*trace.phase_starts, (len(trace.events), Phase.LOAD)):
        if is_open:
            found[-1].append(at)
        elif phase is Phase.EVALUATION:
            found.append([at])
        is_open = phase is Phase.EVALUATION
    return found


def micro_batch_starts(trace: Trace, first: int, end: int) -> list[int]:
    """Return where the micro-batches of a step begin: at its first forward, and at the first after each backward.

    Within the loss of preferences a reference scores, and the forward goes on.
    """
    found: list[int] = []
    is_open = False
    for at, phase in trace.phase_starts:
        if first <= at < end:
            if phase is Phase.FORWARD and not is_open:
                found.append(at)
            is_open = phase is not Phase.BACKWARD and (is_open or phase is Phase.FORWARD)
    return found


Position = tuple[int, int]
"""Between two events of a piece: how many events precede it, and how many calls of kernels."""


@dataclass(frozen=True, kw_only=True)
class CutPiece:
    """The events of one piece."""

    tokens: Numbers
    """For each event, block + 1 where it allocates and -(block + 1) where it frees, with the piece's blocks counted
    from 0; 0 where it frees a block of an earlier piece."""
    earlier: Numbers
    """[frees of earlier blocks, 2]: the piece in which each was made, and its place among those that outlived it. The
    piece is counted back from this one; where it is not the one before, -1 and -2 are the first two of this step."""
    sizes_bytes: Numbers
    outliving: Numbers
    """Blocks that later pieces free, ascending."""
    likeness: Hashable
    """What all occurrences of a variant have in common, but for sizes."""
    outlives_as: Hashable
    """What all variants have in common: the sites of `outliving`."""
    phases: tuple[tuple[Position, Phase], ...]
    """Where phases begin; the first one is that in which the piece begins."""
    cache_emptied: tuple[Position, ...]
    streams: Mapping[int, int]
    calls: tuple[tuple[int, ScratchCall], ...]
    """Scratch that is left open, each before an event."""

    @cached_property
    def left(self) -> int:
        """Blocks that it makes more than it frees."""
        return int((self.tokens > 0).sum() - (self.tokens <= 0).sum())


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A piece with the events of its calls."""

    events: Numbers
    """As `CutPiece.tokens`; the blocks of calls follow the others."""
    frees_earlier: Numbers
    """The events that free blocks of earlier pieces."""
    sizes_from: Numbers
    """Where among the sizes of all scratch each block of a call has its own."""
    phases: Sequence[tuple[int, Phase]]
    cache_emptied: Sequence[int]


def opened_piece(piece: CutPiece, scratch: Sequence[Sizes], call_of: Sequence[int]) -> Opened:
    """Return a piece with the events of its calls, of which `call_of` has the number of each one's scratch."""
    events = piece.tokens.tolist()
    opened: list[int] = []
    added = [0]
    """Events that were added before each call."""
    sizes_from: list[int] = []
    starts = np.cumsum([0, *(len(sizes) for sizes, _, _ in scratch)]).tolist()
    done, begun = 0, 0
    for (at, call), number in zip(piece.calls, call_of, strict=True):
        sizes, begins, ends = scratch[number]
        if not call.ends:
            # No other block has these numbers, as they are given back within the piece.
            begun = len(piece.sizes_bytes) + len(sizes_from)
            sizes_from += range(starts[number], starts[number] + len(sizes))
        own = ends if call.ends else begins
        added.append(added[-1] + len(own))
        if own:
            opened += events[done:at]
            opened += [event + begun if event > 0 else event - begun for event in own]
            done = at
    found = np.array(opened + events[done:], dtype=np.int64)

    def moved(position: Position) -> int:
        return position[0] + added[position[1]]

    return Opened(
        events=found,
        frees_earlier=np.flatnonzero(found == 0),
        sizes_from=np.array(sizes_from, dtype=np.int64),
        phases=[(moved(position), phase) for position, phase in piece.phases],
        cache_emptied=[moved(position) for position in piece.cache_emptied],
    )


def with_calls(sizes_bytes: Numbers, scratch: Sequence[Sizes], opened: Opened) -> Numbers:
    """Return the sizes of the blocks of a piece, then of its calls."""
    of_calls = np.array([size for sizes, _, _ in scratch for size in sizes], dtype=np.int64)
    return np.concatenate([sizes_bytes, of_calls[opened.sizes_from]])


class Cut:
    """A trace that is cut into pieces."""

    def __init__(self, trace: Trace, kinds: dict[Hashable, int]) -> None:
        """Prepare to cut `trace`; `kinds` numbers sites without shapes, and grows.

        Categories do not count: by its shape alone a tensor may look like a gradient in one step and not in another.
        """
        self._trace = trace
        events = np.array(trace.events, dtype=np.int64)
        site_of = np.array(trace.site_of, dtype=np.int64)
        is_call = np.array([site.call is not None for site in trace.sites], dtype=np.bool_)[site_of]
        blocks = np.abs(events) - 1
        self._kept = ~is_call[blocks]
        """Events that are no calls."""
        self._number = number = np.cumsum(~is_call) - 1
        self._calls = np.flatnonzero((events > 0) & ~self._kept)
        self.events = np.sign(events) * (number[blocks] + 1)
        self._length = len(events)
        self._made = np.concatenate([[0], np.cumsum((events > 0) & self._kept)])
        self._sizes = np.array(trace.sizes_bytes, dtype=np.int64)[~is_call]
        self._freed_at = np.full(len(self._sizes), self._length, dtype=np.int64)
        frees = np.flatnonzero((events < 0) & self._kept)
        self._freed_at[-self.events[frees] - 1] = frees
        of_site = [kinds.setdefault((site.operation, site.module, site.dtype), len(kinds)) for site in trace.sites]
        self._kind = np.array(of_site, dtype=np.int64)[site_of][~is_call]
        self._bounds: list[int] = []
        """The first event of each piece, of which the first one precedes all steps."""
        self._starts: list[int] = []
        """The number of the first piece of each step."""

    def steps(self) -> list[list[CutPiece]]:
        """Return the pieces of each step."""
        # What precedes the first micro-batch may be nothing.
        bounds = step_bounds(self._trace)
        return self._cut([[first, *micro_batch_starts(self._trace, first, end), end] for first, end in bounds])

    def evaluations(self) -> list[list[CutPiece]]:
        """Return the pieces of each evaluation."""
        return self._cut(evaluation_cuts(self._trace))

    def _cut(self, cuts: Sequence[Sequence[int]]) -> list[list[CutPiece]]:
        self._bounds, self._starts = [0], []
        for step in cuts:
            if len(self._bounds) > 1 and self._bounds[-1] == step[0]:
                self._bounds.pop()  # the end of one step is the start of the next
            self._starts.append(len(self._bounds))
            self._bounds += step
        self._bounds.append(self._length)
        return [[self._piece(first, end) for first, end in pairwise(step)] for step in cuts]

    def before_steps(self) -> CutPiece:
        """Return what precedes the first step; after `steps`."""
        return self._piece(0, self._bounds[1])

    def _piece(self, first: int, end: int) -> CutPiece:
        events = self.events[first:end][self._kept[first:end]]
        base, top = int(self._made[first]), int(self._made[end])
        numbers = np.abs(events) - 1
        is_own = numbers >= base
        tokens = np.where(is_own, np.sign(events) * (numbers - base + 1), 0)
        earlier = self._references(numbers[~is_own], first)
        outliving = np.flatnonzero(self._outlives(base, top, end))
        kinds = self._kind[base:top]
        phases = self._phases(first, end)
        emptied = tuple(self._position(first, at) for at in self._trace.cache_emptied if first <= at < end)
        streams = {
            int(self._number[block]) - base: stream
            for block, stream in self._trace.streams.items()
            if base <= self._number[block] < top
        }
        calls = self._calls_within(first, end)
        return CutPiece(
            tokens=tokens,
            earlier=earlier,
            sizes_bytes=self._sizes[base:top],
            outliving=outliving,
            likeness=(
                tokens.tobytes(),
                earlier.tobytes(),
                kinds.tobytes(),
                phases,
                emptied,
                tuple(streams.items()),
                tuple((at, call.form, call.ends) for at, call in calls),
            ),
            outlives_as=kinds[outliving].tobytes(),
            phases=phases,
            cache_emptied=emptied,
            streams=streams,
            calls=calls,
        )

    def _position(self, first: int, at: int) -> Position:
        calls = int(np.searchsorted(self._calls, at) - np.searchsorted(self._calls, first))
        return int(self._kept[first:at].sum()), calls

    def _calls_within(self, first: int, end: int) -> tuple[tuple[int, ScratchCall], ...]:
        found = self._calls[np.searchsorted(self._calls, first) : np.searchsorted(self._calls, end)].tolist()
        sites, site_of, events = self._trace.sites, self._trace.site_of, self._trace.events
        before = np.cumsum(self._kept[first:end])
        return tuple((int(before[at - first]), sites[site_of[events[at] - 1]].call) for at in found)

    def _references(self, blocks: Numbers, first: int) -> Numbers:
        """Return, for each block of an earlier piece, how many pieces back it is and its place there."""
        bounds = np.array(self._bounds, dtype=np.int64)
        here = int(np.searchsorted(bounds, first, side="right")) - 1
        step = self._starts[int(np.searchsorted(bounds[self._starts], first, side="right")) - 1] if len(blocks) else 0
        found = []
        for block in blocks.tolist():
            piece = int(np.searchsorted(self._made[bounds], block, side="right")) - 1
            base = int(self._made[bounds[piece]])
            outliving = self._outlives(base, block, int(bounds[piece + 1]))
            back, place = here - piece, piece - step
            found.append((back if back == 1 or place not in (0, 1) else -1 - place, int(outliving.sum())))
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def _outlives(self, base: int, top: int, end: int) -> npt.NDArray[np.bool_]:
        """Return which of the blocks are freed, but not before `end`. What is never freed needs no name."""
        freed_at = self._freed_at[base:top]
        found: npt.NDArray[np.bool_] = (freed_at >= end) & (freed_at < self._length)
        return found

    def _phases(self, first: int, end: int) -> tuple[tuple[Position, Phase], ...]:
        starts = self._trace.phase_starts
        begun = [phase for at, phase in starts if at <= first]
        within = [(self._position(first, at), phase) for at, phase in starts if first < at < end]
        return (((0, 0), begun[-1] if begun else Phase.LOAD), *within)
