"""The shape of an optimizer step: memory by category from the rollout to the optimizer, one panel per method."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiler.analysis.compared.comparison import Section
from profiler.analysis.findings.shapes import Shape
from profiler.domain.memory import Category, Phase
from profiler.domain.units import as_gib
from profiler.rendering.figures.theme import CATEGORY_COLOURS, GRID_LINE, SOFT_INK, in_theme
from profiler.rendering.sweep.words import CATEGORY_TITLES, gib_number, origin_word, setting_title, short_model

_PANEL_IN = 1.75
_MOST_HORIZONTAL, _MOST_UPRIGHT = 11, 30
"""Names of phases up to which they are horizontal, and upright; of more, repeated ones are left out."""


def step_figure(section: Section, shapes: Sequence[Shape]) -> Figure:
    """Draw stacked areas, all panels on one scale. The horizontal axis counts instants; it is not time."""
    with in_theme():
        figure = Figure(figsize=(9.2, _PANEL_IN * len(shapes) + 1.5))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
        panels = figure.subplots(len(shapes), 1, sharey=True, squeeze=False)[:, 0]
        for axes, shape in zip(panels, shapes, strict=True):
            _draw(axes, shape)
        model = short_model(shapes[0].cell.model)
        figure.suptitle(
            f"The shape of an optimizer step, {model}\n{setting_title(section.setting)}; a card of unlimited memory\n"
            "Ten instants per phase of the last step. The peak of the trial, in brackets, can lie between them.",
            x=0.02, ha="left", size=10.5,
        )  # fmt: skip
        figure.supylabel(f"allocated memory, GiB ({origin_word(section.setting)})", size=9)
        figure.legend(
            handles=list(_legend(shapes)), loc="outside lower center", ncols=5, fontsize=8.5, handlelength=1.4
        )
        return figure


def _draw(axes: Axes, shape: Shape) -> None:
    places = range(len(shape.phases))
    axes.stackplot(
        places,
        [[as_gib(size) for size in sizes] for sizes in shape.sizes_bytes.values()],
        colors=[CATEGORY_COLOURS[category] for category in shape.sizes_bytes],
        labels=[category.value for category in shape.sizes_bytes],
        linewidth=0,
    )
    axes.set_xlim(0, len(shape.phases) - 1)
    axes.set_xticks([])
    axes.set_title(shape.cell.label, size=9.5)
    axes.grid(axis="y")
    _phases(axes, shape.phases)
    _peak(axes, shape)


def _phases(axes: Axes, phases: Sequence[Phase]) -> None:
    """Draw a line at the start of each phase, and its name below; upright if names would overlap."""
    segments = [(phase, len(list(members))) for phase, members in groupby(phases)]
    crowded = len(segments) > _MOST_HORIZONTAL
    start = 0
    for number, (phase, length) in enumerate(segments):
        if start:
            axes.axvline(start - 0.5, color=GRID_LINE, linewidth=0.8, zorder=3)
        if len(segments) <= _MOST_UPRIGHT or number < 2 or phase is not segments[number - 2][0]:
            axes.annotate(
                phase.value,
                (start + (length - 1) / 2, 0), xycoords=("data", "axes fraction"), xytext=(0, -4),
                textcoords="offset points", ha="center", va="top", size=7, color=SOFT_INK,
                rotation=90 if crowded else 0,
            )  # fmt: skip
        start += length


def _peak(axes: Axes, shape: Shape) -> None:
    totals = [sum(sizes) for sizes in zip(*shape.sizes_bytes.values(), strict=True)]
    highest = max(range(len(totals)), key=lambda place: totals[place])
    on_the_left = highest > len(totals) / 2
    axes.plot([highest], [as_gib(totals[highest])], marker="v", markersize=5, color="black", zorder=4, label="peak")
    peak = shape.cell.result_bytes
    shown, known = gib_number(totals[highest]), gib_number(peak) if peak is not None else ""
    axes.annotate(
        f"{shown} ({known})" if known not in ("", shown) else shown,
        (highest, as_gib(totals[highest])), xytext=(-7 if on_the_left else 7, 2), textcoords="offset points",
        ha="right" if on_the_left else "left", va="bottom", size=8.5,
    )  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, as_gib(totals[highest]) * 1.2))


def _legend(shapes: Sequence[Shape]) -> Iterable[Patch]:
    present = [category for category in Category if any(category in shape.sizes_bytes for shape in shapes)]
    return (Patch(color=CATEGORY_COLOURS[category], label=CATEGORY_TITLES[category]) for category in present)
