"""Figure of a replayed history: allocated and reserved memory over its entries, recorded and what-if."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from profiler.allocator.histories.course import Course, OutOfMemory, reduced
from profiler.allocator.histories.what_if import Answer, Capacity
from profiler.domain.memory import GIB, as_gib, gib_text
from profiler.rendering.figures.theme import INK, LINE_COLOURS, NOT_FITTING, SOFT_INK, in_theme, legend_below
from profiler.rendering.replay.words import entries_text, settings_text, short_capacity_text

MOST_POINTS = 1500
"""Points per panel; with more entries each point is the maximum of its part."""

_ALLOCATED, _RESERVED = LINE_COLOURS[0], "#d9d9d9"
_PANEL_IN, _WIDTH_IN = 2.4, 9.2
_DASHES = (0, (4, 2))
_TITLE_CHARACTERS, _CAPTION_LINE_PT = 100, 11.5
_HEADROOM = 1.08
"""Height of the axis relative to the highest level, as space for the marks."""
_FAR_RATIO = 3
"""A limit this many times above the highest level is only named, not drawn: it would compress the levels."""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    title: str
    course: Course
    capacity: Capacity | None
    limit_text: str
    refused: OutOfMemory | None
    """Position at which the program would have ended."""


def replay_figure(name: str, found: Answer) -> Figure:
    """Draw one panel per column of the table, on one scale, over the entries of the history."""
    panels = list(_panels(found))
    with in_theme():
        figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * len(panels) + 1.3))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
        places = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        highest = max(as_gib(panel.course.peak.reserved_bytes) for panel in panels)
        top = max([highest, *(as_gib(limit) for limit in map(_limit, panels) if limit and _is_near(limit, highest))])
        for axes, panel in zip(places, panels, strict=True):
            axes.set_ylim(0, top * _HEADROOM)
            axes.set_xlim(0, max(1, len(found.history.entries)))
            _draw(axes, panel, highest)
        places[-1].set_xlabel("entry of the history", size=9)
        places[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        figure.supylabel("memory, GiB", size=9)
        figure.suptitle(
            f"Memory history of {name}\nsegments of the first panel recorded, everything else replayed by the model",
            x=0.02, ha="left", size=10.5,
        )  # fmt: skip
        legend_below(figure, handles=list(_legend(panels, highest)), ncols=5, handlelength=1.6)
        return figure


def _panels(found: Answer) -> Iterator[_Panel]:
    course = found.comparison.course
    settings = settings_text(found.history.config)
    yield _Panel(title=f"recorded, with {settings}", course=course, capacity=None, limit_text="", refused=None)
    for scenario in (found.anew, found.after):
        if scenario is not None:
            gpu = scenario.gpu.name if scenario.gpu else None
            changed = f"what if: {settings_text(scenario.config)}" + (f" on {gpu}" if gpu else "")
            yield _Panel(
                title="the same settings, begun anew" if scenario is found.anew else changed,
                course=scenario.result.course,
                capacity=scenario.capacity,
                limit_text=short_capacity_text(scenario.capacity, gpu),
                refused=scenario.result.refused,
            )


def _draw(axes: Axes, panel: _Panel, highest: float) -> None:
    entries, reserved = _reduced(panel.course.reserved_bytes)
    _, allocated = _reduced(panel.course.allocated_bytes)
    axes.fill_between(entries, reserved, color=_RESERVED, linewidth=0, step="post", label="reserved")
    axes.plot(entries, reserved, color=SOFT_INK, linewidth=0.9, drawstyle="steps-post")
    axes.fill_between(entries, allocated, color=_ALLOCATED, linewidth=0, step="post", label="allocated")
    axes.grid(axis="y")
    _head(axes, panel)
    limit = _limit(panel)
    if limit is not None and _is_near(limit, highest):
        axes.axhline(as_gib(limit), color=NOT_FITTING, linestyle=_DASHES, linewidth=1.1, label="limit")
    peak = panel.course.peak
    axes.plot(
        [peak.entry + 1], [as_gib(peak.reserved_bytes)], marker="v", markersize=5, color=INK, zorder=4, label="peak",
        linestyle="none", clip_on=False,
    )  # fmt: skip
    for refusal in panel.course.refusals:
        _mark_refusal(axes, refusal)
    if panel.refused is not None:
        # The program ended here.
        right = axes.get_xlim()[1]
        axes.axvspan(panel.refused.entry + 1, right, facecolor="white", edgecolor=SOFT_INK, hatch="///", alpha=0.25)
        _mark_refusal(axes, panel.refused)


def _head(axes: Axes, panel: _Panel) -> None:
    """Write the title, and the numbers below it, so that no label covers a curve or another label."""
    lines = _caption(panel)
    axes.set_title(
        shorten(panel.title, _TITLE_CHARACTERS, placeholder=" ..."), size=9.5, pad=_CAPTION_LINE_PT * len(lines) + 6
    )
    text = axes.annotate(
        "\n".join(lines), (0, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points", va="bottom",
        size=8.5, color=SOFT_INK, linespacing=1.15,
    )  # fmt: skip
    # Otherwise a long line would make the panels narrower.
    text.set_in_layout(False)


def _caption(panel: _Panel) -> list[str]:
    """Return up to two lines: the limit, and the out-of-memory errors."""
    peak = panel.course.peak
    share = 100 * peak.free_bytes / peak.reserved_bytes if peak.reserved_bytes else 0
    limit = f"; limit {panel.limit_text}" if panel.limit_text else ""
    lines = [f"peak {gib_text(peak.reserved_bytes, 2)}, {share:.0f} % of it not allocated{limit}"]
    refusals = [*panel.course.refusals, *([panel.refused] if panel.refused is not None else [])]
    if refusals:
        requested = gib_text(refusals[0].requested_bytes, 2)
        lines.append(f"out of memory at {entries_text([each.entry for each in refusals])}: {requested} requested")
    return lines


def _reduced(levels: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return (entry, GiB) of up to `MOST_POINTS` points, each the maximum of its part; entry 0 is before the first."""
    starts, highest = reduced(levels, MOST_POINTS)
    return np.asarray(starts, dtype=np.int64), np.asarray(highest) / float(GIB)


def _limit(panel: _Panel) -> int | None:
    return panel.capacity.size_bytes if panel.capacity is not None else None


def _is_near(limit_bytes: int, highest: float) -> bool:
    return as_gib(limit_bytes) < _FAR_RATIO * highest


def _mark_refusal(axes: Axes, refusal: OutOfMemory) -> None:
    axes.plot(
        [refusal.entry + 1], [as_gib(refusal.reserved_bytes)], marker="X", markersize=7, color=NOT_FITTING,
        markeredgecolor="white", markeredgewidth=0.6, linestyle="none", zorder=6, label="out of memory",
    )  # fmt: skip


def _legend(panels: Sequence[_Panel], highest: float) -> Iterator[Artist]:
    yield Patch(color=_ALLOCATED, label="allocated")
    yield Patch(color=_RESERVED, label="reserved, not allocated")
    yield Line2D([], [], color=INK, marker="v", linestyle="none", markersize=5, label="peak of reserved memory")
    if any(limit is not None and _is_near(limit, highest) for limit in map(_limit, panels)):
        yield Line2D([], [], color=NOT_FITTING, linestyle=_DASHES, linewidth=1.1, label="what the process can take")
    if any(panel.refused is not None or panel.course.refusals for panel in panels):
        yield Line2D([], [], color=NOT_FITTING, marker="X", linestyle="none", markersize=7, label="out of memory")
