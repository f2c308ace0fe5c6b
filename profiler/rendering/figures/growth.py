"""How the peak grows along one key, and what each method saves: lines over trials."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from profiler.analysis.compared.axes import Curve
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import as_gib, gib_text
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.labels import value_text
from profiler.rendering.figures.theme import LINE_COLOURS, SOFT_INK, in_theme, legend_below, new_figure, title
from profiler.rendering.sweep.words import (
    gib_number,
    origin_word,
    setting_title,
    short_model,
    short_models,
    signed_percent,
)

_FAR_RATIO = 3
"""The line of a card this many times larger than the highest point would leave no height for the curves."""


_SHORT = 45
"""Most characters of a name of which two are next to each other."""


def growth_figure(section: Section, curves: Sequence[Curve]) -> Figure:
    """Draw the curves, which share one key. Estimates are dotted.

    A hollow point is what a trial that ran out of memory needs.
    """
    with in_theme():
        figure, axes = new_figure(8.2, 4.6)
        for curve, colour in zip(curves, _colours(len(curves)), strict=True):
            _draw(axes, curve, colour)
        _label_axes(axes, section, curves)
        longest = max(len(text) for text in axes.get_legend_handles_labels()[1])
        legend_below(figure, ncols=2 if longest <= _SHORT else 1)
        return figure


def _colours(count: int) -> list[str]:
    return [LINE_COLOURS[number % len(LINE_COLOURS)] for number in range(count)]


def _draw(axes: Axes, curve: Curve, colour: str) -> None:
    values = [value for value, _ in curve.known]
    results = [as_gib(cell.result_bytes or 0) for _, cell in curve.known]
    axes.plot(values, results, color=colour, linewidth=1.8, label=f"{curve.method}, {short_model(curve.model)}")
    for (value, cell), result in zip(curve.known, results, strict=True):
        face = "white" if cell.status is Status.OOM else colour
        axes.plot([value], [result], marker="o", markersize=6, markerfacecolor=face, markeredgecolor=colour)
    estimates = [(value, cell.estimated_bytes) for value, cell in curve.known if cell.estimated_bytes is not None]
    if estimates:
        axes.plot(
            [value for value, _ in estimates],
            [as_gib(size) for _, size in estimates],
            color=colour,
            linewidth=1.2,
            linestyle=":",
        )
    axes.annotate(
        f"{results[-1]:.1f}",
        (values[-1], results[-1]),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        size=8.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )


def _label_axes(axes: Axes, section: Section, curves: Sequence[Curve]) -> None:
    values = sorted({value for curve in curves for value, _ in curve.known})
    if values[0] > 0:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.grid(axis="y")
    axes.set_xlabel(curves[0].key)
    axes.set_ylabel(f"peak allocated memory, GiB\n({origin_word(section.setting)}; dotted: estimated)")
    highest = float(axes.dataLim.y1)
    axes.set_ylim(0, highest * 1.12)
    if section.setting.memory_bytes is not None:
        _capacity(axes, section.setting.memory_bytes, highest)
    title(axes, f"How the peak grows with {curves[0].key}", setting_title(section.setting))


def _tick(value: float) -> str:
    return value_text(int(value) if float(value).is_integer() else float(value))


def _capacity(axes: Axes, memory_bytes: int, highest: float) -> None:
    capacity = as_gib(memory_bytes)
    if capacity > _FAR_RATIO * highest:
        axes.annotate(
            f"the card: {gib_text(memory_bytes)} ↑", (0.01, 0.98), xycoords="axes fraction", va="top", size=8.5,
            color=SOFT_INK,
        )  # fmt: skip
        return
    axes.set_ylim(0, max(highest, capacity) * 1.12)
    axes.axhline(capacity, color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.annotate(
        f"the card: {gib_text(memory_bytes)}",
        (0.01, capacity),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        size=8.5,
        color=SOFT_INK,
    )


_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Hides the grid behind names."""
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def slope_figure(section: Section) -> Figure:
    """Draw GiB over methods, on a logarithmic axis, so that equal savings have equal slopes.

    A hollow point is what a trial that ran out of memory needs. The last point of a line has its memory and its change
    from the first.
    """
    with in_theme():
        figure, axes = new_figure(max(6.0, 1.7 * len(section.rows) + 1.6), 5.2)
        names = short_models(section.models)
        for number, model in enumerate(section.models):
            _draw_slopes(axes, section, model, names[model], LINE_COLOURS[number % len(LINE_COLOURS)])
        _label_axes_slopes(axes, section)
        return figure


def _draw_slopes(axes: Axes, section: Section, model: str, name: str, colour: str) -> None:
    points = [
        (place, cell)
        for place, row in enumerate(section.rows)
        if (cell := section.cells.get((row, model))) is not None and cell.result_bytes
    ]
    if not points:
        return
    axes.plot([place for place, _ in points], [_gib(cell) for _, cell in points], color=colour, linewidth=1.6, zorder=2)
    for place, cell in points:
        face = "white" if cell.status is Status.OOM else colour
        axes.plot(
            [place], [_gib(cell)], marker="o", markersize=6, markerfacecolor=face, markeredgecolor=colour, zorder=3
        )
    axes.annotate(
        f"{name} {gib_number(points[0][1].result_bytes or 0)}",
        (points[0][0], _gib(points[0][1])),
        xytext=(-9, 0), textcoords="offset points", ha="right", va="center", size=8.5, color=colour,
        bbox=_CLEAR,
    )  # fmt: skip
    axes.annotate(
        _end(points),
        (points[-1][0], _gib(points[-1][1])),
        xytext=(9, 0), textcoords="offset points", ha="left", va="center", size=8.5, color=colour,
        bbox=_CLEAR,
    )  # fmt: skip


def _gib(cell: Cell) -> float:
    return as_gib(cell.result_bytes or 0)


def _end(points: Sequence[tuple[int, Cell]]) -> str:
    first, last = points[0][1].result_bytes or 0, points[-1][1].result_bytes or 0
    change = f" ({signed_percent(last / first - 1)})" if points[0][0] == 0 and len(points) > 1 else ""
    return f"{gib_number(last)}{change}"


def _label_axes_slopes(axes: Axes, section: Section) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(section.rows)), [row.replace(" + ", "\n+ ") for row in section.rows])
    # Space for names on the left and for changes on the right.
    axes.set_xlim(-0.85, len(section.rows) - 1 + 0.75)
    axes.grid(axis="y")
    axes.set_ylabel(f"peak allocated memory, GiB ({origin_word(section.setting)}; hollow: out of memory)")
    if section.setting.memory_bytes is not None:
        axes.axhline(as_gib(section.setting.memory_bytes), color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2)
        axes.annotate(
            f"the card: {gib_text(section.setting.memory_bytes)}",
            (0.995, as_gib(section.setting.memory_bytes)), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", size=8.5, color=SOFT_INK,
        )  # fmt: skip
    title(axes, "What each method saves", setting_title(section.setting))
