"""Optimizer steps of any lengths, written out from the trace of a few of them.

Micro-batches of other lengths allocate the same blocks in the same order, with other sizes: each size is an integer
polynomial of the lengths. What is learnt are pieces of a step: what precedes the first micro-batch (rollout, scores),
and each micro-batch, the last one with the optimizer. A piece has two variants, as its rows are padded or not: where no
row is, transformers makes no attention mask.

Exact or not at all. All occurrences of a variant agree in order, sites, categories and phases; every block that
outlives its piece is the same in all variants; every size fits in every occurrence, but for requests of less than the
smallest block, which count as one. `UnequalStepsError` says what does not.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, combinations_with_replacement, pairwise

import numpy as np
import numpy.typing as npt

from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.allocator.traces.step_replay import Piece
from profiler.allocator.traces.trace import Trace
from profiler.domain.memory import Phase
from profiler.domain.trials.step_shapes import MicroBatch, StepShape

Numbers = npt.NDArray[np.int64]

FIRST_STEPS = 2
"""Steps before those that repeat: the first one makes the optimizer's states, the second frees what the first left."""

FEWEST_OCCURRENCES = 5
"""Of a variant: two define a size as a function of one length, three as one of two lengths; the others confirm it."""

_KIND_BITS = 32

_COMBINED = 20
"""Features of which two are tried together."""

_MULTIPLES = (8, 128)
"""Kernels and masks round lengths up to them."""


class UnequalStepsError(Exception):
    """The steps cannot be written out exactly; the message is a clause that says why."""


# ---- pieces of a trace -----------------------------------------------------------------------------------------------


def step_bounds(trace: Trace) -> list[tuple[int, int]]:
    """Return the first event and the end of each optimizer step. What follows the optimizer, logging, belongs to it."""
    starts: list[int] = []
    before = Phase.LOAD
    for first, phase in trace.phase_starts:
        if phase is not Phase.OPTIMIZER and before in (Phase.LOAD, Phase.OPTIMIZER) and phase is not Phase.LOAD:
            starts.append(first)
        before = phase
    return list(pairwise([*starts, len(trace.events)]))


@dataclass(frozen=True, kw_only=True)
class _Piece:
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
    phases: tuple[tuple[int, Phase], ...]
    """Where phases begin, counted from the first event; the first one is that in which the piece begins."""
    cache_emptied: tuple[int, ...]
    streams: Mapping[int, int]


class _Cut:
    """A trace that is cut into pieces."""

    def __init__(self, trace: Trace, kinds: dict[Hashable, int]) -> None:
        """Prepare to cut `trace`; `kinds` numbers sites with categories, and grows."""
        self._trace = trace
        self.events = np.array(trace.events, dtype=np.int64)
        self._made = np.concatenate([[0], np.cumsum(self.events > 0)])
        self._sizes = np.array(trace.sizes_bytes, dtype=np.int64)
        self._freed_at = np.full(len(self._sizes), len(self.events), dtype=np.int64)
        frees = np.flatnonzero(self.events < 0)
        self._freed_at[-self.events[frees] - 1] = frees
        of_site = [kinds.setdefault((site.operation, site.module, site.dtype), len(kinds)) for site in trace.sites]
        of_block = [kinds.setdefault(category, len(kinds)) for category in trace.categories]
        self._kind = np.array(of_site, dtype=np.int64)[np.array(trace.site_of, dtype=np.int64)] << _KIND_BITS
        self._kind += np.array(of_block, dtype=np.int64)
        self._bounds: list[int] = []
        """The first event of each piece, of which the first one precedes all steps."""
        self._starts: list[int] = []
        """The number of the first piece of each step."""

    def steps(self) -> list[list[_Piece]]:
        """Return the pieces of each step."""
        steps = step_bounds(self._trace)
        forwards = [first for first, phase in self._trace.phase_starts if phase is Phase.FORWARD]
        # What precedes the first micro-batch may be nothing.
        cuts = [[first, *(at for at in forwards if first <= at < end), end] for first, end in steps]
        self._bounds = [0, *(at for step in cuts for at in step[:-1]), len(self.events)]
        self._starts = np.cumsum([1, *(len(step) - 1 for step in cuts)]).tolist()
        return [[self.piece(first, end) for first, end in pairwise(step)] for step in cuts]

    def piece(self, first: int, end: int) -> _Piece:
        events = self.events[first:end]
        base, top = int(self._made[first]), int(self._made[end])
        numbers = np.abs(events) - 1
        is_own = numbers >= base
        tokens = np.where(is_own, np.sign(events) * (numbers - base + 1), 0)
        earlier = self._references(numbers[~is_own], first)
        outliving = np.flatnonzero(self._outlives(base, top, end))
        kinds = self._kind[base:top]
        phases = self._phases(first, end)
        emptied = tuple(at - first for at in self._trace.cache_emptied if first <= at < end)
        streams = {block - base: stream for block, stream in self._trace.streams.items() if base <= block < top}
        return _Piece(
            tokens=tokens,
            earlier=earlier,
            sizes_bytes=self._sizes[base:top],
            outliving=outliving,
            likeness=(tokens.tobytes(), earlier.tobytes(), kinds.tobytes(), phases, emptied, tuple(streams.items())),
            outlives_as=kinds[outliving].tobytes(),
            phases=phases,
            cache_emptied=emptied,
            streams=streams,
        )

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
        found: npt.NDArray[np.bool_] = (freed_at >= end) & (freed_at < len(self.events))
        return found

    def _phases(self, first: int, end: int) -> tuple[tuple[int, Phase], ...]:
        starts = self._trace.phase_starts
        begun = [phase for at, phase in starts if at <= first]
        within = [(at - first, phase) for at, phase in starts if first < at < end]
        return ((0, begun[-1] if begun else Phase.LOAD), *within)


