"""Two figures of each trial against one another: estimates and published values."""

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.errors import Accuracy, Compared
from profiler.domain.memory import Origin, as_gib
from profiler.domain.runs.outcome import Status
from profiler.rendering.figures.theme import INK, ORIGIN_COLOURS, SOFT_INK, in_theme, legend_below, new_figure, title
from profiler.rendering.sweep.words import cell_name, origin_word, percent, setting_title, short_models, signed_percent

_RULE_COLOUR = "#999999"
_DECADES = (0.0001, 0.001, 0.01, 0.1, 1, 10, 100, 1000)
_WIDE, _NARROW = (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)
"""The ticks of each decade, over a wide and over a narrow range."""
_NARROW_RATIO = 12
_NAME_CHARACTERS = 32
"""Of each line of the worst trial's name."""


def parity_figure(section: Section, found: Sequence[Accuracy]) -> Figure:
    """Draw estimates over results, in GiB on logarithmic axes; a hollow mark is what a trial out of memory needs.

    Args:
        section: The trials.
        found: The accuracies of the section. The worst trial of the estimate is named.
    """
    with in_theme():
        figure, axes = new_figure(6.6, 6.2)
        cells = [cell for cell in section.in_order() if cell.result_bytes]
        # The rule of thumb first, so that the estimates are on top of it.
        scattered = [_scatter(axes, cells, accuracy) for accuracy in reversed(found)]
        _label_axes(axes, section, scattered)
        if found and found[0].of is Compared.ESTIMATE:
            _name_worst(axes, found[0])
        return figure


def _scatter(axes: Axes, cells: Iterable[Cell], accuracy: Accuracy) -> PathCollection:
    is_rule = accuracy.of is Compared.RULE
    colour = _RULE_COLOUR if is_rule else ORIGIN_COLOURS[Origin.ESTIMATED]
    predicted = [(cell, cell.rule_bytes if is_rule else cell.estimated_bytes) for cell in cells]
    points = [(cell, size) for cell, size in predicted if size]
    return axes.scatter(
        [as_gib(cell.result_bytes or 0) for cell, _ in points],
        [as_gib(size) for _, size in points],
        s=26 if is_rule else 40,
        marker="s" if is_rule else "o",
        facecolors=["none" if cell.status is Status.OOM else colour for cell, _ in points],
        edgecolors=colour if is_rule else INK,
        linewidths=0.9,
        label=f"{accuracy.of}: median error {percent(accuracy.median_ratio)}, p95 {percent(accuracy.p95_ratio)}",
        zorder=2 if is_rule else 3,
    )


