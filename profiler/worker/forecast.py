"""The memory of a whole run on a simulated GPU: learn from a few steps, write out all of them, and replay them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from profiler.allocator import parse_alloc_conf
from profiler.allocator.refusal import Refusal
from profiler.allocator.traces.step_replay import RefusedError, StepPeaks, StepReplay
from profiler.domain.cards.card import cuda_context_bytes, installed_torch_version
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.step_shapes import StepShape
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.simulation.extrapolation.parametric_steps import (
    FEWEST_OCCURRENCES,
    FIRST_STEPS,
    Learnt,
    ParametricSteps,
    UnequalStepsError,
    Variant,
    variants,
)
from profiler.training.recipes.step_grouping import KNOWN, step_shapes, steps_per_unit, unit_rows
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
    first_shapes: Sequence[StepShape]
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
        UnsupportedTrialError: The steps cannot be written out, or the trial cannot be simulated.
    """
    if spec.recipe not in KNOWN:
        raise UnsupportedTrialError(f"a forecast of recipe={spec.recipe} is not known yet")
    first_units = -(-FIRST_STEPS // steps_per_unit(spec))
    first_steps = first_units * steps_per_unit(spec)
    runs, layers = [], None
    every = spec.torch_empty_cache_steps
    for units in _plan(spec, draws, first_units):
        learning = replace(spec, steps=len(units) * steps_per_unit(spec), torch_empty_cache_steps=every and 1)
        rows = _joined(units)
        run = simulate(learning, model_config, rows=rows, defers_scratch=True)
        layers = run.layers_run
        runs.append(Learnt(trace=run.trace.on(card_of(spec).chip), shapes=step_shapes(learning, rows)))
    try:
        steps = ParametricSteps(
            runs, first_steps=first_steps, empties=None if every is None else lambda step: step % every == 0
        )
    except UnequalStepsError as error:
        raise UnsupportedTrialError(f"the steps of this job cannot be written out: {error}") from error
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


@dataclass(frozen=True, kw_only=True)
class DiedAt:
    """The request that the card refuses."""

    step: int
    """From 1."""
    refusal: Refusal
    row_tokens: int
    """Tokens to which the rows of the micro-batch are padded; 0 before the first one of the run."""
    rows: int


Told = Callable[[int, StepShape, StepPeaks], None]
"""Is told of each step that was replayed: its number from 1, its shape and its peaks."""


def replay_run(
    spec: TrialSpec, learnt: RunLearnt, draw: RowLengths, *, alloc_conf: str, capacity_bytes: int | None, told: Told
) -> DiedAt | None:
    """Replay all steps of a run; return where it dies.

    The first steps are those of the first draw, as they ran.

    Args:
        spec: The trial, with the number of steps.
        learnt: Of `learn`, with this draw among its draws.
        draw: The rows.
        alloc_conf: Settings of torch's allocator.
        capacity_bytes: What the process can take from the driver, without its context; None: unlimited.
        told: As `Told` says.
    """
    config = parse_alloc_conf(alloc_conf, torch_version=installed_torch_version())
    replay = StepReplay(capacity_bytes=capacity_bytes, config=config)
    first = len(learnt.first_shapes)
    later = step_shapes(spec, draw)[first:]
    steps = chain(learnt.steps.begin(), (learnt.steps.written(shape) for shape in later))
    for number, (shape, pieces) in enumerate(zip((*learnt.first_shapes, *later), steps, strict=True), start=1):
        try:
            peaks = replay.step(pieces)
        except RefusedError as error:
            batch = shape.micro_batches[min(max(0, error.piece - 1), len(shape.micro_batches) - 1)]
            return DiedAt(step=number, refusal=error.refusal, row_tokens=sum(batch.widths), rows=batch.rows)
        told(number, shape, peaks)
    return None


def capacity_of(spec: TrialSpec) -> int:
    """Return what a process can take from the driver on the trial's card."""
    gpu = card_of(spec)
    return gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
