"""The memory of a whole run on a simulated GPU: learn from a few steps, write out all of them, and replay them.

`python -m profiler.worker.forecast REQUEST ANSWER`; both files are described in `profiler/domain/runs/forecast.py`.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from profiler.allocator import parse_alloc_conf
from profiler.allocator.traces.card_replay import Piece, RefusedError, StepReplay, piece_of
from profiler.analysis.forecast.lengths import why_rows_are_unknown
from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.cards.card import cuda_context_bytes, installed_torch_version
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.runs.forecast import (
    AnswerLine,
    Death,
    Draw,
    ForecastRequest,
    ForecastStep,
    Learnt,
    answer_of,
    line_object,
    line_of,
)
from profiler.domain.runs.step_shape import StepLengths
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.simulation.extrapolation.parametric_steps import (
    FEWEST_OCCURRENCES,
    FIRST_STEPS,
    ParametricSteps,
    RunOfSteps,
    UnequalStepsError,
    Variant,
    variants,
)
from profiler.simulation.extrapolation.step_pieces import step_bounds
from profiler.training.recipes.step_grouping import step_shapes, steps_per_unit, unit_rows
from profiler.worker.simulated import card_of, simulate

_MOST_STEPS = 16
"""Of one run to learn from: deep models run few layers in runs of so many steps."""

_MOST_UNITS = 64
"""Of all runs to learn from. More variants than they show are not learnt."""

_SHORTER = (0.9, 0.75, 0.6, 0.8, 0.5, 0.7, 0.95, 0.4, 0.85, 0.3)
"""Factors for the lengths of a rare kind of step, so that there are enough of its kind to learn from."""


@dataclass(frozen=True, kw_only=True)
class RunLearnt:
    """What was learnt of a job."""

    steps: ParametricSteps
    first_shapes: Sequence[StepLengths]
    """Of the first steps, which are not written out but replayed as they ran."""
    runs: int
    steps_run: int
    layers_run: int | None


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
    first_units = -(-FIRST_STEPS // steps_per_unit(spec))
    first_steps = first_units * steps_per_unit(spec)
    runs, layers = [], None
    every = spec.torch_empty_cache_steps
    for units in _plan(spec, draws, first_units):
        learning = replace(spec, steps=len(units) * steps_per_unit(spec), torch_empty_cache_steps=every and 1)
        rows = _joined(units)
        run = simulate(learning, model_config, rows=rows, defers_scratch=True)
        layers = run.layers_run
        runs.append(RunOfSteps(trace=run.trace.on(card_of(spec).chip), shapes=step_shapes(learning, rows)))
    empties = None if every is None else lambda step: step % every == 0
    steps = ParametricSteps(runs, first_steps=first_steps, empties=empties)
    return RunLearnt(
        steps=steps,
        first_shapes=runs[0].shapes[:first_steps],
        runs=len(runs),
        steps_run=sum(len(run.shapes) for run in runs),
        layers_run=layers,
    )


def _plan(spec: TrialSpec, draws: Sequence[RowLengths], first_units: int) -> list[list[RowLengths]]:
    """Return the rows of each run to learn from, unit by unit.

    Each begins with the first units of the first draw. Every variant occurs often enough in those that follow; the two
    last ones are further units of the draws, of which the first confirms what was learnt.
    """
    begun = [unit_rows(spec, draws[0], unit) for unit in range(first_units)]
    chosen = _chosen(spec, draws, first_units)
    per_run = max(1, _MOST_STEPS // steps_per_unit(spec) - first_units - 2)
    runs = []
    for start in range(0, len(chosen), per_run):
        part = chosen[start : start + per_run]
        confirming = [chosen[(start + len(part) + other) % len(chosen)] for other in range(2)]
        runs.append([*begun, *part, *confirming])
    return runs


def _chosen(spec: TrialSpec, draws: Sequence[RowLengths], first_units: int) -> list[RowLengths]:
    """Return units in which every variant of the draws occurs often enough."""
    places: dict[Variant, list[tuple[int, int]]] = defaultdict(list)
    units = -(-spec.steps // steps_per_unit(spec))
    for number, draw in enumerate(draws):
        for unit in range(first_units, units):
            for variant in _variants(spec, unit_rows(spec, draw, unit)):
                places[variant].append((number, unit))
    chosen: list[RowLengths] = []
    counts: Counter[Variant] = Counter()
    used: set[tuple[int, int]] = set()
    for variant in sorted(places, key=lambda each: len(places[each])):
        for candidate in _candidates(spec, draws, places[variant], used):
            if counts[variant] > FEWEST_OCCURRENCES or len(chosen) == _MOST_UNITS:
                break
            chosen.append(candidate)
            counts.update(_variants(spec, candidate))
    return chosen


def _candidates(
    spec: TrialSpec, draws: Sequence[RowLengths], places: Sequence[tuple[int, int]], used: set[tuple[int, int]]
) -> Iterator[RowLengths]:
    """Yield units with a variant, from short to long ones in turn, each once; then shorter ones like them."""
    by_length = sorted(places, key=lambda place: sum(unit_rows(spec, draws[place[0]], place[1]).completions))
    # Sizes are learnt best from lengths that lie far apart.
    spread = [by_length[round(part * (len(by_length) - 1))] for part in (0, 1, 0.5, 0.25, 0.75, 0.1, 0.9, 0.4, 0.6)]
    for place in dict.fromkeys(spread):
        if place not in used:
            used.add(place)
            yield unit_rows(spec, draws[place[0]], place[1])
    for factor in _SHORTER:
        for place in dict.fromkeys(spread):
            yield _shorter(unit_rows(spec, draws[place[0]], place[1]), factor)


def _shorter(rows: RowLengths, factor: float) -> RowLengths:
    return replace(
        rows,
        prompts=[max(1, round(length * factor)) for length in rows.prompts],
        completions=[max(1, round(length * factor)) for length in rows.completions],
    )


def _variants(spec: TrialSpec, unit: RowLengths) -> Iterator[Variant]:
    """Yield the variant of each piece of a unit's steps."""
    for shape in step_shapes(replace(spec, steps=steps_per_unit(spec)), unit):
        yield from variants(shape)


