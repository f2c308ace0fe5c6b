"""The estimate of one trial: the largest instant of each phase as a stacked bar."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiler.analytical.explanation.explained import ExplainedEstimate
from profiler.domain.memory import Category
from profiler.domain.units import as_gib
from profiler.rendering.figures.theme import CATEGORY_COLOURS, INK, in_theme, new_figure, title
from profiler.rendering.sweep.words import CATEGORY_TITLES, gib_number

_BAR = 0.72


def instants_figure(explained: ExplainedEstimate) -> Figure:
    """Return a figure of horizontal bars in GiB, load on top; the longest bar is the peak."""
    with in_theme():
        figure, axes = new_figure(7.4, 3.6)
        names = [phase.phase.value for phase in explained.phases]
        for row, phase in enumerate(explained.phases):
            left = 0.0
            for share in phase.shares:
                width = as_gib(share.size_bytes)
                axes.barh(row, width, left=left, height=_BAR, color=CATEGORY_COLOURS[share.category], linewidth=0)
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
