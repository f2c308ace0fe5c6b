"""What peaks are made of: categories of each trial, of each instant, and of an optimizer step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiler.analysis.compared.comparison import Section
from profiler.analysis.findings.peaks import Shape, Stack
from profiler.analytical.explanation.explained import ExplainedEstimate
from profiler.domain.memory import Category, Phase, as_gib, gib_text
from profiler.domain.runs.outcome import Status
from profiler.rendering.figures.theme import (
    CATEGORY_COLOURS,
    GRID_LINE,
    INK,
    NOT_FITTING,
    SOFT_INK,
    in_theme,
    legend_below,
    new_figure,
    title,
)
from profiler.rendering.sweep.words import (
    CATEGORY_TITLES,
    gib_number,
    origin_word,
    setting_title,
    short_model,
    short_models,
)

BARS_PER_FIGURE = 60
"""More bars are split into several figures, by model."""
_BAR, _GROUP_GAP = 0.78, 1.1
_RAN_OUT = "out of memory: what it needs"
_UNKNOWN = "needed, category unknown"
_AXES_IN = 7.2
_CHARACTER_IN = 0.085
"""About the width of the axes, and of a character of a number."""
_FAR_RATIO = 6
"""The line of a card this many times larger than the longest bar would leave no width for the bars."""
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Hides the lines behind a text."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    stack: Stack
    y: float


def pages(stacks: Sequence[Stack]) -> tuple[tuple[Stack, ...], ...]:
    """Return the stacks of each figure; a model is split only if it has too many trials for one figure."""
    portions: list[list[Stack]] = []
    for model in dict.fromkeys(stack.cell.model for stack in stacks):
        group = [stack for stack in stacks if stack.cell.model == model]
        while len(group) > BARS_PER_FIGURE:
            portions.append(group[:BARS_PER_FIGURE])
            group = group[BARS_PER_FIGURE:]
        if portions and len(portions[-1]) + len(group) <= BARS_PER_FIGURE:
            portions[-1] += group
        else:
            portions.append(group)
    return tuple(tuple(portion) for portion in portions)


def categories_figure(section: Section, stacks: Sequence[Stack]) -> Figure:
    """Draw horizontal stacked bars of `stacks`, which belong to `section`.

    The outlined bar of a trial that ran out of memory is what it needs with unlimited memory.
    """
    with in_theme():
        models = list(dict.fromkeys(stack.cell.model for stack in stacks))
        height = 0.27 * len(stacks) + 0.33 * len(models) + 1.9
        label_in = 0.07 * max(len(stack.cell.label) for stack in stacks)
        figure, axes = new_figure(label_in + _AXES_IN, height)
        places = list(_places(stacks))
        for place in places:
            _draw(axes, place)
        _label_axes(axes, section, places)
        for place in places:
            _number(axes, section, place)
        _legend(figure, stacks)
        return figure


def _places(stacks: Sequence[Stack]) -> Iterable[_Place]:
    y, model = -_GROUP_GAP, None
    for stack in stacks:
        if stack.cell.model != model:
            y, model = y + _GROUP_GAP, stack.cell.model
        yield _Place(stack=stack, y=y)
        y += 1


def _draw(axes: Axes, place: _Place) -> None:
    stack, left = place.stack, 0.0
    ran_out = stack.cell.status is Status.OOM
    for category, size in (stack.needed if ran_out and stack.needed else stack.shares).items():
        axes.barh(
            place.y,
            as_gib(size),
            left=left,
            height=_BAR,
            color=CATEGORY_COLOURS[category],
            edgecolor="white",
            linewidth=0.4,
            label=category.value,
        )
        left += as_gib(size)
    needed = stack.cell.result_bytes
    if ran_out and needed is not None:
        _outline(axes, place, left, as_gib(needed))


def _outline(axes: Axes, place: _Place, known: float, needed: float) -> None:
    """Outline what a trial that ran out of memory needs, and hatch what no category is known of."""
    red: dict[str, Any] = {"facecolor": "none", "edgecolor": NOT_FITTING}
    if needed > known:
        axes.barh(place.y, needed - known, left=known, height=_BAR, hatch="////", linewidth=0, alpha=0.75, **red)
    axes.barh(place.y, needed, height=_BAR, linestyle="--", linewidth=1.2, label=_RAN_OUT, zorder=3, **red)


def _number(axes: Axes, section: Section, place: _Place) -> None:
    """Write the number at the end of a bar; right of the line of the card, if it would cover the line."""
    cell = place.stack.cell
    end, text, ink = as_gib(sum(place.stack.shares.values())), gib_text(cell.peak_allocated_bytes or 0), INK
    if cell.status is Status.OOM:
        end, text, ink = as_gib(cell.result_bytes or sum(place.stack.shares.values())), "OOM", NOT_FITTING
        if cell.result_bytes is not None:
            text = f"OOM, needs {gib_number(cell.result_bytes)}"
    capacity = as_gib(section.setting.memory_bytes or 0)
    width = _CHARACTER_IN * len(text) / _AXES_IN * axes.get_xlim()[1]
    axes.annotate(
        text,
        (capacity if end <= capacity < end + width else end, place.y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=ink,
        size=8.5,
        zorder=5,
        bbox=_CLEAR,
    )


def _label_axes(axes: Axes, section: Section, places: Sequence[_Place]) -> None:
    names = short_models(section.models)
    axes.set_yticks([place.y for place in places], [place.stack.cell.label for place in places])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(places[-1].y + 0.7, places[0].y - 1.0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(f"allocated memory at the peak, GiB ({origin_word(section.setting)})")
    with_name = set()
    for place in places:
        model = place.stack.cell.model
        if model not in with_name:
            with_name.add(model)
            _model_name(axes, place.y, names[model])
    # Space for the text at the end of the longest bar.
    axes.set_xlim(0, axes.dataLim.x1 * 1.16)
    if section.setting.memory_bytes is not None:
        _capacity(axes, section.setting.memory_bytes)
    title(axes, "What the peak is made of", setting_title(section.setting))


def _model_name(axes: Axes, y: float, name: str) -> None:
    axes.annotate(
        name,
        (0, y - _BAR / 2),
        xytext=(2, 2),
        textcoords="offset points",
        va="bottom",
        weight="bold",
        size=9.5,
        zorder=5,
    )


def _capacity(axes: Axes, memory_bytes: int) -> None:
    capacity = as_gib(memory_bytes)
    low, high = axes.get_xlim()
    near = capacity < _FAR_RATIO * high
    if near:
        axes.set_xlim(low, max(high, capacity * 1.16))
        axes.axvline(capacity, color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2, label="capacity")
    axes.annotate(
        f"the card: {gib_text(memory_bytes)}" + ("" if near else " →"),
        (capacity, 1) if near else (1, 1),
        xycoords=("data" if near else "axes fraction", "axes fraction"),
        xytext=(4 if near else -4, -3),
        textcoords="offset points",
        ha="left" if near else "right",
        va="top",
        size=8.5,
        color=SOFT_INK,
        bbox=_CLEAR,
    )


def _legend(figure: Figure, stacks: Sequence[Stack]) -> None:
    present = [
        category
        for category in Category
        if any(category in stack.shares or category in stack.needed for stack in stacks)
    ]
    handles = [Patch(color=CATEGORY_COLOURS[category], label=CATEGORY_TITLES[category]) for category in present]
    ran_out = [stack for stack in stacks if stack.cell.status is Status.OOM and stack.cell.result_bytes is not None]
    if ran_out:
        handles.append(Patch(facecolor="none", edgecolor=NOT_FITTING, linestyle="--", label=_RAN_OUT))
        handles.append(Patch(facecolor="none", edgecolor=NOT_FITTING, linewidth=0, hatch="////", label=_UNKNOWN))
    legend_below(figure, handles=handles, ncols=5, handlelength=1.4)


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
            _draw_shape(axes, shape)
        model = short_model(shapes[0].cell.model)
        figure.suptitle(
            f"The shape of an optimizer step, {model}\n{setting_title(section.setting)}; a card of unlimited memory\n"
            "Ten instants per phase of the last step. The peak of the trial, in brackets, can lie between them.",
            x=0.02, ha="left", size=10.5,
        )  # fmt: skip
        figure.supylabel(f"allocated memory, GiB ({origin_word(section.setting)})", size=9)
        legend_below(figure, handles=list(_shape_legend(shapes)), ncols=5, handlelength=1.4)
        return figure


def _draw_shape(axes: Axes, shape: Shape) -> None:
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


def _shape_legend(shapes: Sequence[Shape]) -> Iterable[Patch]:
    present = [category for category in Category if any(category in shape.sizes_bytes for shape in shapes)]
    return (Patch(color=CATEGORY_COLOURS[category], label=CATEGORY_TITLES[category]) for category in present)


_INSTANT_BAR = 0.72


def instants_figure(explained: ExplainedEstimate) -> Figure:
    """Return a figure of horizontal bars in GiB, load on top; the longest bar is the peak."""
    with in_theme():
        figure, axes = new_figure(7.4, 3.6)
        names = [phase.phase.value for phase in explained.phases]
        for row, phase in enumerate(explained.phases):
            left = 0.0
            for share in phase.shares:
                width = as_gib(share.size_bytes)
                axes.barh(
                    row, width, left=left, height=_INSTANT_BAR, color=CATEGORY_COLOURS[share.category], linewidth=0
                )
                left += width
            axes.annotate(
                f" {gib_number(phase.peak_allocated_bytes)}  {phase.instant.value}", (left, row), va="center", size=8
            )
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.55 * as_gib(explained.estimate.peak_allocated_bytes))
        axes.set_xlabel("GiB of allocated memory")
        shown = [category for category in Category if _occurs(explained, category)]
        handles = [Patch(color=CATEGORY_COLOURS[category], label=CATEGORY_TITLES[category]) for category in shown]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        title(axes, f"{explained.spec.model}, {explained.spec.tuning.value}", "estimated; each phase at its highest")
    return figure


def _occurs(explained: ExplainedEstimate, category: Category) -> bool:
    return any(share.category is category for phase in explained.phases for share in phase.shares)
