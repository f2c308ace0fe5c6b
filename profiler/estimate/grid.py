"""The estimates of a grid: at each combination that of the dearest release of trl that the files can be for."""

from collections.abc import Callable, Sequence
from itertools import product

from profiler.analytical.explanation.cards import Fit
from profiler.analytical.explanation.grid import EstimatedGrid, EstimatedPoint, estimate_grid
from profiler.analytical.formulas.sizes.fragments import unreleasable_bytes
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import Inputs
from profiler.estimate.job.trial import STEP_BYTES, with_form
from profiler.estimate.points import Axes, specs_of_each

ArchitectureOf = Callable[[str], Architecture]


def answered_grid(common: Inputs, axes: Axes, architecture_of: ArchitectureOf) -> EstimatedGrid:
    """Return the estimates of all combinations of `axes`, each once.

    Raises:
        UsageError: With all faults, if no release allows every combination.
    """
    found: list[tuple[TrialSpec, ...]] = []
    refused: UsageError | None = None
    for inputs in (common, *common.others):
        try:
            found.append(_specs(inputs, axes, architecture_of))
        except UsageError as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    models = dict.fromkeys(spec.model for specs in found for spec in specs)
    architectures = {model: architecture_of(model) for model in models}
    grids = [estimate_grid(specs, tuple(axes), architectures).points for specs in found]
    points = [max(same, key=_needs) for same in zip(*grids, strict=True)]
    return EstimatedGrid(keys=tuple(axes), points=tuple({point.spec: point for point in points}.values()))


def _specs(inputs: Inputs, axes: Axes, architecture_of: ArchitectureOf) -> tuple[TrialSpec, ...]:
    """Return the trial of each combination in the releases of `inputs`.

    Raises:
        UsageError: With all faults.
    """
    faults = list(inputs.faults)
    specs: Sequence[TrialSpec] = ()
    try:
        if inputs.whole_rows:
            combinations = product(*axes.values())
            points = (inputs.at(dict(zip(axes, values, strict=True))) for values in combinations)
            specs = [parse_point(point, architecture_of=architecture_of) for point in points]
        else:
            specs = specs_of_each(inputs.keys, axes, architecture_of=architecture_of)
    except UsageError as error:
        faults.extend(error.faults)
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return tuple(with_form(spec, architecture_of) or spec for spec in specs)


def _needs(point: EstimatedPoint) -> tuple[bool, int, int]:
    """Return what is dearer the larger it is: a job that does not start, then memory."""
    unreleasable = unreleasable_bytes(point.peak_allocated_bytes, point.peak_reserved_bytes)
    return point.fit in (Fit.NO_ENGINE, Fit.NO_KERNEL), unreleasable // STEP_BYTES, point.peak_reserved_bytes
