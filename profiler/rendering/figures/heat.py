"""The peak over two keys, with the limit line of each card."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from profiler.analysis.compared.axes import Surface
from profiler.analysis.compared.cells import Cell, Number
from profiler.analysis.compared.comparison import Section
from profiler.analysis.findings.answers import CardLimit, EstimatedLimit, Field
from profiler.domain.trials.labels import value_text
from profiler.rendering.answers.solve import LimitLine
from profiler.rendering.estimate.table import method_text
from profiler.rendering.figures.theme import INK, LINE_COLOURS, SOFT_INK, in_theme, legend_below, new_figure, title
from profiler.rendering.sweep.words import gib_number, origin_word, setting_title, short_model

_WIDTH = 7.2
"""Least width in inches: title and legend need it."""


def heat_figure(
    section: Section, surface: Surface, limits: Sequence[CardLimit], estimated: Sequence[EstimatedLimit] = ()
) -> Figure:
    """Draw one method and model: each field has the peak in GiB, or what the trial needs; darker is more.

    A card's limit line is between fields that fit it and fields that do not. Its estimated limit, dotted, passes
    between the middles of the fields, whose values are those on the axes.
    """
    with in_theme():
        across, upwards = surface.values
        figure, axes = new_figure(max(1.05 * len(across) + 3.4, _WIDTH), 0.62 * len(upwards) + 3)
        highest = max((cell.result_bytes or 0 for cell in surface.cells.values()), default=0)
        for (one, other), cell in surface.cells.items():
            _field(axes, across.index(one), upwards.index(other), cell, highest)
        colours = {limit.gpu.name: colour for limit, colour in zip(limits, LINE_COLOURS, strict=False)}
        handles = []
        for limit in limits:
            colour = colours[limit.gpu.name]
            if _limit_line(axes, surface, limit.gpu.name, limit.fits, colour):
                side = "" if limit.is_own else ", on the safe side"
                handles.append(Line2D([], [], color=colour, linewidth=3, label=f"limit of {limit.gpu.name}{side}"))
        with_line = [each for each in estimated if each.has_line]
        for each in with_line:
            _estimated_line(axes, surface, each, colours[each.gpu.name])
        if with_line:
            points = sum(each.left_bytes.size for each in estimated)
            label = f"dotted: estimated, from {points:,} points"
            handles.append(Line2D([], [], color=SOFT_INK, linewidth=1.6, linestyle=":", label=label))
        _label_axes(axes, section, surface)
        if handles:
            legend_below(figure, handles=handles, ncols=2)
        return figure


def _field(axes: Axes, x: int, y: int, cell: Cell, highest: int) -> None:
    if cell.result_bytes is None:
        return
    share = cell.result_bytes / highest
    colour = _colour(share)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
    ink = "white" if share > 0.6 else INK
    number = axes.text(x, y, gib_number(cell.result_bytes), ha="center", va="center", size=9, color=ink, zorder=7)
    # Lines of limits pass behind the number.
    number.set_path_effects([withStroke(linewidth=4, foreground=colour)])


def _colour(share: float) -> tuple[float, ...]:
    """Return a colour from almost white to dark blue."""
    return tuple(1 - share * (1 - part) for part in (0.03, 0.29, 0.54))


def _limit_line(axes: Axes, surface: Surface, card: str, fits: Mapping[Field, bool], colour: str) -> bool:
    """Draw the card's line between fields; return False if there is none because all fields fit, or none does."""
    across, upwards = surface.values
    placed = {(across.index(one), upwards.index(other)): inside for (one, other), inside in fits.items()}
    has_line = False
    for (x, y), inside in placed.items():
        for neighbour, ends in (((x + 1, y), ((0.5, 0.5), (-0.5, 0.5))), ((x, y + 1), ((-0.5, 0.5), (0.5, 0.5)))):
            if neighbour in placed and placed[neighbour] is not inside:
                (left, right), (low, high) = ends
                axes.plot([x + left, x + right], [y + low, y + high], color=colour, linewidth=3, zorder=4, label=card)
                has_line = True
    return has_line


