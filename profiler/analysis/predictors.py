"""How far each predictor of memory is from what trials needed, and where the closed form is worst."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.domain.memory import Phase


class Predictor(StrEnum):
    """Who says what a trial needs."""

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
"""The column of what a trial needed on a card of unlimited memory."""

REASON = "largest_difference"
"""The column that says in which category the closed form's peak differs most."""


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Relative errors of one kind, over the rows that have both numbers; 0.1 is 10 %."""

    of: str
    rows: int
    median_ratio: float
    """Of absolute errors, as is the next."""
    p95_ratio: float
    """Linear between ranks."""
    worst_ratio: float
    """Signed: above 0 is too much."""


@dataclass(frozen=True, kw_only=True)
class WorstRow:
    """One of the trials that the closed form misses most."""

    error_ratio: float
    trial: Mapping[str, object]
    """Its keys."""
    reason: str


def error_ratios(frame: pd.DataFrame, predicted: str, actual: str) -> NDArray[np.float64]:
    """Signed relative errors of one column against another, row by row; nan where one of the two is missing."""
    said, needed = (frame[column].to_numpy(dtype=np.float64, na_value=np.nan) for column in (predicted, actual))
    return np.asarray(said / needed - 1, dtype=np.float64)


def predictor_errors(frame: pd.DataFrame) -> tuple[ErrorSummary, ...]:
    """Allocated memory by each predictor, the best median first, then reserved by the closed form."""
    found = [
        summary
        for predictor, column in PREDICTORS.items()
        if (summary := _summary(predictor.value, frame, column, ACTUAL)) is not None
    ]
    found.sort(key=lambda summary: summary.median_ratio)
    reserved = _summary("closed form, reserved", frame, "estimated_reserved_bytes", "required_reserved_bytes")
    return (*found, reserved) if reserved else tuple(found)


def phase_errors(frame: pd.DataFrame) -> tuple[ErrorSummary, ...]:
    """The closed form phase by phase, over trials that ran to their end."""
    found = (
        _summary(phase.value, frame, f"estimated_{phase.value}_bytes", f"simulated_{phase.value}_bytes")
        for phase in Phase
    )
    return tuple(summary for summary in found if summary is not None)


def worst_rows(frame: pd.DataFrame, count: int = 10) -> tuple[WorstRow, ...]:
    """The trials that the closed form misses most, the worst first."""
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


def _summary(of: str, frame: pd.DataFrame, predicted: str, actual: str) -> ErrorSummary | None:
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
