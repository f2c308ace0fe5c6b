"""Estimates of many trials in closed form."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import TrialSpec

Estimates = Callable[[Sequence[TrialSpec], Mapping[str, Architecture]], Sequence[Estimate | None]]
"""Returns the estimate of each trial, in order; None where there is no closed form."""


def estimates_of(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> list[Estimate | None]:
    """Return the closed form's estimate of each trial, in order; None where there is none."""
    from profiler.analytical import estimate  # NumPy is not needed to report wrong input
    from profiler.analytical.closed_form import has_form
    from profiler.analytical.many import estimate_specs, fits_in_arrays

    found: list[Estimate | None] = [None] * len(specs)
    places = [place for place, spec in enumerate(specs) if has_form(spec, architectures[spec.model])]
    ordinary = [place for place in places if fits_in_arrays(specs[place])]
    table = estimate_specs([specs[place] for place in ordinary], architectures)
    for row, place in enumerate(ordinary):
        found[place] = table.estimate(row)
    for place in set(places).difference(ordinary):
        found[place] = estimate(specs[place], architectures[specs[place].model])
    return found


def estimates_by_trial(
    specs: Mapping[str, TrialSpec], estimates: Estimates, architecture_of: Callable[[str], Architecture]
) -> dict[str, Estimate]:
    """Return estimates by trial id. A stored trial whose local model no longer exists has none.

    Args:
        specs: The trials by their ids.
        estimates: Returns the estimates of trials, all computed at once.
        architecture_of: Returns the architecture of a model.
    """
    architectures: dict[str, Architecture] = {}
    for model in dict.fromkeys(spec.model for spec in specs.values()):
        with suppress(UsageError):
            architectures[model] = architecture_of(model)
    known = {name: spec for name, spec in specs.items() if spec.model in architectures}
    found = zip(known, estimates(tuple(known.values()), architectures), strict=True)
    return {name: estimate for name, estimate in found if estimate is not None}