def _estimated_line(axes: Axes, surface: Surface, limit: EstimatedLimit, colour: str) -> None:
    across, upwards = (_places(values, ticks) for values, ticks in zip(limit.values, surface.values, strict=True))
    # A white line below keeps the dots visible on dark fields.
    axes.contour(across, upwards, limit.left_bytes.T, levels=[0], colors="white", linewidths=3.2, zorder=5)
    axes.contour(
        across, upwards, limit.left_bytes.T, levels=[0], colors=colour, linewidths=1.8, linestyles=":", zorder=6
    )


def _places(values: NDArray[Any], ticks: Sequence[Number]) -> NDArray[Any]:
    """Return where values are between the fields of `ticks`, at equal ratios where all values are above 0."""
    known = np.array(ticks, dtype=float)
    if known[0] > 0:
        values, known = np.log(values), np.log(known)
    places: NDArray[Any] = np.interp(values, known, np.arange(len(ticks)))
    return places


def _label_axes(axes: Axes, section: Section, surface: Surface) -> None:
    across, upwards = surface.values
    axes.set_xticks(range(len(across)), [value_text(value) for value in across])
    axes.set_yticks(range(len(upwards)), [value_text(value) for value in upwards])
    axes.set_xlim(-0.5, len(across) - 0.5)
    axes.set_ylim(-0.5, len(upwards) - 0.5)
    axes.set_xlabel(surface.keys[0])
    axes.set_ylabel(surface.keys[1])
    first = f"{surface.method}, {short_model(surface.model)}: peak in GiB, {origin_word(section.setting)}"
    title(axes, first, setting_title(section.setting))


_MOST_TICKS = 12


def limit_line_figure(lines: Sequence[LimitLine]) -> Figure:
    """Draw one line per card, or per value of a key that differs.

    A hollow point is the largest value that rules allow: the card has room for more. A point where nothing fits is on
    the lower edge.
    """
    with in_theme():
        figure, axes = new_figure(7.6, 4.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for line, colour in zip(lines, LINE_COLOURS * (len(lines) // len(LINE_COLOURS) + 1), strict=False):
            _draw(axes, line, colour)
        _label_axes_limit_line(axes, lines)
        legend_below(figure, ncols=2)
        return figure


def _draw(axes: Axes, line: LimitLine, colour: str) -> None:
    known = [(point.value, point.limit, point.boundary.beyond) for point in line.points if isinstance(point.value, int)]
    fitting = [(value, limit) for value, limit, _ in known if limit is not None]
    axes.plot(*_columns(fitting), color=colour, linewidth=1.8, label=f"limit of {line.name}")
    axes.fill_between(*_columns(fitting), 1, color=colour, alpha=0.08, linewidth=0)
    for value, limit, beyond in known:
        if limit is not None:
            face = "white" if beyond is None else colour
            axes.plot([value], [limit], marker="o", markersize=5, markerfacecolor=face, markeredgecolor=colour)


def _columns(points: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [value for value, _ in points], [limit for _, limit in points]


def _label_axes_limit_line(axes: Axes, lines: Sequence[LimitLine]) -> None:
    first, second = lines[0].keys
    values = {point.value for line in lines for point in line.points if isinstance(point.value, int)}
    limits = {point.limit for line in lines for point in line.points if point.limit is not None}
    for axis, ticks in ((axes.xaxis, values), (axes.yaxis, limits)):
        axis.set_major_locator(FixedLocator(_spread(ticks)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value):,}"))
    axes.set_ylim(bottom=max(1, min(limits, default=1)) / 1.3)
    axes.grid()
    axes.set_xlabel(first)
    axes.set_ylabel(second)
    axes.annotate("fits", (0.03, 0.05), xycoords="axes fraction", size=9, color=SOFT_INK)
    axes.annotate("does not fit", (0.97, 0.93), xycoords="axes fraction", ha="right", size=9, color=SOFT_INK)
    models = ", ".join(dict.fromkeys(short_model(line.spec.model) for line in lines))
    methods = "; ".join(dict.fromkeys(method_text(line.spec, varied=line.keys) for line in lines))
    title(axes, f"{models}: the largest {second} for each {first}", f"Estimated. {methods}")


def _spread(values: set[int]) -> list[int]:
    """Return values that are at least a quarter apart, the largest first kept, so that their labels do not touch."""
    kept: list[int] = []
    for value in sorted(values, reverse=True):
        if not kept or kept[-1] >= 1.25 * value:
            kept.append(value)
    step = -(-len(kept) // _MOST_TICKS) or 1
    return kept[::step]
