"""The peaks of the GPUs of trials on several of them, one line per trial."""

from collections.abc import Sequence

from profiler.domain.outcome import TrialRecord
from profiler.domain.units import gib_text
from profiler.rendering.wording import short_model

_MOST_LINES = 20


def rank_lines(trials: Sequence[tuple[TrialRecord, Sequence[int | None]]]) -> list[str]:
    """Return a line per trial with the peak of allocated memory of each rank, in order; the last counts the others."""
    lines = [
        f"  {short_model(record.spec.model)}, {record.label}: {', '.join(_size(size) for size in sizes)}"
        for record, sizes in trials[:_MOST_LINES]
    ]
    if len(trials) > _MOST_LINES:
        lines.append(f"  {len(trials) - _MOST_LINES} more trials have records of ranks.")
    return ["Peak of allocated memory of each GPU, by rank:", *lines] if lines else []


def _size(size: int | None) -> str:
    return gib_text(size) if size is not None else "no record"
