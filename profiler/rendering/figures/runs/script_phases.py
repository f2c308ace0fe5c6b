"""The phases of a script's run: allocated and reserved memory as bars, with the card's memory where it is near."""

from matplotlib.figure import Figure

from profiler.analysis.scripts import ShownRun
from profiler.domain.units import as_gib, gib_text
from profiler.rendering.figures.theme import NOT_FITTING, ORIGIN_COLOURS, SOFT_INK, in_theme, new_figure, title
from profiler.rendering.runs.script_words import short_gib, verdict_text

_FAR_RATIO = 3
"""The line of a card this many times larger than the longest bar would leave no width for the bars."""


def script_phases_figure(run: ShownRun, subtitle: str) -> Figure:
    """Draw the peaks of each phase of a run, which has at least one; `subtitle` names the run."""
    with in_theme():
        figure, axes = new_figure(8.2, 1.3 + 0.45 * len(run.phases))
        names = [line.phase.value for line in run.phases]
        allocated = [as_gib(line.allocated_bytes or 0) for line in run.phases]
        reserved = [as_gib(line.reserved_bytes or 0) for line in run.phases]
        places = range(len(names))
        colour = ORIGIN_COLOURS[run.origin]
        axes.barh(places, reserved, height=0.7, facecolor="none", edgecolor=colour, label="reserved by torch")
        axes.barh(places, allocated, height=0.7, color=colour, alpha=0.75, label="allocated in tensors")
        for place, line in enumerate(run.phases):
            size = max(allocated[place], reserved[place])
            axes.annotate(
                short_gib(run, line.allocated_bytes),
                (size, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                size=8.5,
            )
        longest = max((*allocated, *reserved))
        memory = run.outcome.card.memory_bytes
        if memory is not None and as_gib(memory) <= _FAR_RATIO * longest:
            axes.axvline(as_gib(memory), color=NOT_FITTING, linewidth=1.2)
            axes.annotate(
                f"the card: {gib_text(memory)}",
                (as_gib(memory), 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4, -10),
                textcoords="offset points",
                ha="right",
                color=NOT_FITTING,
                size=8.5,
            )
        axes.set_yticks(list(places), labels=names)
        axes.invert_yaxis()
        axes.set_xlabel("GiB (2^30 bytes)", color=SOFT_INK)
        axes.grid(axis="x")
        ending = f", {verdict_text(run)}" if run.out_of_memory is not None else ""
        title(axes, f"Peak memory by phase, {run.origin}{ending}", subtitle)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
        return figure
