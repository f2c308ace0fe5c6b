"""Which trials a figure does not show."""

from collections.abc import Iterable

from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.domain.outcome import Status
from profiler.rendering.wording import cell_name

_MOST_NAMED = 3


def not_shown(section: Section, shown: Iterable[Cell], *, why: str = "") -> str:
    """Return the sentence about the trials of `section` that are not among `shown`; empty if all are.

    Args:
        section: All trials.
        shown: Those of the figure.
        why: Why the others are missing, where their status does not say it.
    """
    known = {cell.trial_id for cell in shown}
    others = [cell for cell in section.in_order() if cell.trial_id not in known]
    if not others:
        return ""
    reason = f" ({why})" if why else ""
    counted = f"Not shown: {len(others)} of {len(section.cells)} trials{reason}"
    if len(others) > _MOST_NAMED:
        return f"{counted}."
    return f"{counted}: {'; '.join(_named(cell) for cell in others)}."


def _named(cell: Cell) -> str:
    status = "" if cell.status in (Status.OK, Status.OOM) else f", {cell.status.value.replace('_', ' ')}"
    return f"{cell_name(cell)}{status}"
