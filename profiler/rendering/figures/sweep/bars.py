"""A comparison of one model, or of one value across: a bar per trial, with its estimate."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.compared.matrix import Matrix
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.units import as_gib, gib_text
from profiler.rendering.figures.theme import (
    INK,
    NOT_FITTING,
    ORIGIN_COLOURS,
    SOFT_INK,
    in_theme,
    new_figure,
    title,
)
from profiler.rendering.sweep.words import column_names, origin_word, published_text, result_text, setting_title

_BAR = 0.66
_FAR_RATIO = 6
"""The line of a card this many times larger than the longest bar would leave no width for the bars."""
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def bars_figure(section: Section, table: Matrix) -> Figure:
    """Draw the only column of a section's table as horizontal bars; estimates are marks."""
    (column,) = table.columns
    with in_theme():
        label_in = 0.075 * max(len(row) for row in table.rows)
        figure, axes = new_figure(label_in + 6.2, 0.34 * len(table.rows) + 2.2)
        for place, row in enumerate(table.rows):
            cell = table.cells.get((row, column))
            if cell is not None:
                _draw(axes, place, cell)
        _label_axes(axes, section, table, column_names(table)[column])
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", fontsize=8.5)
        return figure


def _draw(axes: Axes, place: int, cell: Cell) -> None:
    ran_out, size = cell.status is Status.OOM, as_gib(cell.result_bytes or 0)
    colour = ORIGIN_COLOURS[cell.setting.origin] if cell.setting.origin else SOFT_INK
    look: dict[str, Any] = (
        {"facecolor": "none", "edgecolor": NOT_FITTING, "hatch": "///"} if ran_out else {"color": colour}
    )
    axes.barh(place, size, height=_BAR, linewidth=1, **look)
    estimate = as_gib(cell.estimated_bytes) if cell.estimated_bytes is not None and cell.setting.origin else None
    if estimate is not None:
        known = axes.get_legend_handles_labels()[1]
        name = "estimated in closed form"
        axes.plot(
            [estimate, estimate], [place - 0.42, place + 0.42],
            color=ORIGIN_COLOURS[Origin.ESTIMATED], linewidth=2.5, label="" if name in known else name,
        )  # fmt: skip
    published = published_text(cell)
    text = result_text(cell) + (f"; published {published}" if published else "")
    axes.annotate(
        text, (max(size, estimate or 0), place), xytext=(5, 0), textcoords="offset points", va="center",
        color=NOT_FITTING if ran_out else INK, size=8.5, bbox=_CLEAR, zorder=5,
    )  # fmt: skip


def _label_axes(axes: Axes, section: Section, table: Matrix, column: str) -> None:
    axes.set_yticks(range(len(table.rows)), table.rows)
    axes.set_ylim(len(table.rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(f"peak allocated memory, GiB ({origin_word(section.setting)})")
    high = max(float(axes.dataLim.x1), 0.01) * 1.25
    memory = section.setting.memory_bytes
    capacity = as_gib(memory) if memory is not None else None
    if memory is not None and capacity is not None and capacity < _FAR_RATIO * high:
        high = max(high, capacity * 1.16)
        axes.axvline(capacity, color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2, label=f"card: {gib_text(memory)}")
    axes.set_xlim(0, high)
    across = f"{table.key}={column}" if table.key else column
    title(axes, f"Peak allocated GPU memory, {across}", setting_title(section.setting))
