"""The trials of a grid that the command line lists, and their estimates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from profiler.analytical.explanation.bounds import most_added_by_sharding, open_fit
from profiler.analytical.explanation.explained import (
    EstimatedGrid,
    EstimatedPoint,
    Fit,
    estimate_grid,
    fit_of_memory,
    needed_of,
)
from profiler.config.options.reading import show
from profiler.config.trials.grid import refuse_too_many_points
from profiler.config.trials.specification import parse_point
from profiler.constraints.constraint import Case
from profiler.constraints.table import faults_everywhere
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import Inputs
from profiler.estimate.job.trial import STEP_BYTES, candidate_of, with_form

INDEPENDENT_KEYS = (
    "num_generations",
    "max_prompt_length",
    "max_completion_length",
    "per_device_train_batch_size",
    "steps",
    "seed",
)
"""Keys whose typed value depends on no other key."""

Axes = Mapping[str, Sequence[object]]


def grid_specs(
    common: Mapping[str, object], axes: Axes, *, architecture_of: Callable[[str], Architecture]
) -> tuple[TrialSpec, ...]:
    """Return the specifications of all combinations of `axes`, each once; the first axis varies slowest.

    They equal those of `parse_points`, but values of `INDEPENDENT_KEYS` are parsed only once.

    Args:
        common: Untyped keys that all trials share.
        axes: Untyped values of the other keys.
        architecture_of: The architecture of a model by its name.

    Raises:
        UsageError: If there are too many combinations, or if values are wrong; with each fault once.
    """
    return tuple(dict.fromkeys(specs_of_each(common, axes, architecture_of=architecture_of)))


def specs_of_each(
    common: Mapping[str, object], axes: Axes, *, architecture_of: Callable[[str], Architecture]
) -> tuple[TrialSpec, ...]:
    """Return the specification of each combination, as `grid_specs`, but as often as it is one.

    Raises:
        UsageError: As `grid_specs`.
    """
    refuse_too_many_points(axes)
    parser = _Parser(common, tuple(axes), architecture_of)
    specs: list[TrialSpec] = []
    faults: dict[Fault, None] = {}
    for values in product(*axes.values()):
        try:
            specs.append(parser.parse(values))
        except UsageError as error:
            faults.update(dict.fromkeys(error.faults))
    if faults:
        raise UsageError(tuple(faults))
    return tuple(specs)


class _Parser:
    """Parses points that differ in a few keys, and remembers the typed values of independent keys."""

    def __init__(
        self, common: Mapping[str, object], keys: Sequence[str], architecture_of: Callable[[str], Architecture]
    ) -> None:
        self._common, self._keys, self._architecture_of = common, keys, architecture_of
        self._typed: dict[tuple[str, str], Any] = {}
        self._specs: dict[tuple[str, ...], TrialSpec] = {}

    def parse(self, values: Sequence[object]) -> TrialSpec:
        """Return the specification of the point with `values`, one per key.

        Raises:
            UsageError: If the point is wrong.
        """
        texts = [show(value) for value in values]
        independent = [pair for pair in zip(self._keys, texts, strict=True) if pair[0] in INDEPENDENT_KEYS]
        others = tuple(text for key, text in zip(self._keys, texts, strict=True) if key not in INDEPENDENT_KEYS)
        known = self._specs.get(others)
        if known is not None and known.images_per_prompt is None and all(pair in self._typed for pair in independent):
            spec = replace(known, **{key: self._typed[key, text] for key, text in independent})
            faults = faults_everywhere(Case(spec=spec, architecture=self._architecture_of(spec.model)))
            if faults:
                raise UsageError(faults)
            return spec
        point = {**self._common, **dict(zip(self._keys, values, strict=True))}
        spec = parse_point(point, architecture_of=self._architecture_of)
        self._specs[others] = spec
        self._typed.update({(key, text): getattr(spec, key) for key, text in independent})
        return spec


ArchitectureOf = Callable[[str], Architecture]


def answered_grid(common: Inputs, axes: Axes, architecture_of: ArchitectureOf) -> EstimatedGrid:
    """Return the estimates of all combinations of `axes`, each once.

    Raises:
        UsageError: With all faults, if no release allows every combination.
    """
    found: list[Sequence[_Trial]] = []
    refused: UsageError | None = None
    for inputs in (common, *common.others):
        try:
            found.append(_trials(inputs, axes, architecture_of))
        except UsageError as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    models = dict.fromkeys(trial.spec.model for trials in found for trial in trials)
    architectures = {model: architecture_of(model) for model in models}
    grids = [_estimated(trials, tuple(axes), architectures) for trials in found]
    points = [max(same, key=_needs) for same in zip(*grids, strict=True)]
    return EstimatedGrid(keys=tuple(axes), points=tuple({point.spec: point for point in points}.values()))


@dataclass(frozen=True, kw_only=True)
class _Trial:
    spec: TrialSpec
    is_open: bool = False
    """Whether it leaves out what shards it."""


def _trials(inputs: Inputs, axes: Axes, architecture_of: ArchitectureOf) -> Sequence[_Trial]:
    """Return the trial of each combination in the releases of `inputs`.

    Raises:
        UsageError: With all faults.
    """
    if inputs.sharded is None and not inputs.whole_rows and not inputs.faults:
        specs = specs_of_each(inputs.keys, axes, architecture_of=architecture_of)
        return [_Trial(spec=with_form(spec, architecture_of) or spec) for spec in specs]
    refuse_too_many_points(axes)
    found: list[_Trial] = []
    faults: dict[Fault, None] = {}
    for values in product(*axes.values()):
        try:
            trial = candidate_of(inputs, dict(zip(axes, values, strict=True)), architecture_of)
        except UsageError as error:
            faults.update(dict.fromkeys(error.faults))
        else:
            found.append(_Trial(spec=trial.spec, is_open=trial.refusal is not None))
    if faults:
        raise UsageError(tuple(faults))
    return found


def _estimated(
    trials: Sequence[_Trial], keys: Sequence[str], architectures: Mapping[str, Architecture]
) -> Sequence[EstimatedPoint]:
    """Return the estimates of trials, with the verdicts of those that leave out what shards them open."""
    points = estimate_grid([trial.spec for trial in trials], keys, architectures).points
    return [
        _open(point, architectures[point.spec.model]) if trial.is_open else point
        for trial, point in zip(trials, points, strict=True)
    ]


def _open(point: EstimatedPoint, architecture: Architecture) -> EstimatedPoint:
    """Return a point that fits with room for all that sharding may add."""
    gpu, fit = find_gpu(point.spec.gpu), point.fit
    if gpu is not None and fit is not None:
        needed = needed_of(point.spec, point.estimate)
        more = replace(needed, most_bytes=needed.most_bytes + most_added_by_sharding(point.spec, architecture))
        fit = open_fit(fit, is_certain=fit_of_memory(gpu, more, gpus=point.spec.num_processes) is Fit.FITS)
    return replace(point, fit=fit, is_open=True)


def _needs(point: EstimatedPoint) -> tuple[bool, int, int]:
    """Return what is dearer the larger it is: a job that does not start, then memory."""
    most_bytes = needed_of(point.spec, point.estimate).most_bytes
    return point.fit in (Fit.NO_ENGINE, Fit.NO_KERNEL), most_bytes // STEP_BYTES, point.estimate.reserved_bytes
