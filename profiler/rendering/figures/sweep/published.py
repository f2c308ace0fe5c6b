"""A published table and ours, trial by trial."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.units import as_gib
from profiler.rendering.figures.theme import ORIGIN_COLOURS, SOFT_INK, in_theme, new_figure, title
from profiler.rendering.sweep.words import origin_word, setting_title, short_models

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
        _label_axes(axes, section, cells, places)
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
        axes.annotate(
            "published: OOM",
            (0, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=8.5,
            color=ORIGIN_COLOURS[Origin.PUBLISHED],
        )


def _mark(axes: Axes, x: float, y: float, origin: Origin, marker: str, *, hollow: bool = False) -> None:
    colour = ORIGIN_COLOURS[origin]
    axes.plot(
        [x],
        [y],
        linestyle="none",
        marker=marker,
        markersize=11 if marker == "|" else 7,
        markeredgewidth=2 if marker == "|" else 1.2,
        markerfacecolor="white" if hollow else colour,
        markeredgecolor=colour,
        label=origin.value,
        zorder=3,
    )


def _label_axes(axes: Axes, section: Section, cells: Sequence[Cell], places: Sequence[float]) -> None:
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
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)


def _handle(origin: Origin, marker: str, label: str, *, hollow: bool = False) -> Line2D:
    colour = ORIGIN_COLOURS[origin]
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=9 if marker == "|" else 7,
        markeredgewidth=2 if marker == "|" else 1.2,
        markerfacecolor="white" if hollow else colour,
        markeredgecolor=colour,
        label=label,
    )
