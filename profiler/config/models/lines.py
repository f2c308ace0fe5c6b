"""What the `config.json` of a model says that the reader of an estimate has to know."""

from profiler.config.models.context import context_line
from profiler.config.models.uncounted import Direction
from profiler.domain.architecture import Architecture
from profiler.domain.trial import TrialSpec


def model_lines(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return the warnings about the model of a trial: rows beyond its context, and values that are not counted."""
    return tuple(line for line in (context_line(spec, architecture), uncounted_line(spec, architecture)) if line)


def uncounted_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return the values of the model's `config.json` that change memory and are not counted, or nothing."""
    found = (*architecture.uncounted, *_beyond_window(spec, architecture))
    return f"Not counted, in the config.json of {spec.model}: {'; '.join(found)}." if found else ""


def _beyond_window(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return a text about rows that are longer than sliding layers see."""
    window = architecture.sliding_window
    if window is None or spec.row_tokens <= window:
        return ()
    what = f"rows of {spec.row_tokens:,} tokens have a mask there, and a shorter cache"
    return (f"sliding_window={window} ({what}: {Direction.EITHER})",)
