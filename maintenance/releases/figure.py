"""The figures: the peak of every job by release of a package."""

import pandas as pd
from matplotlib.figure import Figure

from maintenance.releases.compared import of_size
from maintenance.releases.runs import TUNINGS, Package, Size
from profiler.domain.memory import GIB, Origin
from profiler.rendering.figures.theme import ORIGIN_COLOURS, in_theme, new_figure

_MARKERS = dict(zip(TUNINGS, ("o", "s", "^"), strict=True))


def releases_figure(rows: pd.DataFrame, package: Package, size: Size) -> Figure:
    """Draw a panel per trainer, one below the other: allocated memory of each tuning at each release, for one size.

    A release with which a job has failed has no point.
    """
    places = {release: place for place, release in enumerate(package.releases)}
    jobs = [(job.trainer, job.tuning) for job in package.jobs_of(size)]
    trainers = tuple(dict.fromkeys(trainer for trainer, _ in jobs))
    ended = of_size(rows[(rows.package == package.name) & (rows.end == "ok")], size)
    with in_theme():
        figure, _ = new_figure(8.4, 1.4 + 2.1 * len(trainers))
        figure.clear()
        panels = figure.subplots(len(trainers), sharex=True, squeeze=False)[:, 0]
        for axes, trainer in zip(panels, trainers, strict=True):
            for tuning, marker in _MARKERS.items():
                own = ended[(ended.trainer == trainer) & (ended.tuning == tuning)]
                if own.empty:
                    continue
                own = own.assign(place=own.release.map(places)).sort_values("place")
                axes.step(
                    own.place,
                    own.allocated_bytes.astype(float) / GIB,
                    where="mid",
                    marker=marker,
                    ms=4,
                    lw=1.3,
                    color=ORIGIN_COLOURS[Origin.EMULATED],
                    alpha=1.0 if tuning == TUNINGS[0] else 0.6,
                    label=tuning,
                )
            highest = ended[ended.trainer == trainer].allocated_bytes.astype(float).max() / GIB
            axes.set_title(", ".join(filter(None, (trainer.upper(), size.title, package.engine))), loc="left", size=10)
            axes.set_ylabel("peak, GiB (emulated)", size=9)
            axes.set_ylim(0, 1.1 * highest if highest > 0 else 1)
        panels[-1].set_xlim(-0.5, len(places) - 0.5)
        panels[-1].set_xticks(list(places.values()), list(places), rotation=60, ha="right", size=8)
        panels[-1].set_xlabel(f"release of {package.installed}")
        named = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named, loc="outside upper right", ncols=len(named), fontsize=9)
    return figure
