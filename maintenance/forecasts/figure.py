"""The figure: memory of every step of a few runs, by the trainer's counters and by the forecast."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from maintenance.forecasts.compared import Compared
from profiler.domain.memory import GIB, Origin
from profiler.rendering.figures.theme import ORIGIN_COLOURS, in_theme, new_figure

_MOST_RUNS = 2
_METRICS = {"reserved": ("o", 1.0), "allocated": ("^", 0.55)}
"""Marker and opacity of each metric."""


def runs_figure(found: Sequence[Compared]) -> Figure:
    """Draw the runs with the most steps and torch's own settings, one below the other.

    Args:
        found: Runs that have ended on both sides; not empty.
    """
    plain = [each for each in found if not each.run.alloc_conf and not each.run.is_small] or list(found)
    longest = sorted(plain, key=lambda each: -len(each.rows))[:_MOST_RUNS]
    with in_theme():
        figure, _ = new_figure(8.4, 1.2 + 2.7 * len(longest))
        figure.clear()
        for axes, each in zip(figure.subplots(len(longest), squeeze=False)[:, 0], longest, strict=True):
            side = Origin(each.run.job.side)
            for metric, (marker, opacity) in _METRICS.items():
                trained, forecast = (each.rows[f"{name}_{metric}_bytes"] / GIB for name in ("trained", "forecast"))
                axes.plot(
                    each.rows.step,
                    trained,
                    color=ORIGIN_COLOURS[side],
                    lw=1.1,
                    alpha=opacity,
                    label=f"{metric}, {side}",
                )
                axes.plot(
                    *(each.rows.step, forecast), marker, color=ORIGIN_COLOURS[Origin.SIMULATED], ms=2.4, alpha=opacity,
                    mec="none", label=f"{metric}, forecast",
                )  # fmt: skip
            axes.set_title(f"{each.run.job.name}: {len(each.rows)} steps", loc="left", size=10)
            axes.set_ylabel("peak of the step, GiB")
        axes.set_xlabel("optimizer step")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=len(_METRICS) * 2, fontsize=9)
    return figure
