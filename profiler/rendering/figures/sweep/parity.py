"""Estimate against result: on the diagonal they are equal."""

from collections.abc import Iterable, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.errors.accuracy import Accuracy, Compared
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.units import as_gib
from profiler.rendering.figures.theme import INK, ORIGIN_COLOURS, SOFT_INK, in_theme, new_figure, title
from profiler.rendering.sweep.words import cell_name, origin_word, percent, setting_title, signed_percent

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
