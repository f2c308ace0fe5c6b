"""Estimates of the trials of a grid, each with the verdict for its card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.analytical.estimate import estimate
from profiler.analytical.explanation.engine_start import engine_start_text
from profiler.analytical.explanation.explained import Fit, fit_of
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.machines.extras import missing
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import TrialSpec

_FEW = 64
"""Trials whose estimates take less time than the import of numpy."""


@dataclass(frozen=True, kw_only=True)
class EstimatedPoint:
    """The estimate of one trial of a grid."""

    spec: TrialSpec
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_rule_bytes: int
    peak_phase: Phase
    fit: Fit | None
    """The verdict for the card of the trial; None if it names none."""


@dataclass(frozen=True, kw_only=True)
class EstimatedGrid:
    """The estimates of a grid."""

    keys: tuple[str, ...]
    """The keys that the grid varies."""
    points: tuple[EstimatedPoint, ...]


def estimate_grid(
    specs: Sequence[TrialSpec], keys: Sequence[str], architectures: Mapping[str, Architecture]
) -> EstimatedGrid:
    """Return the estimates of `specs`, in order.

    Args:
        specs: The trials.
        keys: The keys that vary.
        architectures: The architecture of each model.

    Raises:
        UsageError: As in `estimate`.
    """
    points = []
    for spec, found in zip(specs, _estimates(specs, architectures), strict=True):
        allocated = found.peak_allocated_bytes
        reserved = found.peak_reserved_bytes or allocated
        gpu = find_gpu(spec.gpu)
        fit = None
        if gpu is not None:
            starts = not engine_start_text(spec, architectures[spec.model])
            fit = fit_of(spec, gpu, allocated_bytes=allocated, reserved_bytes=reserved, engine_starts=starts)
        points.append(
            EstimatedPoint(
                spec=spec,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
                peak_rule_bytes=found.peak_rule_bytes,
                peak_phase=found.peak_phase,
                fit=fit,
            )
        )
    return EstimatedGrid(keys=tuple(keys), points=tuple(points))


def _estimates(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> Sequence[Estimate]:
    """Return the estimate of each trial: one by one if they are few or numpy is not installed, else with arrays."""
    if len(specs) <= _FEW or missing(["numpy"]):
        return [estimate(spec, architectures[spec.model]) for spec in specs]
    from profiler.analytical.many import estimate_specs

    table = estimate_specs(specs, architectures)
    return [table.estimate(row) for row in range(len(specs))]