def _label_axes(axes: Axes, section: Section, scattered: Sequence[PathCollection]) -> None:
    low, high = min(axes.dataLim.min) * 0.7, max(axes.dataLim.max) * 1.4
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = [low, high]
    band = axes.fill_between(
        ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#f0f0f0", label="within 10 %", zorder=0
    )
    axes.plot(ends, ends, color=SOFT_INK, linewidth=1, zorder=1)
    steps = _NARROW if high < _NARROW_RATIO * low else _WIDE
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([decade * step for decade in _DECADES for step in steps]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.grid(True)
    axes.set_xlabel(
        f"peak allocated memory, GiB ({origin_word(section.setting)}; hollow: out of memory, what it needs)"
    )
    axes.set_ylabel("peak allocated memory, GiB (estimated)")
    axes.legend(handles=[*reversed(scattered), band], loc="upper left", fontsize=8.5)
    title(axes, "Estimate against result", setting_title(section.setting))


def _name_worst(axes: Axes, accuracy: Accuracy) -> None:
    cell = accuracy.worst
    place = (as_gib(cell.result_bytes or 0), as_gib(cell.estimated_bytes or 0))
    axes.annotate(
        f"worst: {signed_percent(accuracy.worst_error_ratio)}\n{fill(cell_name(cell), width=_NAME_CHARACTERS)}",
        place,
        xytext=(0.97, 0.06),
        textcoords="axes fraction",
        ha="right",
        va="bottom",
        size=8.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        arrowprops={"arrowstyle": "-", "color": SOFT_INK, "linewidth": 0.8, "shrinkB": 4},
    )


_GROUP_GAP = 1.1


def published_figure(section: Section) -> Figure:
    """Draw one line per trial with a published figure: our result, the estimate, and the published figure as printed.

    The source does not state its unit (GB or GiB, 7 % apart), so no error is computed.
    """
    with in_theme():
        cells = [cell for cell in section.in_order() if cell.published is not None]
        models = list(dict.fromkeys(cell.model for cell in cells))
        figure, axes = new_figure(8.6, 0.27 * len(cells) + 0.33 * len(models) + 1.9)
        places = _places(cells)
        for y, cell in zip(places, cells, strict=True):
            _draw(axes, y, cell, section)
        _label_axes_published(axes, section, cells, places)
        _legend(figure, section)
        return figure


def _places(cells: Sequence[Cell]) -> list[float]:
    places, y = [], 0.0
    for number, cell in enumerate(cells):
        if number and cell.model != cells[number - 1].model:
            y += _GROUP_GAP
        places.append(y)
        y += 1
    return places


def _draw(axes: Axes, y: float, cell: Cell, section: Section) -> None:
    theirs = cell.published.value if cell.published else None
    ours = as_gib(cell.result_bytes) if cell.result_bytes is not None else None
    if ours is not None and theirs is not None:
        axes.plot([ours, theirs], [y, y], color="#cfcfcf", linewidth=2, zorder=1, label="span")
    if cell.estimated_bytes is not None:
        _mark(axes, as_gib(cell.estimated_bytes), y, Origin.ESTIMATED, "|")
    if ours is not None and section.setting.origin is not None:
        _mark(axes, ours, y, section.setting.origin, "o", hollow=cell.status is Status.OOM)
    if theirs is not None:
        _mark(axes, theirs, y, Origin.PUBLISHED, "D")
    elif cell.published is not None:
        # At the left edge: it has no number.
        place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate("published: OOM", (0, y), size=8.5, color=ORIGIN_COLOURS[Origin.PUBLISHED], **place)


def _mark(axes: Axes, x: float, y: float, origin: Origin, marker: str, *, hollow: bool = False) -> None:
    size = 11 if marker == "|" else 7
    axes.plot([x], [y], markersize=size, label=origin.value, zorder=3, **_style(origin, marker, hollow))


def _style(origin: Origin, marker: str, hollow: bool) -> dict[str, Any]:
    colour = ORIGIN_COLOURS[origin]
    edge = {"markeredgewidth": 2 if marker == "|" else 1.2, "markeredgecolor": colour}
    return {"linestyle": "none", "marker": marker, "markerfacecolor": "white" if hollow else colour, **edge}


def _label_axes_published(axes: Axes, section: Section, cells: Sequence[Cell], places: Sequence[float]) -> None:
    names = short_models(section.models)
    axes.set_yticks(places, [cell.label for cell in cells])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(places[-1] + 0.7, places[0] - 1.0)
    axes.set_xlim(left=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel("GiB (ours, peak allocated); published as printed, GB or GiB not stated")
    for number, (y, cell) in enumerate(zip(places, cells, strict=True)):
        if number == 0 or cell.model != cells[number - 1].model:
            axes.annotate(
                names[cell.model], (0, y - 0.4), xytext=(2, 2), textcoords="offset points", va="bottom", weight="bold"
            )
    if section.setting.memory_bytes is not None:
        axes.axvline(as_gib(section.setting.memory_bytes), color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2)
    title(axes, "The published table and ours", setting_title(section.setting))


def _legend(figure: Figure, section: Section) -> None:
    origin = section.setting.origin or Origin.SIMULATED
    handles = [
        _handle(origin, "o", origin_word(section.setting)),
        _handle(origin, "o", "out of memory: what it needs", hollow=True),
        _handle(Origin.ESTIMATED, "|", "estimated in closed form"),
        _handle(Origin.PUBLISHED, "D", "published"),
        Line2D([], [], color=SOFT_INK, linestyle=(0, (4, 2)), label="memory of the card"),
    ]
    legend_below(figure, handles=handles, ncols=3)


def _handle(origin: Origin, marker: str, label: str, *, hollow: bool = False) -> Line2D:
    size = 9 if marker == "|" else 7
    return Line2D([], [], markersize=size, label=label, **_style(origin, marker, hollow))
