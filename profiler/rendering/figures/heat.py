"""The peak over two keys at once, with the frontier of each card: on its lower side a trial fits."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from profiler.analysis.axes import Surface
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.outcome import Status
from profiler.rendering.figures.theme import INK, LINE_COLOURS, in_theme, new_figure, title
from profiler.rendering.wording import gib_number, origin_word, setting_title, short_model

_CARDS = ("t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")
"""One of each size."""

Field = tuple[float, float]
"""A value of each key."""


def heat_figure(section: Section, surface: Surface) -> Figure:
    """One method and model; in each field the peak in GiB, or what it needs. Darker is more.

    A card's frontier runs between fields that fit and the others. Of the section's own card it is known which do. Of
    the others the context counts and what an unlimited card's allocator cannot give back: a little more than a full
    card would keep, so its own simulation may let a field beyond the line fit. They may run other kernels, too.
    """
    with in_theme():
        across, upwards = surface.values
        figure, axes = new_figure(1.05 * len(across) + 3.4, 0.62 * len(upwards) + 2.4)
        highest = max((cell.result_bytes or 0 for cell in surface.cells.values()), default=0)
        for (one, other), cell in surface.cells.items():
            _field(axes, across.index(one), upwards.index(other), cell, highest)
        handles = []
        for card, colour in zip(_CARDS, LINE_COLOURS, strict=False):
            if _frontier(axes, surface, card, fitting(section, surface, KNOWN_GPUS[card]), colour):
                side = "" if _is_own(section, KNOWN_GPUS[card]) else ", on the safe side"
                handles.append(Line2D([], [], color=colour, linewidth=3, label=f"frontier of {card}{side}"))
        _dress(axes, section, surface)
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
    # From nearly white to a deep blue.
    colour = tuple(1 - share * (1 - part) for part in (0.03, 0.29, 0.54))
    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8)


def fitting(section: Section, surface: Surface, card: Gpu) -> Mapping[Field, bool]:
    """Which fields fit the card; those of which it is not known are left out."""
    own = _is_own(section, card)
    found: dict[Field, bool] = {}
    for field, cell in surface.cells.items():
        needed = cell.required_device_bytes or cell.peak_device_bytes or cell.result_bytes
        if own and cell.status in (Status.OK, Status.OOM):
            found[field] = cell.status is Status.OK
        elif needed is not None:
            found[field] = needed <= card.memory_bytes
    return found


def _is_own(section: Section, card: Gpu) -> bool:
    return section.setting.card == card.title and section.setting.memory_bytes == card.memory_bytes


def _frontier(axes: Axes, surface: Surface, card: str, fits: Mapping[Field, bool], colour: str) -> bool:
    """Draw the card's line between fields; False where there is none because all fields or none fit."""
    across, upwards = surface.values
    placed = {(across.index(one), upwards.index(other)): inside for (one, other), inside in fits.items()}
    sampled = False
    for (x, y), inside in placed.items():
        for neighbour, ends in (((x + 1, y), ((0.5, 0.5), (-0.5, 0.5))), ((x, y + 1), ((-0.5, 0.5), (0.5, 0.5)))):
            if neighbour in placed and placed[neighbour] is not inside:
                (left, right), (low, high) = ends
                axes.plot([x + left, x + right], [y + low, y + high], color=colour, linewidth=3, zorder=4, label=card)
                sampled = True
    return sampled


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
