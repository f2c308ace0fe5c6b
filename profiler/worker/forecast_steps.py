"""The steps of a whole run on a simulated GPU: learnt from a few of them and written out, or simulated whole."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from random import Random
from typing import Any

from profiler.allocator.traces.trace import Piece, Trace, piece_of
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.recipe import GENERATING
from profiler.domain.trials.trial import Attention, Evaluations, Rollout, RowLengths, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import (
    FEWEST_OCCURRENCES,
    FIRST_STEPS,
    ParametricSteps,
    RunOfSteps,
    UnequalStepsError,
    Variant,
    variants,
)
from profiler.simulation.extrapolation.step_pieces import evaluation_spans, micro_batch_starts, step_bounds
from profiler.training.recipes.step_grouping import joined, shorter, step_shapes, steps_per_unit, unit_rows
from profiler.worker.simulated import card_of, simulate

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


@dataclass(frozen=True, kw_only=True)
class RunLearnt:
    """What was learnt of a job."""

    steps: ParametricSteps
    first_shapes: Sequence[StepLengths]
    """Of the first steps, which are not written out but replayed as they ran."""
    runs: int
    steps_run: int
    layers_run: int | None
    evaluations: "_LearntEvaluations | None"
    """None: none follows a step."""


def learn(spec: TrialSpec, model_config: Mapping[str, Any], draws: Sequence[RowLengths]) -> RunLearnt:
    """Run the real trainer for as many steps as are needed to write out all steps of `draws`.

    Args:
        spec: A simulated trial of one process, with the number of steps of the whole run.
        model_config: The fields of the model's `config.json`.
        draws: The rows of each run.

    Raises:
        UnequalStepsError: The steps cannot be written out.
        UnsupportedTrialError: The trial cannot be simulated.
    """
    if spec.use_vllm and draws[0].evaluations is not None:
        raise UnequalStepsError("vLLM gets the weights in an evaluation, and not in the step after it")
    plan = _Plan(spec=spec, draws=draws, pads_masks=_pads_masks(spec))
    first_steps = plan.first_units * steps_per_unit(spec)
    runs, layers = [], None
    every = spec.torch_empty_cache_steps
    for number, units in enumerate(plan.runs()):
        learning = replace(spec, steps=len(units) * steps_per_unit(spec), torch_empty_cache_steps=every and 1)
        rows = joined(units)
        if number == 0:  # of which the first steps are
            rows = replace(rows, evaluations=_on_start(draws[0].evaluations))
        run = simulate(learning, model_config, rows=rows, defers_scratch=True)
        layers = run.layers_run
        runs.append(RunOfSteps(trace=run.trace.on(card_of(spec).chip), shapes=step_shapes(learning, rows)))
    if not runs:
        raise UnequalStepsError(f"the run has {spec.steps}, and the first {first_steps} are not learnt from")
    empties = None if every is None else lambda step: step % every == 0
    steps = ParametricSteps(
        runs, first_steps=first_steps, empties=empties, pads_masks=plan.pads_masks, needed=plan.places
    )
    check_known(steps, (step_shapes(spec, draw)[first_steps:] for draw in draws), before=first_steps)
    return RunLearnt(
        steps=steps,
        first_shapes=runs[0].shapes[:first_steps],
        runs=len(runs),
        steps_run=sum(len(run.shapes) for run in runs),
        layers_run=layers,
        evaluations=_learn_evaluations(spec, model_config, draws[0]),
    )


def _on_start(evaluations: Evaluations | None) -> Evaluations | None:
    """Return the evaluation before the first step alone; None if there is none."""
    return replace(evaluations, eval_steps=None) if evaluations is not None and evaluations.eval_on_start else None


_BLOCKS_OF_EVALUATION = 2**40
"""Number of the first block of an evaluation, which no block of training reaches; each frees all that it makes."""


@dataclass(frozen=True, kw_only=True)
class _LearntEvaluations:
    """The events of the evaluations of a run."""

    first: Sequence[Piece]
    """Of the first ones, whose rollouts run more tokens than those of others."""
    others: Sequence[Piece]
    """One per draw of completions."""

    def of(self, number: int, evaluations: Evaluations) -> Piece:
        """Return those of an evaluation, from 0."""
        return self.first[number] if number < len(self.first) else self.others[evaluations.draw_of(number)]


def _learn_evaluations(spec: TrialSpec, model_config: Mapping[str, Any], draw: RowLengths) -> _LearntEvaluations | None:
    """Return the events of evaluations after a step; None if none follows a step.

    Each draw of completions is evaluated once in one run, each after a step. The last one is evaluated twice, which
    confirms that an evaluation depends on its rows alone.

    Raises:
        UnequalStepsError: The two differ, or one leaves something behind.
    """
    known = draw.evaluations
    if known is None or known.eval_steps is None:
        return None
    batches = -(-known.rows // known.per_device_eval_batch_size)
    first = -(-DecodeExtrapolator.most_rollouts // batches) if _decodes(spec) else 0
    order = [*map(known.draw_of, range(first)), *range(known.draws), known.draws - 1]
    each = replace(known, eval_steps=1, eval_delay=0, eval_on_start=False, same_completions=1)
    if known.num_generations_eval is not None:
        each = replace(each, completions=[length for number in order for length in known.completions_of(number)])
    trace = simulate(replace(spec, steps=len(order)), model_config, rows=replace(draw, evaluations=each)).trace
    trace = trace.on(card_of(spec).chip)
    *found, last = (_closed_piece(trace, *span) for span in evaluation_spans(trace))
    if found[-1] != last:
        raise UnequalStepsError("evaluations of the same rows differ")
    return _LearntEvaluations(first=found[:first], others=found[first:])


def _closed_piece(trace: Trace, first: int, end: int) -> Piece:
    """Return a part of a trace that frees what it makes and nothing else, with numbers of its own.

    Raises:
        UnequalStepsError: It does not.
    """
    events = trace.events[first:end]
    made = [event for event in events if event > 0]
    if sorted(-event for event in events if event < 0) != made:
        raise UnequalStepsError("an evaluation leaves blocks behind, or frees others")
    base = made[0] - 1
    moved = _BLOCKS_OF_EVALUATION - base
    piece = piece_of(trace, first, end, first_block=base)
    numbered = [event + moved if event > 0 else event - moved for event in events]
    return replace(piece, events=numbered, first_block=_BLOCKS_OF_EVALUATION, sizes_bytes=list(piece.sizes_bytes))


def check_known(steps: ParametricSteps, runs: Iterable[Sequence[StepLengths]], *, before: int) -> None:
    """Check that all steps can be written out, before one is.

    Args:
        steps: What was learnt.
        runs: The shapes of the steps of each run.
        before: Steps of each run that precede them.

    Raises:
        UnequalStepsError: One cannot. Named is the first step of all runs.
    """
    unknown: dict[int, UnequalStepsError] = {}
    for shapes in runs:
        for number, shape in enumerate(shapes[: min(unknown, default=None)]):
            try:
                steps.known(shape)
            except UnequalStepsError as error:
                unknown[number] = error
                break
    if unknown:
        first = min(unknown)
        raise UnequalStepsError(f"of step {before + first + 1}, {unknown[first]}") from unknown[first]


def _pads_masks(spec: TrialSpec) -> bool:
    return spec.attn_implementation is Attention.SDPA and not card_of(spec).chip.has_cudnn_attention


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Which units of the draws, and units like them, the runs to learn from have."""

    spec: TrialSpec
    draws: Sequence[RowLengths]
    pads_masks: bool

    @property
    def first_units(self) -> int:
        """Units with the first steps, which are not learnt from."""
        return _first_units(self.spec)

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


