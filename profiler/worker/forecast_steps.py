"""The steps of a whole run on a simulated GPU: learnt from a few of them and written out, or simulated whole."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from profiler.allocator.traces.card_replay import Piece, piece_of
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.runs.step_shape import StepLengths
from profiler.domain.trials.trial import Attention, RowLengths, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT
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
    plan = _Plan(spec=spec, draws=draws, pads_masks=_pads_masks(spec))
    first_steps = plan.first_units * steps_per_unit(spec)
    runs, layers = [], None
    every = spec.torch_empty_cache_steps
    for units in plan.runs():
        learning = replace(spec, steps=len(units) * steps_per_unit(spec), torch_empty_cache_steps=every and 1)
        rows = _joined(units)
        run = simulate(learning, model_config, rows=rows, defers_scratch=True)
        layers = run.layers_run
        runs.append(RunOfSteps(trace=run.trace.on(card_of(spec).chip), shapes=step_shapes(learning, rows)))
    empties = None if every is None else lambda step: step % every == 0
    steps = ParametricSteps(runs, first_steps=first_steps, empties=empties, pads_masks=plan.pads_masks)
    return RunLearnt(
        steps=steps,
        first_shapes=runs[0].shapes[:first_steps],
        runs=len(runs),
        steps_run=sum(len(run.shapes) for run in runs),
        layers_run=layers,
    )


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

    def _chosen(self) -> list[RowLengths]:
        """Return units in which every variant of the draws occurs often enough."""
        places: dict[Variant, list[tuple[int, int]]] = defaultdict(list)
        units = -(-self.spec.steps // steps_per_unit(self.spec))
        for number, draw in enumerate(self.draws):
            for unit in range(self.first_units, units):
                for variant in self._variants(unit_rows(self.spec, draw, unit)):
                    places[variant].append((number, unit))
        chosen: list[RowLengths] = []
        counts: Counter[Variant] = Counter()
        used: set[tuple[int, int]] = set()
        for variant in sorted(places, key=lambda each: len(places[each])):
            for candidate in self._candidates(places[variant], used):
                if counts[variant] > FEWEST_OCCURRENCES or len(chosen) == _MOST_UNITS:
                    break
                if variant in (found := list(self._variants(candidate))):
                    chosen.append(candidate)
                    counts.update(found)
        return chosen

    def _candidates(self, places: Sequence[tuple[int, int]], used: set[tuple[int, int]]) -> Iterator[RowLengths]:
        """Yield units with a variant, from short to long ones in turn, each once; then shorter ones like them."""
        by_length = sorted(places, key=lambda place: sum(self._unit(place).completions))
        # Sizes are learnt best from lengths that lie far apart.
        spread = [by_length[round(part * (len(by_length) - 1))] for part in (0, 1, 0.5, 0.25, 0.75, 0.1, 0.9, 0.4, 0.6)]
        for place in dict.fromkeys(spread):
            if place not in used:
                used.add(place)
                yield self._unit(place)
        for factor in _SHORTER:
            for place in dict.fromkeys(spread):
                yield shorter(self._unit(place), factor)

    def _unit(self, place: tuple[int, int]) -> RowLengths:
        draw, unit = place
        return unit_rows(self.spec, self.draws[draw], unit)

    def _variants(self, unit: RowLengths) -> Iterator[Variant]:
        """Yield the variant of each piece of a unit's steps."""
        for shape in step_shapes(replace(self.spec, steps=steps_per_unit(self.spec)), unit):
            yield from variants(shape, pads_masks=self.pads_masks)


def _first_units(spec: TrialSpec) -> int:
    return -(-FIRST_STEPS // steps_per_unit(spec))


def shorter(rows: RowLengths, factor: float) -> RowLengths:
    """Return shorter rows whose masks are aligned where they were."""

    def less(length: int) -> int:
        return length - int((length - factor * length) / MASK_ALIGNMENT) * MASK_ALIGNMENT

    return replace(rows, prompts=[*map(less, rows.prompts)], completions=[*map(less, rows.completions)])


def _joined(units: Sequence[RowLengths]) -> RowLengths:
    return RowLengths(
        prompts=[length for unit in units for length in unit.prompts],
        completions=[length for unit in units for length in unit.completions],
        shuffles=[seed for unit in units for seed in unit.shuffles],
    )


# ---- a run -----------------------------------------------------------------------------------------------------------


Steps = Iterable[tuple[StepLengths, Iterable[Piece]]]
"""The shape of each step of a run, and its pieces, of which the last ones are its micro-batches."""


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
    before = first_block = 0
    for shape, (_, end) in zip(step_shapes(spec, draw), step_bounds(trace), strict=True):
        forwards = [at for at, phase in trace.phase_starts if phase is Phase.FORWARD and before <= at < end]
        # Of those that pass the model in parts, the first part.
        begins = forwards[:: max(1, len(forwards) // len(shape.micro_batches))]
        bounds = [before, *begins[: len(shape.micro_batches)], end]
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
    yield from islice(whole_steps(short, model_config, draw), units * per_unit)
