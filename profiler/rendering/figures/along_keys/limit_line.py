"""Limit lines of two keys: what is below a line fits its card."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from profiler.rendering.answers.limit_line import LimitLine
from profiler.rendering.estimate.table import method_text
from profiler.rendering.figures.theme import LINE_COLOURS, SOFT_INK, in_theme, new_figure, title
from profiler.rendering.sweep.words import short_model

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
        _label_axes(axes, lines)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
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


def _label_axes(axes: Axes, lines: Sequence[LimitLine]) -> None:
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
