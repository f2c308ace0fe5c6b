"""Optimizer steps of any lengths, written out from the trace of a few of them.

Micro-batches of other lengths allocate the same blocks in the same order, with other sizes: each size is an integer
polynomial of the lengths, and scratch of kernels follows its own rule (`deferred_scratch.py`). What is learnt are
pieces of a step (`step_pieces.py`). A piece has variants, as its rows are padded or not: where no row is, transformers
makes no attention mask.

Exact or not at all. All occurrences of a variant agree in order, sites and phases; every block that
outlives its piece is the same in all variants; every size fits in every occurrence, but for requests of less than the
smallest block, which count as one. `UnequalStepsError` says what does not.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.allocator.traces.trace import Integers, Piece, Trace
from profiler.domain.runs.step_shape import StepLengths
from profiler.simulation.cuda.scratch.deferred_scratch import ScratchCall, Sizes
from profiler.simulation.extrapolation.step_pieces import (
    Cut,
    CutPiece,
    Fitted,
    Indistinct,
    Numbers,
    Opened,
    fitted,
    opened_piece,
    with_calls,
)
from profiler.simulation.extrapolation.step_variants import COUNTED, Place, Variant, named, step_features, variants

FIRST_STEPS = 2
"""Steps before those that repeat: the first one makes the optimizer's states, the second frees what the first left."""

FEWEST_OCCURRENCES = 5
"""Of a variant: two define a size as a function of one length, three as one of two lengths; the others confirm it."""


class UnequalStepsError(Exception):
    """The steps cannot be written out exactly; the message is a clause that says why."""


@dataclass(frozen=True, kw_only=True)
class RunOfSteps:
    """A run to learn from."""

    trace: Trace
    """Of one card (`Trace.on`), from the start of the program to its end."""
    shapes: Sequence[StepLengths]
    """Of each optimizer step. The last one is not learnt from: the end of training frees more."""


