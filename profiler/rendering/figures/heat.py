"""The peak over two keys, with the limit line of each card: trials on its lower side fit."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from profiler.analysis.axes import Surface
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.limits import CardLimit, Field
from profiler.domain.labels import value_text
from profiler.rendering.figures.theme import INK, LINE_COLOURS, in_theme, new_figure, title
from profiler.rendering.wording import gib_number, origin_word, setting_title, short_model


def heat_figure(section: Section, surface: Surface, limits: Sequence[CardLimit]) -> Figure:
    """Draw one method and model: each field has the peak in GiB, or what the trial needs; darker is more.

    A card's limit line is between fields that fit it and fields that do not.
    """
    with in_theme():
        across, upwards = surface.values
        figure, axes = new_figure(1.05 * len(across) + 3.4, 0.62 * len(upwards) + 2.4)
        highest = max((cell.result_bytes or 0 for cell in surface.cells.values()), default=0)
        for (one, other), cell in surface.cells.items():
            _field(axes, across.index(one), upwards.index(other), cell, highest)
        handles = []
        for limit, colour in zip(limits, LINE_COLOURS, strict=False):
            if _limit_line(axes, surface, limit.gpu.name, limit.fits, colour):
                side = "" if limit.is_own else ", on the safe side"
                handles.append(Line2D([], [], color=colour, linewidth=3, label=f"limit of {limit.gpu.name}{side}"))
        _label_axes(axes, section, surface)
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8.5)
        return figure


def _field(axes: Axes, x: int, y: int, cell: Cell, highest: int) -> None:
    if cell.result_bytes is None:
        return
    share = cell.result_bytes / highest
    axes.add_patch(_square(x, y, share))
    ink = "white" if share > 0.6 else INK
    axes.text(x, y, gib_number(cell.result_bytes), ha="center", va="center", size=9, color=ink)


def _square(x: int, y: int, share: float) -> Rectangle:
    # From almost white to dark blue.
    colour = tuple(1 - share * (1 - part) for part in (0.03, 0.29, 0.54))
    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8)


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
