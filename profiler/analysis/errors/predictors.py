"""Errors of each predictor of memory, and the trials with the largest errors of the closed form."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.domain.memory import TRIAL_PHASES


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
    reserved = error_summary("closed form, reserved", frame, "estimated_reserved_bytes", "required_reserved_bytes")
    return (*found, reserved) if reserved else tuple(found)


def phase_errors(frame: pd.DataFrame) -> tuple[ErrorSummary, ...]:
    """Return the errors of the closed form per phase, over trials that fit."""
    found = (
        error_summary(phase.value, frame, f"estimated_{phase.value}_bytes", f"simulated_{phase.value}_bytes")
        for phase in TRIAL_PHASES
    )
    return tuple(summary for summary in found if summary is not None)


def worst_rows(frame: pd.DataFrame, count: int = 10) -> tuple[WorstRow, ...]:
    """Return the trials with the largest errors of the closed form, the worst first."""
    ratios = error_ratios(frame, PREDICTORS[Predictor.ESTIMATE], ACTUAL)
    order = np.argsort(-np.abs(ratios), kind="stable")[:count]
    trials = frame.iloc[order].to_dict(orient="records")
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
