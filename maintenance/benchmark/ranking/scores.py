"""Scores of a predictor over rows: coverage, errors, how often it is too low, and verdicts on cards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from maintenance.benchmark.adapters.question import Said
from profiler.domain.memory import GIB
from profiler.domain.runs.shared import Metric, Row

CARDS_GIB = (16, 24, 40, 48, 80)
"""Cards on which verdicts are compared."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A prediction and the row's peak, both of one metric."""

    row: Row
    metric: Metric
    predicted_bytes: int
    actual_bytes: int

    @property
    def error(self) -> float:
        """Relative error; -0.1 is 10 % too low."""
        return self.predicted_bytes / self.actual_bytes - 1

    @property
    def is_too_low(self) -> bool:
        """Whether the prediction is lower than the peak, by more than the step in which the peak is printed."""
        unit = next(peak.unit_bytes for peak in self.row.peaks if peak.metric is self.metric)
        return self.predicted_bytes < self.actual_bytes - unit

    def verdicts(self) -> list[tuple[bool, bool]]:
        """Return by card whether it is enough, predicted and actual."""
        return [(self.predicted_bytes <= size * GIB, self.actual_bytes <= size * GIB) for size in CARDS_GIB]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How a predictor does over some rows. Values without compared rows are None."""

    rows: int
    answered: int
    compared: int
    median_error: float | None
    p95_error: float | None
    """95th percentile, linear between ranks."""
    too_low: float | None
    """Share of the compared rows."""
    worst_too_low: float | None
    """Lowest error, if any is below 0; else 0."""
    right_verdicts: float | None
    """Share of all verdicts, over rows and cards."""
    wrong_fits: float | None
    """Share of all verdicts that say "fits" where it does not."""

    @property
    def coverage(self) -> float:
        """Share of the rows that it answers."""
        return self.answered / self.rows if self.rows else 0.0


def compared(row: Row, said: Said) -> Compared | None:
    """Return a prediction and a peak of the first metric that both have: allocated, then reserved, then device."""
    for metric in Metric:
        actual, predicted = row.peak(metric), said.get(metric.value)
        if actual is not None and predicted is not None:
            return Compared(row=row, metric=metric, predicted_bytes=predicted, actual_bytes=actual)
    return None


def pairs_of(rows: Iterable[Row], answers: Mapping[str, Said]) -> list[Compared]:
    """Return what can be compared."""
    pairs = (compared(row, answers.get(row.row_id, {})) for row in rows)
    return [pair for pair in pairs if pair is not None]


def scores(rows: Sequence[Row], answers: Mapping[str, Said]) -> Scores:
    """Return the scores of answers over rows. Rows that ran out of memory have no peak and are not counted."""
    counted = [row for row in rows if row.peaks]
    pairs = pairs_of(counted, answers)
    errors = [pair.error for pair in pairs]
    sizes = [abs(error) for error in errors]
    verdicts = [verdict for pair in pairs for verdict in pair.verdicts()]
    return Scores(
        rows=len(counted),
        answered=sum(bool(answers.get(row.row_id)) for row in counted),
        compared=len(pairs),
        median_error=median(sizes) if sizes else None,
        p95_error=float(np.percentile(sizes, 95)) if sizes else None,
        too_low=_share(pair.is_too_low for pair in pairs),
        worst_too_low=min(0.0, *errors) if errors else None,
        right_verdicts=_share(predicted == actual for predicted, actual in verdicts),
        wrong_fits=_share(predicted and not actual for predicted, actual in verdicts),
    )


def _share(found: Iterable[bool]) -> float | None:
    values = list(found)
    return sum(values) / len(values) if values else None
