"""What the `config.json` of a model says that the reader of an estimate has to know."""

from profiler.config.context import context_line
from profiler.domain.architecture import Architecture
from profiler.domain.trial import TrialSpec


def model_lines(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return the warnings about the model of a trial: rows beyond its context, and values that are not counted."""
    return tuple(line for line in (context_line(spec, architecture), uncounted_line(spec, architecture)) if line)


def uncounted_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return the values of the model's `config.json` that change memory and are not counted, or nothing."""
    if not architecture.uncounted:
        return ""
    return f"Not counted, in the config.json of {spec.model}: {'; '.join(architecture.uncounted)}."
