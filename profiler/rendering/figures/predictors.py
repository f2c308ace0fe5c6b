"""Predicted against simulated peaks; on the diagonal they agree."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from profiler.analysis.errors.predictors import PREDICTORS, Predictor
from profiler.domain.units import as_gib
from profiler.rendering.figures.theme import SOFT_INK, in_theme, new_figure, title

_COLOURS: Mapping[Predictor, str] = {
    # Okabe and Ito's.
    Predictor.ESTIMATE: "#E69F00",
    Predictor.BLOG: "#999999",
    Predictor.VERL_REPORT: "#CC79A7",
    Predictor.ACCELERATE: "#56B4E9",
}


def predictors_figure(frame: pd.DataFrame) -> Figure:
    """Return a figure with both axes in GiB, logarithmic, and one mark per trial and predictor."""
    with in_theme():
        figure, axes = new_figure(6.6, 6.2)
        actual = as_gib(1) * frame["required_allocated_bytes"].to_numpy(dtype=float)
        for predictor in reversed(Predictor):
            predicted = as_gib(1) * frame[PREDICTORS[predictor]].to_numpy(dtype=float)
            axes.scatter(
                actual, predicted, s=9, color=_COLOURS[predictor], label=predictor.value, linewidths=0, alpha=0.8
            )
        ends = np.array([actual.min(initial=1.0) / 2, actual.max(initial=1.0) * 2])
        axes.plot(ends, ends, color=SOFT_INK, linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set_xlabel("simulated, GiB of allocated memory")
        axes.set_ylabel("predicted, GiB")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], frameon=False)
        title(axes, "Predicted against simulated", f"{len(frame)} sampled trials, peak of allocated memory")
    return figure
