"""The figure of `maintenance.sharding_page`: what each GPU holds at its peak, one panel per model."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Category
from profiler.domain.units import GIB
from profiler.rendering.figures.theme import CATEGORY_COLOURS, INK, SOFT_INK, in_theme

_CARD = KNOWN_GPUS["h100-80gb"]
_PANELS_IN_A_ROW = 2
_PANEL_IN = (5.2, 3.1)

_PARTS = (
    ("weights, gradients, states", "kept_bytes", CATEGORY_COLOURS[Category.OPTIMIZER_STATE]),
    ("gathered and communicated", "moved_bytes", CATEGORY_COLOURS[Category.COMMUNICATION]),
    ("the rest", "rest_bytes", CATEGORY_COLOURS[Category.ACTIVATIONS]),
)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one GPU of a trial holds at its peak: emulated as a whole, estimated in parts."""

    model: str
    gpus: int
    way: str
    """How the GPUs train together: ``"ZeRO-3"``."""
    status: str
    emulated_bytes: int | None
    """On a card without limit if it ran out of memory; None if the trial has no peak."""
    kept_bytes: int
    moved_bytes: int
    """Gathered and communicated."""
    moved: str
    """What that is, in words."""
    rest_bytes: int

    @property
    def estimated_bytes(self) -> int:
        """The sum of the parts."""
        return self.kept_bytes + self.moved_bytes + self.rest_bytes


def sharding_figure(found: Sequence[Held]) -> Figure:
    """Draw stacked bars of the parts, with a point for the emulated peak."""
    models = list(dict.fromkeys(each.model for each in found))
    rows = -(-len(models) // _PANELS_IN_A_ROW)
    with in_theme():
        figure = Figure(figsize=(_PANEL_IN[0] * _PANELS_IN_A_ROW, _PANEL_IN[1] * rows + 0.8))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        panels = figure.subplots(rows, _PANELS_IN_A_ROW, squeeze=False).flat
        for axes, model in zip(panels, models, strict=False):
            _draw(axes, [each for each in found if each.model == model])
            axes.set_title(model)
        for axes in list(panels)[len(models) :]:
            axes.set_axis_off()
        handles, labels = next(iter(figure.axes)).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.suptitle(
            "What one GPU holds at its peak, GiB. Bars are estimated, points are emulated.", x=0.01, ha="left"
        )
        return figure


def _draw(axes: Axes, trials: Sequence[Held]) -> None:
    places = list(range(len(trials)))
    below = [0.0] * len(trials)
    for name, field, colour in _PARTS:
        sizes = [getattr(each, field) / GIB for each in trials]
        axes.bar(places, sizes, bottom=below, color=colour, width=0.75, label=name)
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    emulated = [float("nan") if each.emulated_bytes is None else each.emulated_bytes / GIB for each in trials]
    axes.plot(places, emulated, "o", color=INK, markersize=4, label="emulated")
    capacity = _CARD.memory_bytes / GIB
    highest = max([*below, *(size for size in emulated if not isnan(size))])
    if capacity < 2 * highest:
        axes.axhline(capacity, color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2)
        axes.annotate(
            f"the card: {capacity:.1f}",
            (len(trials) - 0.5, capacity),
            ha="right",
            va="bottom",
            size=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_ylim(0, 1.12 * max(highest, capacity if capacity < 2 * highest else 0))
    axes.set_xticks(places, [f"{each.gpus} x {each.way}" if each.gpus > 1 else each.way for each in trials])
    axes.tick_params(axis="x", labelrotation=60, labelsize=8)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    axes.grid(axis="y")
