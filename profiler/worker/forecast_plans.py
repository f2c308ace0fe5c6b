"""Which rows the runs have that a forecast learns the steps of training from."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.recipe import GENERATING
from profiler.domain.trials.trial import Rollout, RowLengths, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import FEWEST_OCCURRENCES, FIRST_STEPS, ParametricSteps
from profiler.simulation.extrapolation.step_variants import Variant, variants
from profiler.training.recipes.step_grouping import step_shapes, unit_rows

MOST_STEPS = 16
"""Of one run to learn from: deep models run few layers in runs of so many steps."""

_MOST_UNITS = 64
"""Of all runs to learn from. More variants than they show are not learnt."""

SHORTER = (0.9, 0.75, 0.6, 0.8, 0.5, 0.7, 0.95, 0.4, 0.85, 0.3)
"""Factors for the lengths of a rare kind of step, so that there are enough of its kind to learn from."""

FEWEST_CHANGED = 2
"""Units whose lengths are changed: where all of the draws have rows of the maximum, only they show what varies."""

_MOVED = (3, 5, 2, 7, 1)
"""Tokens that a shorter prompt loses to its completions, so that only the row is aligned as it was."""


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
        return self._runs_of(self._chosen())

    def further(self, steps: ParametricSteps) -> list[list[RowLengths]]:
        """Return the rows of one more run: units whose lengths go together as in none that was learnt from.

        Those that it has no space for confirm it. No run: all units are known.
        """
        places: dict[Variant, list[Place]] = defaultdict(list)
        for unit, shape in self._steps():
            for variant, batch in itertools.compress(self._pieces(shape), steps.unlike(shape)):
                places[variant].append((unit, lengths_of(batch)))
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*map(far_apart, places.values())))
        found = dict.fromkeys(unit for unit in in_turn if unit is not None)
        return self._runs_of([self._unit(unit) for unit in found])[:1]

    def _runs_of(self, chosen: Sequence[RowLengths]) -> list[list[RowLengths]]:
        begun = [unit_rows(self.spec, self.draws[0], unit) for unit in range(self.first_units)]
        per_run = max(1, MOST_STEPS // self.spec.steps_per_unit - self.first_units - 2)
        runs = []
        for start in range(0, len(chosen), per_run):
            part = chosen[start : start + per_run]
            confirming = [chosen[(start + len(part) + other) % len(chosen)] for other in range(2)]
            runs.append([*begun, *part, *confirming])
        return runs

    @cached_property
    def places(self) -> Mapping[Variant, Sequence["Place"]]:
        """Where each variant of the draws occurs."""
        places: dict[Variant, list[Place]] = defaultdict(list)
        for unit, shape in self._steps():
            for variant, batch in self._pieces(shape):
                places[variant].append((unit, lengths_of(batch)))
        return places

    def _steps(self) -> Iterator[tuple["_Unit", StepLengths]]:
        """Yield the shapes of all steps of the draws that will be written out."""
        units = -(-self.spec.steps // self.spec.steps_per_unit)
        for unit in itertools.product(range(len(self.draws)), range(self.first_units, units)):
            yield from ((unit, shape) for shape in self._shapes(self._unit(unit)))

    def _chosen(self) -> list[RowLengths]:
        """Return units in which every variant of the draws occurs often enough."""
        places = self.places
        chosen: list[RowLengths] = []
        counts: Counter[Variant] = Counter()
        changed: Counter[Variant] = Counter()
        """Of units that are none of the draws."""
        used: set[_Unit] = set()

        def choose(unit: RowLengths, *of: Counter[Variant]) -> None:
            found = [each for shape in self._shapes(unit) for each, _ in self._pieces(shape)]
            if variant in found and len(chosen) < _MOST_UNITS:
                chosen.append(unit)
                for counter in of:
                    counter.update(found)

        for variant in sorted(places, key=lambda each: len(places[each])):
            spread = far_apart(places[variant])
            for place in spread:
                # The shortest and the longest one are needed in any case.
                if place not in used and (place in spread[:2] or counts[variant] <= FEWEST_OCCURRENCES):
                    used.add(place)
                    choose(self._unit(place), counts)
            for unit in self._changed(spread):
                if counts[variant] > FEWEST_OCCURRENCES and changed[variant] >= FEWEST_CHANGED:
                    break
                choose(unit, counts, changed)
        return chosen

    def _changed(self, spread: Sequence["_Unit"]) -> Iterator[RowLengths]:
        """Yield units like some of the draws with other lengths."""
        for number, factor in enumerate(SHORTER):
            for unit in spread:
                moved = _MOVED[number % len(_MOVED)]
                yield self._unit(unit).shorter(factor, 1)
                yield self._unit(unit).shorter(factor, MASK_ALIGNMENT, moved=moved)
                yield self._unit(unit).shorter(factor, MASK_ALIGNMENT)
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

    def _shapes(self, unit: RowLengths) -> list[StepLengths]:
        return step_shapes(replace(self.spec, steps=self.spec.steps_per_unit), unit)

    def _pieces(self, shape: StepLengths) -> Iterator[tuple[Variant, MicroBatch]]:
        """Yield the variant of each piece of a step, and a micro-batch that it is about."""
        batches = (shape.micro_batches[0], *shape.micro_batches)
        yield from zip(variants(shape, pads_masks=self.pads_masks), batches, strict=True)


_Unit = tuple[int, int]
"""Numbers of a draw and of a unit of it."""

Place = tuple[_Unit, tuple[int, ...]]
"""A unit with a variant, and the lengths of a piece that has it."""


def lengths_of(batch: MicroBatch) -> tuple[int, ...]:
    """Return the lengths of a micro-batch that decide its piece."""
    further = () if batch.neighbours is None else batch.neighbours.widths
    return sum(batch.widths), *batch.widths, sum(batch.scored), *further


def far_apart(places: Sequence[Place]) -> list[_Unit]:
    """Return units with the least and the greatest of each length, and then some between: far apart they show most."""
    found: list[_Unit] = []
    for number in range(len(places[0][1])):
        by_length = sorted(places, key=lambda place: place[1][number])
        found += (by_length[0][0], by_length[-1][0])
    by_row = sorted(places, key=lambda place: place[1])
    found += (by_row[round(part * (len(by_row) - 1))][0] for part in (0.5, 0.25, 0.75, 0.1, 0.9, 0.4, 0.6))
    return list(dict.fromkeys(found))


def first_units(spec: TrialSpec) -> int:
    """Return the units with the first steps, which are not learnt from."""
    found = -(-FIRST_STEPS // spec.steps_per_unit)
    return max(found, DecodeExtrapolator.most_rollouts) if decodes(spec) else found


def decodes(spec: TrialSpec) -> bool:
    """Return whether the first rollouts run more tokens than the others."""
    return spec.recipe in GENERATING and spec.rollout is Rollout.GENERATE and not spec.use_vllm