def _joined(units: Sequence[RowLengths]) -> RowLengths:
    return RowLengths(
        prompts=[length for unit in units for length in unit.prompts],
        completions=[length for unit in units for length in unit.completions],
        shuffles=[seed for unit in units for seed in unit.shuffles],
    )


# ---- a run -----------------------------------------------------------------------------------------------------------


Steps = Iterable[tuple[StepLengths, Iterable[Piece]]]
"""The shape of each step of a run, and its pieces."""


def replayed(steps: Steps, *, seed: int, alloc_conf: str, capacity_bytes: int | None) -> Iterator[ForecastStep | Death]:
    """Yield each step of a run after its replay, up to the one that the card refuses.

    Args:
        steps: The steps.
        seed: Of the run.
        alloc_conf: Settings of torch's allocator.
        capacity_bytes: What the process can take from the driver, without its context; None: unlimited.
    """
    config = parse_alloc_conf(alloc_conf, torch_version=installed_torch_version())
    replay = StepReplay(capacity_bytes=capacity_bytes, config=config)
    for number, (shape, pieces) in enumerate(steps, start=1):
        try:
            peaks = replay.step(pieces)
        except RefusedError as error:
            yield _death(shape, error, seed=seed, alloc_conf=alloc_conf, step=number)
            return
        yield ForecastStep(
            seed=seed,
            alloc_conf=alloc_conf,
            step=number,
            longest_prompt=max(batch.widths[0] if len(batch.widths) > 1 else 0 for batch in shape.micro_batches),
            longest_completion=max(batch.widths[-1] for batch in shape.micro_batches),
            scored_tokens=sum(sum(batch.scored) for batch in shape.micro_batches),
            allocated_bytes=peaks.allocated_bytes,
            reserved_bytes=peaks.reserved_bytes,
            reserved_after_bytes=peaks.reserved_after_bytes,
            inactive_split_bytes=peaks.inactive_split_after_bytes,
            phase=peaks.phase,
        )


def _death(shape: StepLengths, error: RefusedError, *, seed: int, alloc_conf: str, step: int) -> Death:
    # Before the first micro-batch, by a piece, and in the first step by one more for loading, the rows are those that
    # it will have.
    before = 2 if step == 1 else 1
    batch, refusal = shape.micro_batches[max(0, error.piece - before)], error.refusal
    return Death(
        seed=seed,
        alloc_conf=alloc_conf,
        step=step,
        phase=refusal.phase,
        requested_bytes=refusal.requested_bytes,
        free_bytes=refusal.free_bytes,
        allocated_bytes=refusal.allocated_bytes,
        reserved_bytes=refusal.reserved_bytes,
        row_tokens=sum(batch.widths),
        rows=batch.rows,
    )


