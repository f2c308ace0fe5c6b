"""Claimed changes of memory, and those that were found: one row per setting."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from profiler.analysis.verdicts import Judged
from profiler.domain.claims import Check, End, Quantity, Range
from profiler.domain.memory import Origin
from profiler.rendering.figures.theme import ORIGIN_COLOURS, SOFT_INK, in_theme, new_figure, title

_THINNEST = 0.6
"""Width of a range that is one figure, in percent."""

_ROW_IN, _REST_IN, _WIDTH_IN = 0.22, 1.6, 9.5

_CLAIMED, _TOLERATED = "#9e9e9e", "#e4e4e4"


def claims_figure(judged: Sequence[Judged]) -> Figure:
    """Return a figure with the claimed range of each change as a bar, and what was found as a mark."""
    rows = [
        (each, finding, finding.found)
        for each in judged
        if _has_range(each)
        for finding in each.findings
        if isinstance(finding.found, float)
    ]
    with in_theme():
        figure, axes = new_figure(_WIDTH_IN, _REST_IN + _ROW_IN * len(rows))
        for place, (each, finding, found) in enumerate(rows):
            _draw_range(axes, place, finding.claimed, each.claim.tolerance)
            colour = ORIGIN_COLOURS[finding.origin] if finding.origin is not None else SOFT_INK
            marker = "o" if finding.holds else "x"
            axes.scatter([found], [place], color=colour, marker=marker, s=26, zorder=3)
        names = [f"{each.claim.id}: {finding.setting.when}" for each, finding, _ in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=7)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.axvline(0, color=SOFT_INK, linewidth=0.8, zorder=0)
        axes.set_xlabel("change of memory, %")
        origins = dict.fromkeys(finding.origin for _, finding, _ in rows if finding.origin is not None)
        axes.legend(handles=_legend(list(origins)), fontsize=7, loc="upper right", frameon=True)
        title(axes, "Claimed changes of memory, and those found", "o: as claimed, x: not")
    return figure


def _legend(origins: Sequence[Origin]) -> list[Patch | Line2D]:
    """Return a patch for each range and a mark for each origin of what was found."""
    ranges = [Patch(color=_CLAIMED, label="claimed"), Patch(color=_TOLERATED, label="counts as equal")]
    marks = [
        Line2D([], [], linestyle="", marker="o", markersize=5, color=ORIGIN_COLOURS[origin], label=f"{origin}")
        for origin in origins
    ]
    return [*ranges, *marks]


def _has_range(judged: Judged) -> bool:
    claimed = judged.claim.claimed
    if judged.claim.quantity is Quantity.STEP_TIME:
        return False
    return judged.claim.check is Check.CHANGE and claimed is not None and None not in (claimed.low, claimed.high)


def _draw_range(axes: Axes, place: int, claimed: Range | End | None, tolerance: float) -> None:
    """Draw the claimed range, and around it what counts as equal."""
    if not isinstance(claimed, Range):
        return
    for part, colour in ((claimed.widened(tolerance), _TOLERATED), (claimed, _CLAIMED)):
        if part.low is not None and part.high is not None:
            width, middle = max(part.high - part.low, _THINNEST), (part.high + part.low) / 2
            axes.barh(place, width, left=middle - width / 2, height=0.7, color=colour, zorder=1)
