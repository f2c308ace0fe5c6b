"""Predicted against simulated or measured peaks; on the diagonal they agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The marks of one predictor."""

    name: str
    colour: str
    sizes_bytes: pd.Series


def predictors_figure(frame: pd.DataFrame) -> Figure:
    """Return a figure with both axes in GiB, logarithmic, and one mark per trial and predictor."""
    predicted = [
        Predicted(name=predictor.value, colour=_COLOURS[predictor], sizes_bytes=frame[PREDICTORS[predictor]])
        for predictor in Predictor
    ]
    subtitle = f"{len(frame)} sampled trials, peak of allocated memory"
    return agreement_figure(frame["required_allocated_bytes"], predicted, origin="simulated", subtitle=subtitle)


def measured_figure(rows: pd.DataFrame, card: str) -> Figure:
    """Return the same for trials that a real card measured: `rows` of the campaign whose trials end well."""
    names = {"simulated": "#0072B2", "estimated": _COLOURS[Predictor.ESTIMATE], "rule": _COLOURS[Predictor.BLOG]}
    shown = {"rule": Predictor.BLOG.value, "estimated": Predictor.ESTIMATE.value}
    predicted = [
        Predicted(name=shown.get(side, side), colour=colour, sizes_bytes=rows[f"{side}_allocated_bytes"])
        for side, colour in names.items()
    ]
    subtitle = f"{len(rows)} trials on one {card}, peak of allocated memory"
    return agreement_figure(rows["measured_allocated_bytes"], predicted, origin="measured", subtitle=subtitle)


def agreement_figure(actual_bytes: pd.Series, predicted: Sequence[Predicted], *, origin: str, subtitle: str) -> Figure:
    """Return the figure; the first of `predicted` is drawn above the others."""
    with in_theme():
        figure, axes = new_figure(6.6, 6.2)
        actual = as_gib(1) * actual_bytes.to_numpy(dtype=float)
        for one in reversed(predicted):
            sizes = as_gib(1) * one.sizes_bytes.to_numpy(dtype=float, na_value=np.nan)
            axes.scatter(actual, sizes, s=9, color=one.colour, label=one.name, linewidths=0, alpha=0.8)
        ends = np.array([actual.min(initial=1.0) / 2, actual.max(initial=1.0) * 2])
        axes.plot(ends, ends, color=SOFT_INK, linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set_xlabel(f"{origin}, GiB of allocated memory")
        axes.set_ylabel("predicted, GiB")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], frameon=False)
        title(axes, f"Predicted against {origin}", subtitle)
    return figure
