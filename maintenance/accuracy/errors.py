"""Errors of each predictor, and the figures that show them: of sampled trials, and of those of a card."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from profiler.domain.memory import TRIAL_PHASES, as_gib
from profiler.rendering.figures.theme import SOFT_INK, in_theme, new_figure, title


class Predictor(StrEnum):
    """Predictors of the memory that a trial needs."""

    ESTIMATE = "closed form"
    BLOG = "blog's rule of thumb"
    VERL_REPORT = "verl report's formulas"
    ACCELERATE = "accelerate estimate-memory"


PREDICTORS: Mapping[Predictor, str] = {
    Predictor.ESTIMATE: "estimated_allocated_bytes",
    Predictor.BLOG: "blog_bytes",
    Predictor.VERL_REPORT: "verl_report_bytes",
    Predictor.ACCELERATE: "accelerate_bytes",
}
"""The column of each predictor."""

ACTUAL = "required_allocated_bytes"
"""The column with the memory that a trial needs on a card of unlimited memory."""

RESERVED = "closed form, reserved"
"""The name of the errors of reserved memory."""

GROUPS = ("recipe", "tuning", "model_type", "alloc_conf", "attention_dropout")
"""Columns by whose values trials are grouped."""

REASON = "largest_difference"
"""The column with the category in which the closed form differs most at the peak."""


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Relative errors of one predictor, over the rows with both numbers; 0.1 is 10 %."""

    of: str
    rows: int
    median_ratio: float
    """Of absolute errors, as the next."""
    p95_ratio: float
    """Linear between ranks."""
    worst_ratio: float
    """Signed: positive is too high."""


@dataclass(frozen=True, kw_only=True)
class GroupErrors:
    """Errors of the closed form over the trials with one value of a key."""

    value: str
    allocated: ErrorSummary
    reserved: ErrorSummary


@dataclass(frozen=True, kw_only=True)
class WorstRow:
    """One of the trials with the largest errors of the closed form."""

    error_ratio: float
    trial: Mapping[str, object]
    """Its keys."""
    reason: str


def error_ratios(frame: pd.DataFrame, predicted: str, actual: str) -> NDArray[np.float64]:
    """Return the signed relative errors of one column against another; nan if one of the two is missing."""
    predictions, needed = (frame[column].to_numpy(dtype=np.float64, na_value=np.nan) for column in (predicted, actual))
    return np.asarray(predictions / needed - 1, dtype=np.float64)


def predictor_errors(frame: pd.DataFrame) -> tuple[ErrorSummary, ...]:
    """Return the errors of allocated memory per predictor, the best median first, then those of reserved memory."""
    found = [
        summary
        for predictor, column in PREDICTORS.items()
        if (summary := error_summary(predictor.value, frame, column, ACTUAL)) is not None
    ]
    found.sort(key=lambda summary: summary.median_ratio)
    reserved = _reserved(frame)
    return (*found, reserved) if reserved else tuple(found)


def _reserved(frame: pd.DataFrame) -> ErrorSummary | None:
    return error_summary(RESERVED, frame, "estimated_reserved_bytes", "required_reserved_bytes")


def group_errors(frame: pd.DataFrame) -> Mapping[str, tuple[GroupErrors, ...]]:
    """Return the errors of the closed form by the values of each column in `GROUPS`, sorted by value."""
    return {key: tuple(_of_groups(frame, key)) for key in GROUPS}


def _of_groups(frame: pd.DataFrame, key: str) -> Iterator[GroupErrors]:
    for value, rows in frame.groupby(key):
        allocated = error_summary(Predictor.ESTIMATE.value, rows, PREDICTORS[Predictor.ESTIMATE], ACTUAL)
        reserved = _reserved(rows)
        if allocated is not None and reserved is not None:
            yield GroupErrors(value=str(value), allocated=allocated, reserved=reserved)


def phase_errors(frame: pd.DataFrame) -> tuple[ErrorSummary, ...]:
    """Return the errors of the closed form per phase, over trials that fit."""
    found = (
        error_summary(phase.value, frame, f"estimated_{phase.value}_bytes", f"simulated_{phase.value}_bytes")
        for phase in TRIAL_PHASES
    )
    return tuple(summary for summary in found if summary is not None)


def worst_rows(frame: pd.DataFrame, count: int = 10) -> tuple[WorstRow, ...]:
    """Return the trials with the largest errors of the closed form, the worst first."""
    frame = frame[frame[PREDICTORS[Predictor.ESTIMATE]].notna()]
    ratios = error_ratios(frame, PREDICTORS[Predictor.ESTIMATE], ACTUAL)
    order = np.argsort(-np.abs(ratios), kind="stable")[:count]
    worst = frame.iloc[order].astype(object)
    trials = worst.where(worst.notna(), None).to_dict(orient="records")
    return tuple(
        WorstRow(
            error_ratio=float(ratio),
            trial={str(key): value for key, value in trial.items()},
            reason=str(trial[REASON]),
        )
        for ratio, trial in zip(ratios[order], trials, strict=True)
    )


def error_summary(of: str, frame: pd.DataFrame, predicted: str, actual: str) -> ErrorSummary | None:
    """Return the errors of one column against another; None if no row has both."""
    every = error_ratios(frame, predicted, actual)
    ratios = every[np.isfinite(every)]
    if not ratios.size:
        return None
    absolute = np.abs(ratios)
    return ErrorSummary(
        of=of,
        rows=int(ratios.size),
        median_ratio=float(np.median(absolute)),
        p95_ratio=float(np.percentile(absolute, 95)),
        worst_ratio=float(ratios[np.argmax(absolute)]),
    )


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
