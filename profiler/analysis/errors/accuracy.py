"""Errors of the estimates."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from profiler.analysis.compared.cells import Cell


class Compared(StrEnum):
    """The kinds of estimates."""

    ESTIMATE = "estimate"
    """The closed form."""
    RULE = "published rule of thumb"
    """The rule of the published blog."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Absolute relative errors of one kind of estimate, over the trials with a result."""

    of: Compared
    trials: int
    median_ratio: float
    p95_ratio: float
    """95th percentile, linear between ranks."""
    worst: Cell
    worst_error_ratio: float
    """Signed: 0.1 is 10 % too high."""


def accuracies(cells: Iterable[Cell]) -> tuple[Accuracy, ...]:
    """Return the accuracy of the closed form and of the rule of thumb, each if any trial has both numbers."""
    found = tuple(cells)
    both = (
        _accuracy(Compared.ESTIMATE, found, lambda cell: cell.estimate_error_ratio),
        _accuracy(Compared.RULE, found, lambda cell: cell.rule_error_ratio),
    )
    return tuple(accuracy for accuracy in both if accuracy is not None)


def _accuracy(of: Compared, cells: tuple[Cell, ...], error: Callable[[Cell], float | None]) -> Accuracy | None:
    errors = [(ratio, cell) for cell in cells if (ratio := error(cell)) is not None]
    if not errors:
        return None
    absolute = np.abs([ratio for ratio, _ in errors])
    worst_error, worst = errors[int(np.argmax(absolute))]
    return Accuracy(
        of=of,
        trials=len(errors),
        median_ratio=float(np.median(absolute)),
        p95_ratio=float(np.percentile(absolute, 95)),
        worst=worst,
        worst_error_ratio=worst_error,
    )
