"""The steps of a whole run on a simulated GPU: learnt from a few of them and written out, or simulated whole."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

from profiler.allocator.traces.trace import Piece, Trace, piece_of
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.trial import Evaluations, Logprobs, RowLengths, TrialSpec, Tuning
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import ParametricSteps, RunOfSteps, UnequalStepsError
from profiler.simulation.extrapolation.step_pieces import evaluation_cuts, micro_batch_starts, step_bounds
from profiler.simulation.extrapolation.step_variants import pads_masks
from profiler.training.recipes.step_grouping import evaluation_shape, step_shapes, unit_rows, widest_evaluated
from profiler.worker.evaluation_plans import EvaluationPlan
from profiler.worker.forecast_plans import Plan, decodes, first_units
from profiler.worker.simulated import card_of, simulate


@dataclass(frozen=True, kw_only=True)
class RunLearnt:
    """What was learnt of a job."""

    steps: ParametricSteps
    first_shapes: Sequence[StepLengths]
    """Of the first steps, which are not written out but replayed as they ran."""
    runs: int
    steps_run: int
    layers_run: int | None
    evaluations: "LearntEvaluations | None"
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
    if spec.logprobs is Logprobs.MINIBATCH:
        raise UnequalStepsError("with logprobs=minibatch each row has a forward and a backward of its own")
    if spec.use_vllm and spec.tuning is Tuning.QLORA and any(draw.evaluations for draw in draws):
        raise UnequalStepsError(
            "evaluations merge weights of 4 bits, which then are no longer those of the step before"
        )
    plan = Plan(spec=spec, draws=draws, pads_masks=pads_masks(spec, model_config))
    first_steps = plan.first_units * spec.steps_per_unit
    if not (wanted := plan.runs()):
        raise UnequalStepsError(f"the run has {spec.steps}, and the first {first_steps} are not learnt from")
    layers: list[int | None] = []
    every = spec.torch_empty_cache_steps
    empties = None if every is None else lambda step: step % every == 0

    def run_of(units: Sequence[RowLengths]) -> RunOfSteps:
        learning = replace(spec, steps=len(units) * spec.steps_per_unit, torch_empty_cache_steps=every and 1)
        # The first steps of all are those of the first run.
        first = None if layers else draws[0]
        rows = RowLengths.joined(units)
        if first is not None:
            rows = replace(rows, evaluations=_on_start(first.evaluations), reference=referenced(spec, first))
        run = simulate(learning, model_config, rows=rows.of_all(learning), defers_scratch=True)
        layers.append(run.layers_run)
        return RunOfSteps(trace=run.trace.on(card_of(spec).chip), shapes=step_shapes(learning, rows))

    def steps_of(runs: Sequence[RunOfSteps]) -> ParametricSteps:
        keys: dict[str, Any] = {"pads_masks": plan.pads_masks, "needed": plan.places}
        return ParametricSteps(runs, first_steps=first_steps, empties=empties, **keys)

    steps, runs = learnt_further(wanted, run_of, steps_of, plan.further)
    check_known(steps, (step_shapes(spec, draw)[first_steps:] for draw in draws), before=first_steps)
    return RunLearnt(
        steps=steps,
        first_shapes=runs[0].shapes[:first_steps],
        runs=len(runs),
        steps_run=sum(len(run.shapes) for run in runs),
        layers_run=layers[-1],
        evaluations=_learn_evaluations(spec, model_config, draws, pads_masks=plan.pads_masks),
    )


def referenced(spec: TrialSpec, draw: RowLengths) -> RowLengths | None:
    """Return the rows over which a reference runs before training: a data set, or those of the whole run."""
    if not spec.precompute_ref_log_probs or draw.reference is not None:
        return draw.reference
    return RowLengths.joined([unit_rows(spec, draw, unit) for unit in range(spec.steps)])


def widest_untrained(spec: TrialSpec, draw: RowLengths) -> MicroBatch | None:
    """Return the widest batch of the evaluations, or of the reference before training; None if there are none."""
    known, before = draw.evaluations, referenced(spec, draw)
    if before is not None:
        known = Evaluations(
            eval_steps=None,
            per_device_eval_batch_size=spec.precompute_ref_batch_size or spec.per_device_train_batch_size,
            prompts=tuple(before.prompts),
            completions=tuple(before.completions),
        )
    return None if known is None else widest_evaluated(spec, known)


_Rows = TypeVar("_Rows")


def learnt_further(
    wanted: Iterable[_Rows],
    run_of: Callable[[_Rows], RunOfSteps],
    steps_of: Callable[[Sequence[RunOfSteps]], ParametricSteps],
    further: Callable[[ParametricSteps], Iterable[_Rows]],
) -> tuple[ParametricSteps, Sequence[RunOfSteps]]:
    """Learn from runs, and then from what they do not show, until all is known, or `MOST_FURTHER` times.

    Lengths that go together in all steps that were learnt from need not do so in the draws: of which of them a size is
    a function, only steps show in which they do not.

    Args:
        wanted: The rows of each run.
        run_of: Runs the trainer on them.
        steps_of: Learns from all runs.
        further: Returns rows of a run that shows more; none where all is known.

    Raises:
        UnequalStepsError: The steps cannot be written out.
    """
    runs = [run_of(rows) for rows in wanted]
    steps = steps_of(runs)
    for _ in range(MOST_FURTHER):
        more = [run_of(rows) for rows in further(steps)]
        if not more:
            break
        runs += more
        steps = steps_of(runs)
    return steps, runs


MOST_FURTHER = 3
"""Times that a forecast learns from further runs (our choice)."""


def _on_start(evaluations: Evaluations | None) -> Evaluations | None:
    """Return the evaluation before the first step alone; None if there is none."""
    return replace(evaluations, eval_steps=None) if evaluations is not None and evaluations.eval_on_start else None


_BLOCKS_OF_EVALUATION = 2**40
"""Number of the first block of an evaluation, which no block of training reaches; each frees all that it makes."""


@dataclass(frozen=True, kw_only=True)
class LearntEvaluations:
    """The evaluations of a run."""

    same: Piece | None = None
    """Of rows of data, which are the same each time."""
    generated: ParametricSteps | None = None
    """Of rows that are generated."""

    empties: bool = False
    """Whether the cache is emptied after the last batch of `same`."""

    def of(self, spec: TrialSpec, evaluations: Evaluations, number: int) -> tuple[tuple[StepLengths, ...], list[Piece]]:
        """Return the batches of an evaluation that are known, from 0, and its pieces."""
        if self.generated is None:
            assert self.same is not None
            return (), [self.same]
        shape = evaluation_shape(spec, evaluations, number)
        count, most = len(shape.batches), DecodeExtrapolator.most_rollouts if decodes(spec) else 0
        ran = [1 + 2 * batch for batch in range(count) if number * count + batch < most]
        found = self.generated.alone(shape, first_block=_BLOCKS_OF_EVALUATION, begun=number if ran else 0, ran=ran)
        return shape.batches, found

    def is_emptied(self, evaluations: Evaluations, batches: Sequence[StepLengths]) -> bool:
        """Return whether the cache is emptied after the last batch; of those that are generated, these."""
        every = evaluations.eval_accumulation_steps
        return self.empties or (bool(batches) and every is not None and len(batches) % every == 0)


def _learn_evaluations(
    spec: TrialSpec, model_config: Mapping[str, Any], draws: Sequence[RowLengths], *, pads_masks: bool
) -> LearntEvaluations | None:
    """Return the events of evaluations after a step; None if none follows a step.

    Raises:
        UnequalStepsError: They cannot be written out.
    """
    known = draws[0].evaluations
    if known is None or known.eval_steps is None:
        return None
    if known.num_generations_eval is None:
        return _same_evaluation(spec, model_config, replace(draws[0], evaluations=known))
    plan = EvaluationPlan(
        spec=spec, draws=[each for draw in draws if (each := draw.evaluations)], pads_masks=pads_masks
    )

    def run_of(evaluations: Evaluations) -> RunOfSteps:
        rows, count = replace(draws[0], evaluations=evaluations), len(evaluations.samples)
        run = simulate(replace(spec, steps=count), model_config, rows=rows, defers_scratch=True)
        shapes = [evaluation_shape(spec, evaluations, number) for number in range(count)]
        return RunOfSteps(trace=run.trace.on(card_of(spec).chip), shapes=shapes)

    def steps_of(runs: Sequence[RunOfSteps]) -> ParametricSteps:
        return ParametricSteps(runs, first_steps=plan.first, pads_masks=pads_masks, needed=plan.needed)

    found, _ = learnt_further(plan.runs(), run_of, steps_of, plan.further)
    for number, shape in plan.shapes:
        try:
            found.known(shape)
        except UnequalStepsError as error:
            raise UnequalStepsError(f"of evaluation {number + 1}, {error}") from error
    return LearntEvaluations(generated=found)


def _same_evaluation(spec: TrialSpec, model_config: Mapping[str, Any], rows: RowLengths) -> LearntEvaluations:
    """Return the events of each evaluation of rows of data.

    It runs twice, which confirms that an evaluation depends on its rows alone.

    Raises:
        UnequalStepsError: The two differ, or one leaves something behind.
    """
    assert rows.evaluations is not None
    each = replace(rows.evaluations, eval_steps=1, eval_delay=0, eval_on_start=False)
    trace = simulate(replace(spec, steps=2), model_config, rows=replace(rows, evaluations=each)).trace
    trace = trace.on(card_of(spec).chip)
    one, other = (
        (_closed_piece(trace, cuts[0], cuts[-1]), cuts[-1] in trace.cache_emptied) for cuts in evaluation_cuts(trace)
    )
    if one != other:
        raise UnequalStepsError("evaluations of the same rows differ")
    return LearntEvaluations(same=one[0], empties=one[1])


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
    done, is_emptied = int(known is not None and known.eval_on_start), False
    for step, (shape, pieces) in enumerate(training, start=1):
        if is_emptied:
            place = next(place for place, piece in enumerate(pieces) if len(piece.events))
            pieces[place] = replace(pieces[place], cache_emptied=[0, *pieces[place].cache_emptied])
            is_emptied = False
        if known is None or learnt_of is None or not known.follows(step, spec.steps):
            yield shape, pieces
            continue
        batches, evaluated = learnt_of.of(spec, known, done)
        # After the last batch the cache is emptied before the first event of the next step, if there is one.
        is_emptied = learnt_of.is_emptied(known, batches)
        if is_emptied and step == spec.steps:
            last = evaluated[-1]
            evaluated[-1] = replace(last, cache_emptied=[*last.cache_emptied, len(last.events)])
        yield replace(shape, batches=batches), [*pieces, *evaluated]
        done += 1


def whole_steps(spec: TrialSpec, model_config: Mapping[str, Any], draw: RowLengths) -> Steps:
    """Yield the steps of a run that is simulated from its start to its end.

    Raises:
        UnsupportedTrialError: The trial cannot be simulated.
    """
    rows = replace(draw.of_all(spec), reference=referenced(spec, draw))
    trace = simulate(spec, model_config, rows=rows).trace.on(card_of(spec).chip)
    before = first_block = 0
    evaluations = evaluation_cuts(trace)
    known, done = draw.evaluations, int(draw.evaluations is not None and draw.evaluations.eval_on_start)
    for shape, (_, end) in zip(step_shapes(spec, draw), step_bounds(trace), strict=True):
        forwards = micro_batch_starts(trace, before, end)
        # Of those that pass the model in parts, the first part.
        begins = forwards[:: max(1, len(forwards) // len(shape.micro_batches))]
        evaluated = next((cuts for cuts in evaluations if begins[0] < cuts[0] < end), [end])
        # What follows an evaluation belongs to its last piece.
        bounds = [before, *begins[: len(shape.micro_batches)], *evaluated[:-1], end]
        if known is not None and len(evaluated) > 1:
            if known.num_generations_eval is not None:
                shape = replace(shape, batches=evaluation_shape(spec, known, done).batches)
            done += 1
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
    units, per_unit = first_units(spec), spec.steps_per_unit
    draw = replace(draw, reference=referenced(spec, draw))
    short = replace(spec, steps=min(spec.steps, (units + 1) * per_unit))
    known = draw.evaluations
    if known is not None and not any(known.follows(step, spec.steps) for step in range(1, units * per_unit + 1)):
        # The end of the short run would have an evaluation that nobody reads.
        draw = replace(draw, evaluations=_on_start(known))
    yield from islice(whole_steps(short, model_config, draw), units * per_unit)
