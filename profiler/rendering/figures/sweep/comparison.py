"""The comparison as a figure: a table of coloured cells, or a bar per trial of one model."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from profiler.analysis.compared.axes import Matrix
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import Origin, as_gib, gib_text
from profiler.domain.runs.outcome import Status
from profiler.rendering.figures.theme import (
    INK,
    NO_ANSWER,
    NOT_FITTING,
    ORIGIN_COLOURS,
    SOFT_INK,
    in_theme,
    legend_below,
    new_figure,
    title,
)
from profiler.rendering.sweep.words import (
    column_names,
    estimate_text,
    gib_number,
    origin_word,
    published_text,
    result_text,
    setting_title,
)

_FULLNESS = LinearSegmentedColormap.from_list("fullness", ["#f2f7fb", "#0b5a92"])
_DARK_FROM = 0.55
"""Share of the card from which letters are white."""


def comparison_figure(section: Section, table: Matrix) -> Figure:
    """Draw the result and the estimate of each cell of a section's table; out of memory is hatched."""
    with in_theme():
        rows = len(table.rows)
        label_in = 0.075 * max(len(row) for row in table.rows)
        row_in = 0.82 if section.published else 0.66
        figure, axes = new_figure(label_in + 1.3 * max(len(table.columns), 2) + 1.1, row_in * rows + 1.5)
        for (row, column), cell in table.cells.items():
            _draw_cell(axes, table.columns.index(column), table.rows.index(row), cell)
        _label_axes(axes, section, table)
        if any(cell.share_of_card_ratio is not None for cell in section.cells.values()):
            _colour_bar(figure, axes, rows)
        return figure


def _draw_cell(axes: Axes, x: int, y: int, cell: Cell) -> None:
    fullness = cell.share_of_card_ratio
    fits = cell.status is Status.OK
    if fits and fullness is not None:
        face, ink = to_hex(_FULLNESS(min(fullness, 1.0))), "white" if fullness > _DARK_FROM else INK
    else:
        face, ink = ("#fbe9e4" if cell.status is Status.OOM else NO_ANSWER), INK
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=2))
    if cell.status is Status.OOM:
        # Not by colour alone.
        axes.add_patch(
            Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, hatch="///", edgecolor="#f0c4b8", linewidth=0)
        )
        ink = "#8c2d19"
    published = published_text(cell)
    details = [_needs(cell), estimate_text(cell, "est "), f"pub {published}" if published else ""]
    _write(axes, x, y, ink, ["OOM" if cell.status is Status.OOM else result_text(cell), *filter(None, details)])


def _write(axes: Axes, x: int, y: int, ink: str, lines: list[str]) -> None:
    first, *details = lines
    step = 0.23 if len(details) < 3 else 0.2
    top = y - step * len(details) / 2
    axes.text(x, top, first, ha="center", va="center", color=ink, weight="bold", size=11 if not details else 10.5)
    for number, line in enumerate(details, start=1):
        axes.text(x, top + step * number + 0.02, line, ha="center", va="center", color=ink, size=8)


def _needs(cell: Cell) -> str:
    return f"needs {gib_number(cell.result_bytes)}" if cell.status is Status.OOM and cell.result_bytes else ""


def _label_axes(axes: Axes, section: Section, table: Matrix) -> None:
    names = column_names(table)
    axes.set_xlim(-0.5, len(table.columns) - 0.5)
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(table.columns)), [names[column] for column in table.columns])
    axes.set_yticks(range(len(table.rows)), table.rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    marks = f"Across: {table.key}. " if table.key else ""
    marks += f"GiB, {origin_word(section.setting)}" if section.setting.origin else "GPU memory is unknown there"
    if section.has_estimates and section.setting.origin is not None:
        marks += "; est: estimated in closed form, and its error"
    if section.published:
        marks += "; pub: published, as printed"
    axes.set_xlabel(marks, color=SOFT_INK, size=8.5, loc="left", labelpad=8)
    title(axes, "Peak allocated GPU memory", setting_title(section.setting))


def _colour_bar(figure: Figure, axes: Axes, rows: int) -> None:
    # At most as long as six rows.
    shrink = min(0.9, 6 / rows)
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 100), _FULLNESS), ax=axes, shrink=shrink, pad=0.02, aspect=24, anchor=(0, 1)
    )
    bar.set_label("share of the card's memory, %", size=8.5)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)


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
        _label_bars(axes, section, table, column_names(table)[column])
        if axes.get_legend_handles_labels()[0]:
            legend_below(figure)
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


def _label_bars(axes: Axes, section: Section, table: Matrix, column: str) -> None:
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