def _first_units(spec: TrialSpec) -> int:
    found = -(-FIRST_STEPS // steps_per_unit(spec))
    return max(found, DecodeExtrapolator.most_rollouts) if _decodes(spec) else found


def _decodes(spec: TrialSpec) -> bool:
    """Return whether the first rollouts run more tokens than the others."""
    return spec.recipe in GENERATING and spec.rollout is Rollout.GENERATE and not spec.use_vllm


# ---- a run -----------------------------------------------------------------------------------------------------------


Steps = Iterable[tuple[StepLengths, Iterable[Piece]]]
"""The shape of each step of a run, and its pieces: what precedes its micro-batches, these, and an evaluation."""


def written_steps(spec: TrialSpec, learnt: RunLearnt, draw: RowLengths) -> Steps:
    """Yield the steps of a run as they are written out; the first ones are those of the first draw, as they ran.

    Raises:
        UnequalStepsError: The draw is not among those that were learnt for, and a step unlike all of theirs.
    """
    later = step_shapes(spec, draw)[len(learnt.first_shapes) :]
    begun = zip(learnt.first_shapes, learnt.steps.begin(), strict=True)
    training = chain(begun, ((shape, list(learnt.steps.written(shape))) for shape in later))
    known, learnt_of = draw.evaluations, learnt.evaluations
    done = int(known is not None and known.eval_on_start)
    for step, (shape, pieces) in enumerate(training, start=1):
        if known is None or learnt_of is None or not known.follows(step, spec.steps):
            yield shape, pieces
            continue
        yield shape, [*pieces, learnt_of.of(done, known)]
        done += 1


def whole_steps(spec: TrialSpec, model_config: Mapping[str, Any], draw: RowLengths) -> Steps:
    """Yield the steps of a run that is simulated from its start to its end.

    Raises:
        UnsupportedTrialError: The trial cannot be simulated.
    """
    trace = simulate(spec, model_config, rows=draw).trace.on(card_of(spec).chip)
    before = first_block = 0
    evaluations = dict(evaluation_spans(trace))
    for shape, (_, end) in zip(step_shapes(spec, draw), step_bounds(trace), strict=True):
        forwards = micro_batch_starts(trace, before, end)
        # Of those that pass the model in parts, the first part.
        begins = forwards[:: max(1, len(forwards) // len(shape.micro_batches))]
        evaluated = [at for at in evaluations if begins[0] < at < end]
        bounds = [before, *begins[: len(shape.micro_batches)], *evaluated, end]
        pieces = []
        for first, last in pairwise(bounds):
            pieces.append(piece_of(trace, first, last, first_block=first_block))
            first_block += len(pieces[-1].sizes_bytes)
        yield shape, pieces
        before = end


def first_steps(spec: TrialSpec, model_config: Mapping[str, Any], draw: RowLengths) -> Steps:
    """Yield the steps that `written_steps` begins with, after a run that is as short as they allow.

    Raises:
        UnsupportedTrialError: The trial cannot be simulated.
    """
    # One unit more, because the end of training frees more in the last step.
    units, per_unit = _first_units(spec), steps_per_unit(spec)
    short = replace(spec, steps=min(spec.steps, (units + 1) * per_unit))
    known = draw.evaluations
    if known is not None and not any(known.follows(step, spec.steps) for step in range(1, units * per_unit + 1)):
        # The end of the short run would have an evaluation that nobody reads.
        draw = replace(draw, evaluations=_on_start(known))
    yield from islice(whole_steps(short, model_config, draw), units * per_unit)