class ParametricSteps:
    """Steps after the first ones, as functions of their shapes."""

    def __init__(
        self,
        runs: Sequence[RunOfSteps],
        *,
        first_steps: int = FIRST_STEPS,
        empties: Callable[[int], bool] | None = None,
        pads_masks: bool = False,
        needed: Collection[Variant] | None = None,
    ) -> None:
        """Learn from all but the first, the last and the last but one step of each run; the last but one confirms.

        Args:
            runs: The steps that are written out follow the first steps of the first run.
            first_steps: Steps that are not learnt from, at least `FIRST_STEPS`; whole generations.
            empties: Whether the micro-batches of a step, from 0, empty the cache where those of the runs do. None: all.
            pads_masks: As for `variants`.
            needed: Variants of the steps that will be written out; None: all of the runs.

        Raises:
            UnequalStepsError: The steps cannot be written out exactly.
        """
        self._variants = partial(variants, pads_masks=pads_masks)
        kinds: dict[Hashable, int] = {}
        occurrences: dict[Variant, list[_Occurrence]] = defaultdict(list)
        confirming: list[tuple[Variant, _Occurrence]] = []
        begun: list[list[CutPiece]] = []
        left: dict[int, set[int]] = defaultdict(set)
        for run in runs:
            cut = Cut(run.trace, kinds)
            is_training = bool(run.shapes[0].micro_batches)
            pieces = cut.steps() if is_training else cut.evaluations()
            steps = [self._occurrences(*step) for step in zip(pieces, run.shapes, strict=True)]
            for step in steps[first_steps:-2]:
                for variant, occurrence in step:
                    occurrences[variant].append(occurrence)
            confirming += steps[-2]
            for shape, step_pieces in list(zip(run.shapes, pieces, strict=True))[first_steps:-1]:
                left[shape.place].add(sum(piece.left for piece in step_pieces))
            if not begun:
                before = [cut.before_steps()] if is_training else []
                begun = [[*before, *pieces[0]], *pieces[1:first_steps]]
        self._templates = {
            variant: _Template(variant, found)
            for variant, found in occurrences.items()
            if needed is None or variant in needed
        }
        self._check_outliving()
        if any(len(found) > 1 for found in left.values()):
            raise UnequalStepsError("steps alike leave other blocks behind")
        self._left = {place: next(iter(found)) for place, found in left.items()}
        """Blocks that a step leaves in use more than there were, by its place among those of a generation."""
        for variant, occurrence in confirming:
            if (template := self._templates.get(variant)) is not None:
                template.check(*occurrence)
        # Calls of equal arguments are one object.
        sizes = {id(call): call.sizes() for step in begun for piece in step for _, call in piece.calls}
        self._begun = [[(piece, [sizes[id(call)] for _, call in piece.calls]) for piece in step] for step in begun]
        self._empties = empties or (lambda _: True)
        self._steps = 0
        self._outliving: list[Numbers] = []
        self._blocks = self._step = 0

    @property
    def events_per_step(self) -> int:
        """Events of a step, of a usual kind, without scratch that follows its own rule."""
        by_place = {variant[:2]: len(template.piece.tokens) for variant, template in self._templates.items()}
        return sum(by_place.values()) // len({place for _, place in by_place})

    def begin(self) -> Iterator[list[Piece]]:
        """Yield the pieces of each of the first steps, as they ran; the first one includes loading.

        What was written before is forgotten.
        """
        self._outliving, self._blocks, self._steps = [], 0, 0
        for number, step in enumerate(self._begun):
            # What precedes the first step is a piece of its own.
            before = 1 + (number == 0)
            self._step = len(self._outliving) + before - 1
            pieces = []
            for place, (piece, scratch) in enumerate(step):
                pieces.append(self._as_it_ran(piece, scratch, is_micro_batch=place >= before))
            yield pieces
            self._steps += 1

    def _as_it_ran(self, piece: CutPiece, scratch: list[Sizes], *, is_micro_batch: bool = False) -> Piece:
        opened = opened_piece(piece, scratch, range(len(scratch)))
        sizes = with_calls(piece.sizes_bytes, scratch, opened)
        return self._numbered(piece, opened, sizes, is_micro_batch=is_micro_batch)

    def alone(self, shape: StepLengths, *, first_block: int, begun: int = 0, ran: Collection[int] = ()) -> list[Piece]:
        """Return the pieces of an evaluation, to which nothing else refers.

        Args:
            shape: The evaluation.
            first_block: Number of its first block.
            begun: The number of one of the first ones.
            ran: Places of pieces that are as they ran in that one.

        Raises:
            UnequalStepsError: A variant was not learnt.
        """
        self._outliving, self._blocks, self._step = [], first_block, 0
        pieces = []
        for place, (template, found, _) in enumerate(self.known(shape)):
            if place in ran:
                pieces.append(self._as_it_ran(*self._begun[begun][place]))
            else:
                opened, sizes = template.opened(found)
                pieces.append(self._numbered(template.piece, opened, sizes, is_micro_batch=False))
        return pieces

    def written(self, shape: StepLengths) -> Iterator[Piece]:
        """Yield the pieces of the next step, after those of `begin`.

        Raises:
            UnequalStepsError: A variant was not learnt.
        """
        self._step = len(self._outliving)
        for template, found, is_micro_batch in self.known(shape):
            opened, sizes = template.opened(found)
            yield self._numbered(template.piece, opened, sizes, is_micro_batch=is_micro_batch)
        self._steps += 1

    def known(self, shape: StepLengths) -> list[tuple["_Template", Numbers, bool]]:
        """Return what each piece of a step is like, the features of the step, and whether it is a micro-batch.

        Raises:
            UnequalStepsError: A variant was not learnt.
        """
        pieces = []
        for variant, lengths in zip(self._variants(shape), step_features(shape), strict=True):
            template = self._templates.get(variant)
            if template is None:
                raise UnequalStepsError(f"no step like it was learnt from, in {named(variant)}")
            found = np.array(lengths, dtype=np.int64)
            if not template.indistinct.allows(found):
                raise UnequalStepsError(f"its lengths are unlike those that were learnt from, in {named(variant)}")
            pieces.append((template, found, variant[0] is not Place.BEFORE))
        left = sum(template.piece.left for template, _, _ in pieces)
        if left != self._left.get(shape.place):
            raise UnequalStepsError("micro-batches of several kinds free other blocks in one step")
        return pieces

    def unlike(self, shape: StepLengths) -> list[bool]:
        """Return whether the lengths of each piece of a step go together as in none that was learnt from.

        Variants that were not learnt are not among them.
        """
        pieces = zip(self._variants(shape), step_features(shape), strict=True)
        found = ((self._templates.get(variant), np.array(lengths, dtype=np.int64)) for variant, lengths in pieces)
        return [template is not None and not template.indistinct.allows(lengths) for template, lengths in found]

    def _numbered(self, piece: CutPiece, opened: Opened, sizes_bytes: Numbers, *, is_micro_batch: bool) -> Piece:
        """Return an opened piece with the numbers of its blocks."""
        base, here = self._blocks, len(self._outliving)
        events = opened.events + np.sign(opened.events) * base
        freed = [
            self._outliving[here - back if back > 0 else self._step - back - 1][place]
            for back, place in piece.earlier.tolist()
        ]
        events[opened.frees_earlier] = -np.array(freed, dtype=np.int64) - 1
        self._outliving.append(piece.outliving + base)
        self._blocks += len(piece.sizes_bytes)
        return Piece(
            events=Integers(events),
            first_block=base,
            sizes_bytes=Integers(sizes_bytes),
            phases=opened.phases,
            cache_emptied=opened.cache_emptied if not is_micro_batch or self._empties(self._steps) else (),
            streams=piece.streams,
        )

    def _occurrences(self, pieces: Sequence[CutPiece], shape: StepLengths) -> list[tuple[Variant, "_Occurrence"]]:
        if len(pieces) != 1 + len(shape.micro_batches) + (0 if shape.micro_batches else 2 * len(shape.batches)):
            raise UnequalStepsError("a micro-batch is not one forward pass")
        found = zip(self._variants(shape), pieces, step_features(shape), strict=True)
        return [(variant, (piece, lengths)) for variant, piece, lengths in found]

    def _check_outliving(self) -> None:
        by_place: dict[tuple[Place, int], set[Hashable]] = defaultdict(set)
        for (number, place, _), template in self._templates.items():
            by_place[number, place].add(template.piece.outlives_as)
        if any(len(found) > 1 for found in by_place.values()):
            raise UnequalStepsError("padded micro-batches leave other blocks behind than whole ones")


