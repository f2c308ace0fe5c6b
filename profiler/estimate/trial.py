"""The one trial that a command line and its files describe."""

from collections.abc import Callable
from contextlib import suppress

from profiler.analytical.closed_form import has_form
from profiler.config.model_lines import model_lines
from profiler.config.specification import parse_point
from profiler.domain.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.trial import TrialSpec
from profiler.estimate.inputs import Inputs


def parsed_trial(common: Inputs, architecture_of: Callable[[str], Architecture]) -> tuple[TrialSpec, tuple[str, ...]]:
    """Return the trial, sharded where that has a closed form, and what was assumed.

    Raises:
        UsageError: With every fault of the keys and files.
    """
    if common.sharded is not None and not common.faults:
        with suppress(UsageError):
            spec = parse_point(common.sharded.keys, architecture_of=architecture_of)
            if has_form(spec, architecture_of(spec.model)):
                return spec, (*common.sharded.notes, *model_lines(spec, architecture_of(spec.model)))
    faults = list(common.faults)
    try:
        spec = parse_point(common.keys, architecture_of=architecture_of)
    except UsageError as error:
        faults.extend(error.faults)
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return spec, (*common.notes, *model_lines(spec, architecture_of(spec.model)))