def written_steps(spec: TrialSpec, learnt: RunLearnt, draw: RowLengths) -> Steps:
    """Yield the steps of a run as they are written out; the first ones are those of the first draw, as they ran.

    Raises:
        UnsupportedTrialError: A step is unlike all that were learnt from.
    """
    yield from zip(learnt.first_shapes, learnt.steps.begin(), strict=True)
    for number, shape in list(enumerate(step_shapes(spec, draw), start=1))[len(learnt.first_shapes) :]:
        try:
            pieces = list(learnt.steps.written(shape))
        except UnequalStepsError as error:
            raise UnsupportedTrialError(f"Step {number} cannot be written out: {error}.") from error
        yield shape, pieces


def whole_steps(spec: TrialSpec, model_config: Mapping[str, Any], draw: RowLengths) -> Steps:
    """Yield the steps of a run that is simulated from its start to its end.

    Raises:
        UnsupportedTrialError: The trial cannot be simulated.
    """
    trace = simulate(spec, model_config, rows=draw).trace.on(card_of(spec).chip)
    before = 0
    for shape, (_, end) in zip(step_shapes(spec, draw), step_bounds(trace), strict=True):
        first_block = sum(event > 0 for event in trace.events[:before])
        yield shape, [piece_of(trace, before, end, first_block=first_block)]
        before = end


def capacity_of(spec: TrialSpec) -> int:
    """Return what a process can take from the driver on the trial's card."""
    gpu = card_of(spec)
    return gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)


# ---- the process -----------------------------------------------------------------------------------------------------

MOST_WHOLE_STEPS = 200
"""Of a run that cannot be written out: its trace is kept in memory as a whole."""


def answer(request: ForecastRequest, known: Sequence[AnswerLine]) -> Iterator[AnswerLine]:
    """Yield the lines of an answer that are not among `known`.

    Raises:
        UnsupportedTrialError: There is no forecast of the trial.
    """
    done = answer_of(known)
    spec = replace(spec_from_mapping(request.spec), steps=request.steps)
    if (fault := why_rows_are_unknown(spec)) is not None:
        raise UnsupportedTrialError(fault.sentence())
    draws = {draw.seed: _rows(draw, request.steps) for draw in request.draws}
    learnt: RunLearnt | None = None
    try:
        learnt, reason = learn(spec, request.model_config, list(draws.values())), None
    except UnequalStepsError as error:
        reason = f"The steps cannot be written out: {error}."
        if request.steps > MOST_WHOLE_STEPS:
            raise UnsupportedTrialError(
                f"{reason} Without that at most {MOST_WHOLE_STEPS} steps are forecast."
            ) from error
    if done.learnt is None:
        yield _learnt(learnt, reason)
    ended = {(run.seed, run.alloc_conf): run for run in done.runs}
    for seed, draw in draws.items():
        for conf in request.settings:
            run = ended.get((seed, conf))
            if run is not None and (run.death is not None or run.survived(request.steps)):
                continue
            steps = (
                whole_steps(spec, request.model_config, draw) if learnt is None else written_steps(spec, learnt, draw)
            )
            last = run.steps[-1].step if run is not None and run.steps else 0
            lines = replayed(steps, seed=seed, alloc_conf=conf, capacity_bytes=capacity_of(spec))
            yield from (line for line in lines if line.step > last)


def _rows(draw: Draw, steps: int) -> RowLengths:
    random = Random(draw.seed)
    shuffles = tuple(random.randrange(2**32) for _ in range(steps))
    return RowLengths(prompts=draw.prompts, completions=draw.completions, shuffles=shuffles)


def _learnt(learnt: RunLearnt | None, reason: str | None) -> Learnt:
    if learnt is None:
        return Learnt(shapes=0, events_per_step=0, layers_run=None, whole=reason)
    return Learnt(
        shapes=learnt.steps_run,
        events_per_step=learnt.steps.events_per_step,
        layers_run=learnt.layers_run,
        whole=None,
    )


def main() -> int:
    """Answer the request of the first argument into the file of the second."""
    request_path, answer_path = map(Path, sys.argv[1:])
    request = ForecastRequest.of(json.loads(request_path.read_text(encoding="utf-8")))
    lines = answer_path.read_text(encoding="utf-8").splitlines() if answer_path.exists() else []
    known = [line_of(json.loads(line)) for line in lines]
    with answer_path.open("a", encoding="utf-8") as file:
        for line in answer(request, known):
            file.write(json.dumps(line_object(line)) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
