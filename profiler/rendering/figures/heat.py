"""The peak over two keys at once, with the frontier of each card: on its lower side a trial fits."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from profiler.analysis.axes import Surface
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.domain.gpu import KNOWN_GPUS
from profiler.rendering.figures.theme import INK, LINE_COLOURS, in_theme, new_figure, title
from profiler.rendering.wording import gib_number, origin_word, setting_title, short_model

_CARDS = ("t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")
"""One of each size."""


def heat_figure(section: Section, surface: Surface) -> Figure:
    """One method and model; in each field the peak in GiB, or what it needs. Darker is more.

    A card's frontier runs between fields that need no more than it has, cache and context included, and the others. Of
    cards other than the section's own only the memory counts: they may run other kernels.
    """
    with in_theme():
        across, upwards = surface.values
        figure, axes = new_figure(1.05 * len(across) + 3.4, 0.62 * len(upwards) + 2.4)
        highest = max((cell.result_bytes or 0 for cell in surface.cells.values()), default=0)
        for (one, other), cell in surface.cells.items():
            _field(axes, across.index(one), upwards.index(other), cell, highest)
        handles = [handle for number, card in enumerate(_CARDS) if (handle := _frontier(axes, surface, card, number))]
        _dress(axes, section, surface)
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
        return figure


def _field(axes: Axes, x: int, y: int, cell: Cell, highest: int) -> None:
    if cell.result_bytes is None:
        return
    share = cell.result_bytes / highest
    axes.add_patch(_square(x, y, share))
    ink = "white" if share > 0.6 else INK
    axes.text(x, y, gib_number(cell.result_bytes), ha="center", va="center", size=9, color=ink)


def _square(x: int, y: int, share: float) -> Rectangle:
    # From nearly white to a deep blue.
    colour = tuple(1 - share * (1 - part) for part in (0.03, 0.29, 0.54))
    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8)


def _frontier(axes: Axes, surface: Surface, card: str, number: int) -> Line2D | None:
    """The card's line between fields; None where all fields or none fit."""
    memory, colour = KNOWN_GPUS[card].memory_bytes, LINE_COLOURS[number % len(LINE_COLOURS)]
    across, upwards = surface.values
    fits = {
        (across.index(one), upwards.index(other)): needed <= memory
        for (one, other), cell in surface.cells.items()
        if (needed := needed_bytes(cell)) is not None
    }
    drawn = False
    for (x, y), inside in fits.items():
        for neighbour, ends in (((x + 1, y), ((0.5, 0.5), (-0.5, 0.5))), ((x, y + 1), ((-0.5, 0.5), (0.5, 0.5)))):
            if neighbour in fits and fits[neighbour] is not inside:
                (left, right), (low, high) = ends
                axes.plot([x + left, x + right], [y + low, y + high], color=colour, linewidth=3, zorder=4, label=card)
                drawn = True
    return Line2D([], [], color=colour, linewidth=3, label=f"frontier of {card}") if drawn else None


def needed_bytes(cell: Cell) -> int | None:
    """What a card needs for the trial: cache and context included where they are known."""
    return cell.required_device_bytes or cell.peak_device_bytes or cell.result_bytes


def _dress(axes: Axes, section: Section, surface: Surface) -> None:
    across, upwards = surface.values
    axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    axes.set_yticks(range(len(upwards)), [f"{value:g}" for value in upwards])
    axes.set_xlim(-0.5, len(across) - 0.5)
    axes.set_ylim(-0.5, len(upwards) - 0.5)
    axes.set_xlabel(surface.keys[0])
    axes.set_ylabel(surface.keys[1])
    first = f"{surface.method}, {short_model(surface.model)}: peak in GiB, {origin_word(section.setting)}"
    title(axes, first, setting_title(section.setting))
