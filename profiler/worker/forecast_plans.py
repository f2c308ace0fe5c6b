"""Which rows the runs of a forecast that are learnt from have: of training, and of evaluations that generate."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.recipe import GENERATING
from profiler.domain.trials.trial import Attention, Evaluations, Rollout, RowLengths, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import (
    FEWEST_OCCURRENCES,
    FIRST_STEPS,
    UnequalStepsError,
    Variant,
    variants,
)
from profiler.training.recipes.step_grouping import (
    evaluated_batch,
    evaluated_batches,
    evaluated_order,
    evaluation_shape,
    shorter,
    step_shapes,
    steps_per_unit,
    unit_rows,
)
from profiler.worker.simulated import card_of

_MOST_STEPS = 16
"""Of one run to learn from: deep models run few layers in runs of so many steps."""

_MOST_UNITS = 64
"""Of all runs to learn from. More variants than they show are not learnt."""

_SHORTER = (0.9, 0.75, 0.6, 0.8, 0.5, 0.7, 0.95, 0.4, 0.85, 0.3)
"""Factors for the lengths of a rare kind of step, so that there are enough of its kind to learn from."""

_FEWEST_CHANGED = 2
"""Units whose lengths are changed: where all of the draws have rows of the maximum, only they show what varies."""

_MOVED = (3, 5, 2, 7, 1)
"""Tokens that a shorter prompt loses to its completions, so that only the row is aligned as it was."""


def pads_masks(spec: TrialSpec) -> bool:
    """Return whether the kernel of the attention pads masks whose rows are not aligned."""
    return spec.attn_implementation is Attention.SDPA and not card_of(spec).chip.has_cudnn_attention


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which units of the draws, and units like them, the runs to learn from have."""

    spec: TrialSpec
    draws: Sequence[RowLengths]
    pads_masks: bool

    @property
    def first_units(self) -> int:
        """Units with the first steps, which are not learnt from."""
        return first_units(self.spec)

    def runs(self) -> list[list[RowLengths]]:
        """Return the rows of each run, unit by unit.

        Each begins with the first units of the first draw. Every variant occurs often enough in those that follow; the
        two last ones are further units of the draws, of which the first confirms what was learnt.
        """
        begun = [unit_rows(self.spec, self.draws[0], unit) for unit in range(self.first_units)]
        chosen = self._chosen()
        per_run = max(1, _MOST_STEPS // steps_per_unit(self.spec) - self.first_units - 2)
        runs = []
        for start in range(0, len(chosen), per_run):
            part = chosen[start : start + per_run]
            confirming = [chosen[(start + len(part) + other) % len(chosen)] for other in range(2)]
            runs.append([*begun, *part, *confirming])
        return runs

    @cached_property
    def places(self) -> Mapping[Variant, Sequence["_Place"]]:
        """Where each variant of the draws occurs."""
        places: dict[Variant, list[_Place]] = defaultdict(list)
        units = -(-self.spec.steps // steps_per_unit(self.spec))
        for number, draw in enumerate(self.draws):
            for unit in range(self.first_units, units):
                for variant, batch in self._pieces(unit_rows(self.spec, draw, unit)):
                    places[variant].append(((number, unit), _lengths_of(batch)))
        return places

    def _chosen(self) -> list[RowLengths]:
        """Return units in which every variant of the draws occurs often enough."""
        places = self.places
        chosen: list[RowLengths] = []
        counts: Counter[Variant] = Counter()
        changed: Counter[Variant] = Counter()
        """Of units that are none of the draws."""
        used: set[_Unit] = set()

        def choose(unit: RowLengths, *of: Counter[Variant]) -> None:
            found = [each for each, _ in self._pieces(unit)]
            if variant in found and len(chosen) < _MOST_UNITS:
                chosen.append(unit)
                for counter in of:
                    counter.update(found)

        for variant in sorted(places, key=lambda each: len(places[each])):
            spread = list(dict.fromkeys(_spread(places[variant])))
            for place in spread:
                # The shortest and the longest one are needed in any case.
                if place not in used and (place in spread[:2] or counts[variant] <= FEWEST_OCCURRENCES):
                    used.add(place)
                    choose(self._unit(place), counts)
            for unit in self._changed(spread):
                if counts[variant] > FEWEST_OCCURRENCES and changed[variant] >= _FEWEST_CHANGED:
                    break
                choose(unit, counts, changed)
        return chosen

    def _changed(self, spread: Sequence["_Unit"]) -> Iterator[RowLengths]:
        """Yield units like some of the draws with other lengths."""
        for number, factor in enumerate(_SHORTER):
            for unit in spread:
                moved = _MOVED[number % len(_MOVED)]
                yield shorter(self._unit(unit), factor, 1)
                yield shorter(self._unit(unit), factor, MASK_ALIGNMENT, moved=moved)
                yield shorter(self._unit(unit), factor, MASK_ALIGNMENT)
                if self.spec.recipe.facts.has_reference_pass and not self.spec.recipe.facts.has_rollout:
                    yield from self._levelled(self._unit(unit), round(factor * self.spec.row_tokens))

    def _levelled(self, unit: RowLengths, longest: int) -> Iterator[RowLengths]:
        """Yield units each of whose micro-batches has rows of one length.

        By their completions, by those of neighbours, or with one prompt and one completion.
        """
        each, size, random = self.spec.rows_per_prompt, self.spec.training_rows, Random(longest)
        batches = list(range(0, len(unit.completions), size))
        tokens = [random.randint(2 + longest // 2, 2 + longest) for _ in batches]
        prompts = [min(prompt, tokens[number * each // size] - 1) for number, prompt in enumerate(unit.prompts)]
        own = [tokens[row // size] - prompts[row // each] for row in range(len(unit.completions))]
        turned = [own[start + (row + 1) % size] for start in batches for row in range(size)]
        yield replace(unit, prompts=prompts, completions=own)
        yield replace(unit, prompts=prompts, completions=turned)
        first = [prompts[number * each // size * size // each] for number in range(len(prompts))]
        alike = [tokens[row // size] - first[row // each] for row in range(len(own))]
        yield replace(unit, prompts=first, completions=alike)

    def _unit(self, place: "_Unit") -> RowLengths:
        draw, unit = place
        return unit_rows(self.spec, self.draws[draw], unit)

    def _pieces(self, unit: RowLengths) -> Iterator[tuple[Variant, MicroBatch]]:
        """Yield the variant of each piece of a unit's steps, and a micro-batch that it is about."""
        for shape in step_shapes(replace(self.spec, steps=steps_per_unit(self.spec)), unit):
            batches = (shape.micro_batches[0], *shape.micro_batches)
            yield from zip(variants(shape, pads_masks=self.pads_masks), batches, strict=True)


_Unit = tuple[int, int]
"""Numbers of a draw and of a unit of it."""

_Place = tuple[_Unit, tuple[int, ...]]
"""A unit with a variant, and the lengths of a piece that has it."""


def _lengths_of(batch: MicroBatch) -> tuple[int, ...]:
    further = () if batch.neighbours is None else batch.neighbours.widths
    return sum(batch.widths), *batch.widths, sum(batch.scored), *further


def _spread(places: Sequence[_Place]) -> Iterator[_Unit]:
    """Yield units with the least and the greatest of each length, and then some between: far apart they show most."""
    for number in range(len(places[0][1])):
        by_length = sorted(places, key=lambda place: place[1][number])
        yield from (by_length[0][0], by_length[-1][0])
    by_row = sorted(places, key=lambda place: place[1])
    yield from (by_row[round(part * (len(by_row) - 1))][0] for part in (0.5, 0.25, 0.75, 0.1, 0.9, 0.4, 0.6))


def first_units(spec: TrialSpec) -> int:
    """Return the units with the first steps, which are not learnt from."""
    found = -(-FIRST_STEPS // steps_per_unit(spec))
    return max(found, DecodeExtrapolator.most_rollouts) if decodes(spec) else found


def decodes(spec: TrialSpec) -> bool:
    """Return whether the first rollouts run more tokens than the others."""
    return spec.recipe in GENERATING and spec.rollout is Rollout.GENERATE and not spec.use_vllm


# ---- evaluations -----------------------------------------------------------------------------------------------------

_MOST_BATCHES = 400
"""Of all evaluations to learn from (our choice)."""

_BATCHES = 6
"""Of an evaluation to learn from: the first, the second and the last one, and more than one between them."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Which rows the evaluations to learn from generate. Each follows a step of training."""

    spec: TrialSpec
    draws: Sequence[Evaluations]
    """Of each run."""
    pads_masks: bool

    @property
    def first(self) -> int:
        """Evaluations that are not learnt from: the first rollouts run more tokens than the others."""
        most = DecodeExtrapolator.most_rollouts if decodes(self.spec) else 0
        return max(1, -(-most // self._count))

    @property
    def _count(self) -> int:
        return len(self.shapes[0][1].batches)

    @cached_property
    def shapes(self) -> Sequence[tuple[int, StepLengths]]:
        """The evaluations after a step of all runs, each with its number in the run, from 0."""
        return [
            (number, evaluation_shape(self.spec, draw, number))
            for draw in self.draws
            for number in range(int(draw.eval_on_start), draw.count(self.spec.steps))
        ]

    @property
    def needed(self) -> Collection[Variant]:
        """The variants of their pieces."""
        return {each for _, shape in self.shapes for each in variants(shape, pads_masks=self.pads_masks)}

    def runs(self) -> list[Evaluations]:
        """Return the evaluations of each run.

        Each begins with the first ones of the first draw, as they are, because in them more tokens run. The last but
        one is the last one of the last draw, which confirms what was learnt; nothing is learnt from the last one.
        """
        begun = [evaluated_batches(self.spec, self.draws[0], number) for number in range(self.first)]
        learnt = self._learnt()
        number, draw = self.shapes[-1][0], self.draws[-1]
        confirming = evaluated_batches(self.spec, draw, number)
        per_run = _MOST_STEPS - self.first - 2
        return [
            self._joined([*begun, *learnt[start : start + per_run], confirming, learnt[0][:1]])
            for start in range(0, len(learnt), per_run)
        ]

    def _joined(self, evaluations: Sequence[Sequence[RowLengths]]) -> Evaluations:
        prompts: list[int] = []
        for batches in evaluations:
            own = [length for batch in batches for length in batch.prompts]
            # trl takes them from the data set in another order.
            taken = sorted(zip(evaluated_order(self.spec, len(own)), own, strict=True))
            prompts += [length for _, length in taken]
        return replace(
            self.draws[0],
            eval_steps=1,
            eval_delay=0,
            eval_on_start=False,
            prompts=prompts,
            completions=[length for batches in evaluations for batch in batches for length in batch.completions],
            samples=[sum(len(batch.prompts) for batch in batches) for batches in evaluations],
        )

    def _learnt(self) -> list[list[RowLengths]]:
        """Return evaluations in which every kind of batch, and every place of one, occurs often enough."""
        size, rows = self.draws[0].per_device_eval_batch_size, self.draws[0].rows
        count = self._count
        has_rest = count > 1 and rows % size > 0
        chosen = self._chosen()
        rest = [batch for batch in chosen if has_rest and len(batch.completions) < size]
        whole = [batch for batch in chosen if batch not in rest]
        each = (count if self.shapes[0][1].batches_together else min(count, _BATCHES)) - has_rest
        evaluations = max(FEWEST_OCCURRENCES + 1, -(-len(whole) // each), len(rest))
        found = []
        for number in range(evaluations):
            batches = [whole[(number * each + place) % len(whole)] for place in range(each)]
            found.append([*batches, rest[number % len(rest)]] if has_rest else batches)
        return found

    def _chosen(self) -> list[RowLengths]:
        """Return batches of every kind, and batches like them with other lengths."""
        batches: list[RowLengths] = []
        places: dict[Variant, list[_Place]] = defaultdict(list)
        for draw in self.draws:
            for number in range(int(draw.eval_on_start), draw.count(self.spec.steps)):
                for batch in evaluated_batches(self.spec, draw, number):
                    kind, lengths = self._kind(batch)
                    places[kind].append(((0, len(batches)), lengths))
                    batches.append(batch)
        chosen: list[RowLengths] = []
        for kind, found in places.items():
            spread = list(dict.fromkeys(number for _, number in _spread(found)))
            own = [batches[number] for number in spread][: FEWEST_OCCURRENCES + 1]
            alike = (
                changed
                for factor in _SHORTER
                for batch in own
                for multiple in (1, MASK_ALIGNMENT)
                if self._kind(changed := shorter(batch, factor, multiple))[0] == kind
            )
            further = max(_FEWEST_CHANGED, FEWEST_OCCURRENCES + 1 - len(own))
            chosen += [*own, *(batch for batch, _ in zip(alike, range(further), strict=False))]
        if len(chosen) > _MOST_BATCHES:
            raise UnequalStepsError(f"evaluations have {len(places)} kinds of batches, too many to learn from")
        return chosen

    def _kind(self, rows: RowLengths) -> tuple[Variant, tuple[int, ...]]:
        """Return the variant of a batch, and its lengths."""
        batch = evaluated_batch(self.spec, rows)
        one = StepLengths(micro_batches=(), batches=(batch,))
        return list(variants(one, pads_masks=self.pads_masks))[1], _lengths_of(batch.micro_batches[0])