# ---- sizes as functions of lengths -----------------------------------------------------------------------------------


def features(batch: MicroBatch) -> list[int]:
    """Return the numbers of which sizes are linear functions, the simplest first.

    By hand, a prompt of 3 and a completion of 4 tokens, 5 of them scored in one part: 7 in a row, 3, 4, 5 in all, 5;
    then 49, 7 x 8, the lengths rounded up to 8 and to 128, and 9, 12, 16.
    """
    row = sum(batch.widths)
    rounded = [-(-length // multiple) * multiple for multiple in _MULTIPLES for length in (row, *batch.widths)]
    products = [one * other for one, other in combinations_with_replacement(batch.widths, 2)]
    return [row, *batch.widths, sum(batch.scored), *batch.scored, row * row, row * rounded[0], *rounded, *products]


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The size of each block: a constant, and the multiples of two features."""

    constant: Numbers
    feature: Numbers
    """[2, blocks]: numbers of the features; those that are not needed have 0 of feature 0."""
    factor: Numbers
    """[2, blocks]."""

    def of(self, found: Numbers) -> Numbers:
        """Return the sizes in bytes for these features."""
        sizes: Numbers = self.constant + (self.factor * found[self.feature]).sum(axis=0)
        return sizes


def _fitted(found: Numbers, sizes: Numbers) -> _Sizes | int:
    """Return the sizes as functions of the features; or the number of a block that has none.

    Args:
        found: [occurrences, features], the likeliest first; the first ones are combined.
        sizes: [occurrences, blocks].
    """
    # All of one smallest block: counts of rows, which only the values of tokens decide.
    smallest = (sizes > 0).all(axis=0) & (sizes <= MIN_BLOCK_BYTES).all(axis=0)
    constant, blocks = np.where(smallest, MIN_BLOCK_BYTES, sizes[0]), sizes.shape[1]
    feature, factor = np.zeros((2, blocks), dtype=np.int64), np.zeros((2, blocks), dtype=np.int64)
    left = np.flatnonzero((sizes != sizes[0]).any(axis=0) & ~smallest)
    for number in range(found.shape[1]):
        if not len(left):
            break
        base, slope = _line(found[:, number], sizes[:, left])
        fits = (base + slope * found[:, [number]] == sizes[:, left]).all(axis=0)
        done = left[fits]
        constant[done], feature[0, done], factor[0, done] = base[fits], number, slope[fits]
        left = left[~fits]
    for one, other in combinations(range(min(_COMBINED, found.shape[1])), 2):
        if not len(left):
            break
        fits, solution = _plane(found[:, [one, other]], sizes[:, left])
        done = left[fits]
        constant[done], factor[0, done], factor[1, done] = solution[:, fits]
        feature[0, done], feature[1, done] = one, other
        left = left[~fits]
    return int(left[0]) if len(left) else _Sizes(constant=constant, feature=feature, factor=factor)


def _line(found: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers]:
    """Return constant and slope of the line through the least and the greatest value of a feature."""
    low, high = int(found.argmin()), int(found.argmax())
    width = max(1, int(found[high] - found[low]))
    slope = (sizes[high] - sizes[low]) // width
    return sizes[low] - slope * found[low], slope


def _plane(found: Numbers, sizes: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Return which blocks are a constant and whole multiples of two features, and [constant, multiples] of each."""
    scale = np.maximum(1, np.abs(found).max(axis=0))
    design = np.concatenate([np.ones((len(found), 1)), found / scale], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, sizes.astype(np.float64), rcond=None)
    if rank < design.shape[1]:
        return np.zeros(sizes.shape[1], dtype=np.bool_), np.zeros((3, sizes.shape[1]), dtype=np.int64)
    slopes = np.rint(solution[1:] / scale[:, None]).astype(np.int64)
    constant = sizes[0] - found[0] @ slopes
    return (constant + found @ slopes == sizes).all(axis=0), np.concatenate([constant[None], slopes])


# ---- learning, and writing -------------------------------------------------------------------------------------------


class Place(StrEnum):
    """Where a piece stands in its step."""

    BEFORE = "before"
    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    """With the optimizer. A single micro-batch is the last one."""


Variant = tuple[Place, int, Hashable]
"""The place of a piece in its step, of the step in its cycle of generations, and what decides the piece's events."""


def variants(shape: StepShape) -> Iterator[Variant]:
    """Yield the variant of each piece of a step."""
    yield Place.BEFORE, shape.place, (shape.pads_prompts, tuple(batch.padded for batch in shape.scored_before))
    last = len(shape.micro_batches)
    for number, batch in enumerate(shape.micro_batches, start=1):
        place = Place.LAST if number == last else Place.FIRST if number == 1 else Place.MIDDLE
        yield place, shape.place, (batch.rows, batch.padded)


def _lengths(shape: StepShape) -> Iterator[list[int]]:
    """Yield the features for each piece of a step: its own micro-batch, then others that it may prepare or keep."""
    batches = shape.micro_batches
    yield [each for batch in (*batches, *shape.scored_before) for each in features(batch)]
    for batch, following in zip(batches, (*batches[1:], batches[-1]), strict=True):
        yield [*features(batch), *features(following)]


@dataclass(frozen=True, kw_only=True)
class _Template:
    piece: _Piece
    sizes: _Sizes


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """A run to learn from."""

    trace: Trace
    """Of one card (`Trace.on`), from the start of the program to its end."""
    shapes: Sequence[StepShape]
    """Of each optimizer step. The last one is not learnt from: the end of training frees more."""


class ParametricSteps:
    """Steps after the first ones, as functions of their shapes."""

    def __init__(self, runs: Sequence[Learnt], *, first_steps: int = FIRST_STEPS) -> None:
        """Learn from all but the first, the last and the last but one step of each run; the last but one confirms.

        Args:
            runs: The steps that are written out follow the first steps of the first run.
            first_steps: Steps that are not learnt from, at least `FIRST_STEPS`; whole generations.

        Raises:
            UnequalStepsError: The steps cannot be written out exactly.
        """
        kinds: dict[Hashable, int] = {}
        occurrences: dict[Variant, list[_Occurrence]] = defaultdict(list)
        confirming: list[tuple[Variant, _Occurrence]] = []
        for run in runs:
            cut = _Cut(run.trace, kinds)
            steps = [_occurrences(*step) for step in zip(cut.steps(), run.shapes, strict=True)]
            for step in steps[first_steps:-2]:
                for variant, occurrence in step:
                    occurrences[variant].append(occurrence)
            confirming += steps[-2]
        self._templates = {variant: _template(variant, found) for variant, found in occurrences.items()}
        self._check_outliving()
        for variant, occurrence in confirming:
            self._check(variant, occurrence)
        begun, bounds = _Cut(runs[0].trace, kinds), step_bounds(runs[0].trace)
        self.first_events = [end for _, end in bounds[:first_steps]]
        """The ends of the first steps, as events of the first run."""
        self._outliving: list[Numbers] = []
        self._blocks = 0
        before = begun.steps()[:first_steps]
        for piece in (begun.piece(0, bounds[0][0]), *(piece for step in before for piece in step)):
            self._number(piece)
        self._begun = list(self._outliving), self._blocks
        self._step = 0

    @property
    def events_per_step(self) -> int:
        """Events of a step of the most frequent kind."""
        by_place = {variant[:2]: len(template.piece.tokens) for variant, template in self._templates.items()}
        return sum(by_place.values()) // len({place for _, place in by_place})

    def restart(self) -> None:
        """Go back to the end of the first steps."""
        outliving, self._blocks = self._begun
        self._outliving = list(outliving)

    def written(self, shape: StepShape) -> Iterator[Piece]:
        """Yield the pieces of the next step.

        Raises:
            UnequalStepsError: A variant was not learnt.
        """
        self._step = len(self._outliving)
        for variant, lengths in zip(variants(shape), _lengths(shape), strict=True):
            template = self._templates.get(variant)
            if template is None:
                raise UnequalStepsError(f"no step like it was learnt from: {variant}")
            yield self._write(template, np.array(lengths, dtype=np.int64))

    def _write(self, template: "_Template", lengths: Numbers) -> Piece:
        piece, base = template.piece, self._blocks
        events = piece.tokens + np.sign(piece.tokens) * base
        here = len(self._outliving)
        freed = [
            self._outliving[here - back if back > 0 else self._step - back - 1][place]
            for back, place in piece.earlier.tolist()
        ]
        events[piece.tokens == 0] = -np.array(freed, dtype=np.int64) - 1
        self._number(piece)
        return Piece(
            events=events.tolist(),
            first_block=base,
            sizes_bytes=template.sizes.of(lengths).tolist(),
            phases=piece.phases,
            cache_emptied=piece.cache_emptied,
            streams=piece.streams,
        )

    def _number(self, piece: _Piece) -> None:
        """Give the blocks of the next piece their numbers."""
        self._outliving.append(piece.outliving + self._blocks)
        self._blocks += len(piece.sizes_bytes)

    def _check(self, variant: Variant, occurrence: "_Occurrence") -> None:
        piece, lengths = occurrence
        template = self._templates.get(variant)
        if template is None:
            return
        sizes, written = piece.sizes_bytes, template.sizes.of(np.array(lengths, dtype=np.int64))
        if piece.likeness != template.piece.likeness or not np.array_equal(_counted(sizes), _counted(written)):
            raise UnequalStepsError(f"a further step is not as it was learnt: {variant}")

    def _check_outliving(self) -> None:
        by_place: dict[tuple[Place, int], set[Hashable]] = defaultdict(set)
        for (number, place, _), template in self._templates.items():
            by_place[number, place].add(template.piece.outlives_as)
        if any(len(found) > 1 for found in by_place.values()):
            raise UnequalStepsError("padded micro-batches leave other blocks behind than whole ones")


_Occurrence = tuple[_Piece, list[int]]
"""A piece, and the features of its step."""


def _occurrences(pieces: Sequence[_Piece], shape: StepShape) -> list[tuple[Variant, _Occurrence]]:
    if len(pieces) != 1 + len(shape.micro_batches):
        raise UnequalStepsError("a micro-batch is not one forward pass")
    found = zip(variants(shape), pieces, _lengths(shape), strict=True)
    return [(variant, (piece, lengths)) for variant, piece, lengths in found]


def _counted(sizes: Numbers) -> Numbers:
    """Return sizes as the allocator counts them: at least a smallest block, unless there is nothing."""
    return np.where(sizes > 0, np.maximum(sizes, MIN_BLOCK_BYTES), 0)


def _template(variant: Variant, found: Sequence[_Occurrence]) -> _Template:
    pieces = [piece for piece, _ in found]
    if len(pieces) < FEWEST_OCCURRENCES:
        raise UnequalStepsError(f"{len(pieces)} steps are too few to learn from: {variant}")
    if len({piece.likeness for piece in pieces}) > 1:
        raise UnequalStepsError(f"micro-batches alike allocate in another order: {variant}")
    sizes = _fitted(np.array([lengths for _, lengths in found]), np.stack([piece.sizes_bytes for piece in pieces]))
    if isinstance(sizes, int):
        raise UnequalStepsError(f"block {sizes} has a size that no polynomial of the lengths has: {variant}")
    return _Template(piece=pieces[0], sizes=sizes)
