"""Which rows the evaluations have that a forecast learns from: those that generate."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress, zip_longest

from profiler.domain.runs.step_shape import StepLengths
from profiler.domain.trials.trial import Evaluations, RowLengths, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import FEWEST_OCCURRENCES, ParametricSteps, UnequalStepsError
from profiler.simulation.extrapolation.step_variants import Variant, variants
from profiler.training.recipes.step_grouping import (
    evaluated_batch,
    evaluated_batches,
    evaluated_order,
    evaluation_shape,
)
from profiler.worker.forecast_plans import FEWEST_CHANGED, MOST_STEPS, SHORTER, Place, decodes, far_apart, lengths_of

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
    def _evaluations(self) -> Iterator[list[RowLengths]]:
        """The batches of each of `shapes`."""
        for draw in self.draws:
            for number in range(int(draw.eval_on_start), draw.count(self.spec.steps)):
                yield evaluated_batches(self.spec, draw, number)

    @property
    def needed(self) -> Collection[Variant]:
        """The variants of their pieces."""
        return {each for _, shape in self.shapes for each in variants(shape, pads_masks=self.pads_masks)}

    def runs(self) -> list[Evaluations]:
        """Return the evaluations of each run.

        Each begins with the first ones of the first draw, as they are, because in them more tokens run. The last but
        one is the last one of the last draw, which confirms what was learnt; nothing is learnt from the last one.
        """
        return self._runs_of(self._chosen)

    def further(self, steps: ParametricSteps) -> list[Evaluations]:
        """Return the evaluations of one more run: of batches whose lengths go together as in none of what was learnt.

        No run: all batches are known.
        """
        evaluations = zip(self._evaluations, self.shapes, strict=True)
        # What precedes the first batch, then each batch and what follows it.
        unlike = (compress(batches, steps.unlike(shape)[1::2]) for batches, (_, shape) in evaluations)
        in_turn = zip_longest(*self._apart(chain.from_iterable(unlike)).values())
        found = [batch for batches in in_turn for batch in batches if batch is not None]
        return self._runs_of(found)[:1] if found else []

    def _runs_of(self, chosen: Sequence[RowLengths]) -> list[Evaluations]:
        begun = [evaluated_batches(self.spec, self.draws[0], number) for number in range(self.first)]
        learnt = self._learnt(chosen)
        number, draw = self.shapes[-1][0], self.draws[-1]
        confirming = evaluated_batches(self.spec, draw, number)
        per_run = MOST_STEPS - self.first - 2
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

    def _learnt(self, chosen: Sequence[RowLengths]) -> list[list[RowLengths]]:
        """Return evaluations of these batches in which every place of a batch occurs often enough."""
        size, rows = self.draws[0].per_device_eval_batch_size, self.draws[0].rows
        count = self._count
        has_rest = count > 1 and rows % size > 0

        def are_rest(batches: Sequence[RowLengths], which: bool) -> list[RowLengths]:
            return [batch for batch in batches if (has_rest and len(batch.completions) < size) is which]

        rest, whole = (are_rest(chosen, which) or are_rest(self._chosen, which) for which in (True, False))
        each = (count if self.shapes[0][1].batches_together else min(count, _BATCHES)) - has_rest
        # The first batch, with which vLLM gets the weights, is one of each kind too.
        apart = 1 if self.spec.loads_engine_once else each
        evaluations = max(FEWEST_OCCURRENCES + 1, -(-len(whole) // apart), len(rest))
        found = []
        for number in range(evaluations):
            batches = [whole[(number * apart + place) % len(whole)] for place in range(each)]
            found.append([*batches, rest[number % len(rest)]] if has_rest else batches)
        return found

    @cached_property
    def _chosen(self) -> Sequence[RowLengths]:
        """Batches of every kind, and batches like them with other lengths."""
        places = self._apart(batch for batches in self._evaluations for batch in batches)
        chosen: list[RowLengths] = []
        for kind, found in places.items():
            own = found[: FEWEST_OCCURRENCES + 1]
            alike = (
                changed
                for factor in SHORTER
                for batch in own
                for multiple in (1, MASK_ALIGNMENT)
                if self._kind(changed := batch.shorter(factor, multiple))[0] == kind
            )
            further = max(FEWEST_CHANGED, FEWEST_OCCURRENCES + 1 - len(own))
            chosen += [*own, *(batch for batch, _ in zip(alike, range(further), strict=False))]
        if len(chosen) > _MOST_BATCHES:
            raise UnequalStepsError(f"evaluations have {len(places)} kinds of batches, too many to learn from")
        return chosen

    def _apart(self, batches: Iterable[RowLengths]) -> Mapping[Variant, Sequence[RowLengths]]:
        """Return batches of each kind whose lengths are far apart."""
        known = list(batches)
        places: dict[Variant, list[Place]] = defaultdict(list)
        for number, batch in enumerate(known):
            kind, lengths = self._kind(batch)
            places[kind].append(((0, number), lengths))
        return {kind: [known[number] for _, number in far_apart(found)] for kind, found in places.items()}

    def _kind(self, rows: RowLengths) -> tuple[Variant, tuple[int, ...]]:
        """Return the variant of a batch, and its lengths."""
        batch = evaluated_batch(self.spec, rows)
        one = StepLengths(micro_batches=(), batches=(batch,))
        return list(variants(one, pads_masks=self.pads_masks))[1], lengths_of(batch.micro_batches[0])