_Occurrence = tuple[CutPiece, list[int]]
"""A piece, and the features of its step."""


class _Template:
    """A piece as a function of the features of its step."""

    def __init__(self, variant: Variant, found: Sequence[_Occurrence]) -> None:
        self._variant = variant
        pieces, lengths = [piece for piece, _ in found], np.array([lengths for _, lengths in found])
        if len(pieces) < FEWEST_OCCURRENCES:
            raise UnequalStepsError(f"{len(pieces)} steps are too few to learn from, in {named(variant)}")
        if len({piece.likeness for piece in pieces}) > 1:
            raise UnequalStepsError(f"steps alike allocate in another order, in {named(variant)}")
        self.piece = pieces[0]
        self.sizes = self._fitted(lengths, np.stack([piece.sizes_bytes for piece in pieces]), are_sizes=True)
        # Thousands of calls have few different arguments.
        numbers = [[number for _, call in piece.calls for number in call.numbers()] for piece in pieces]
        distinct, self._numbers_of = np.unique(np.array(numbers, dtype=np.int64), axis=1, return_inverse=True)
        self._numbers = self._fitted(lengths, distinct, are_sizes=False)
        self._calls, self._call_of = self._distinct_calls()
        of_lengths = lengths[:, :-1] if variant[0] in COUNTED else lengths
        self.indistinct = Indistinct(of_lengths, self.sizes.used | self._numbers.used)
        self._kept: dict[tuple[int, ...], Sizes] = {}
        self._opened: dict[Hashable, Opened] = {}
        """By what decides its events. Sizes of scratch vary, its events hardly ever do."""

    def opened(self, found: Numbers) -> tuple[Opened, Numbers]:
        """Return the piece with its calls for these features, and the sizes of all its blocks."""
        scratch = self._scratch(found)
        form = tuple([(len(sizes), begins, ends) for sizes, begins, ends in scratch])
        opened = self._opened.get(form)
        if opened is None:
            opened = self._opened[form] = opened_piece(self.piece, scratch, self._call_of)
        return opened, with_calls(self.sizes.of(found), scratch, opened)

    def _scratch(self, found: Numbers) -> list[Sizes]:
        """Return the scratch of each distinct call for these features."""
        numbers = self._numbers.of(found).tolist()
        taken: list[Sizes] = []
        for call, places in self._calls:
            own = [numbers[place] for place in places]
            key = (call.kind, *own)
            sizes = self._kept.get(key)
            if sizes is None:
                sizes = self._kept[key] = call.with_numbers(own).sizes()
            taken.append(sizes)
        return taken

    def _distinct_calls(self) -> tuple[list[tuple[ScratchCall, list[int]]], list[int]]:
        """Return calls that differ, with the places of their numbers, and which of them each call of the piece is.

        Those of one layer are like those of another, whatever the lengths.
        """
        distinct: dict[tuple[int, ...], int] = {}
        calls: list[tuple[ScratchCall, list[int]]] = []
        call_of: list[int] = []
        at = 0
        for _, call in self.piece.calls:
            places = self._numbers_of[at : at + call.count].tolist()
            number = distinct.setdefault((call.kind, *places), len(calls))
            if number == len(calls):
                calls.append((call, places))
            call_of.append(number)
            at += call.count
        return calls, call_of

    def check(self, piece: CutPiece, lengths: list[int]) -> None:
        """Compare a further occurrence with what was learnt.

        Raises:
            UnequalStepsError: It differs.
        """
        found = np.array(lengths, dtype=np.int64)
        sizes, calls = _counted(piece.sizes_bytes), [call.sizes() for _, call in piece.calls]
        is_equal = piece.likeness == self.piece.likeness and np.array_equal(sizes, _counted(self.sizes.of(found)))
        scratch = self._scratch(found)
        if not is_equal or calls != [scratch[number] for number in self._call_of]:
            raise UnequalStepsError(f"a further step is not as it was learnt, in {named(self._variant)}")

    def _fitted(self, lengths: Numbers, values: Numbers, *, are_sizes: bool) -> Fitted:
        found = fitted(lengths, values, are_sizes=are_sizes)
        if isinstance(found, int):
            raise UnequalStepsError(
                f"the sizes of block {found} do not follow from the lengths, in {named(self._variant)}"
            )
        return found


def _counted(sizes: Numbers) -> Numbers:
    """Return sizes as the allocator counts them: at least a smallest block, unless there is nothing."""
    return np.where(sizes > 0, np.maximum(sizes, MIN_BLOCK_BYTES), 0)
