"""Errors of the estimates, and the largest differences that are accepted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from profiler.analysis.compared.cells import Cell, cells
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status


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


_DECIDING = ("torch", "trl", "transformers")
"""Packages whose versions have to be equal on both sides; a local version such as ``+cpu`` is ignored."""

_SPARE_RATIO = 0.02
"""Of the card's memory: a trial predicted to leave more than this is predicted to fit."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One trial measured on a card, and the same trial simulated on that card."""

    measured: Cell
    simulated: Cell

    @property
    def differing_versions(self) -> tuple[tuple[str, str, str], ...]:
        """(package, measured version, simulated version) of packages that differ; a pair counts if there are none."""
        sides = [dict(cell.setting.versions) for cell in (self.measured, self.simulated)]
        versions = [(package, sides[0].get(package, "none"), sides[1].get(package, "none")) for package in _DECIDING]
        return tuple(found for found in versions if _public(found[1]) != _public(found[2]))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """One acceptance threshold of the simulation: a ratio (0.01 is 1 %) or a number of trials."""

    claim: str
    """``"allocated, median error"``."""
    allowed: float
    found: float | None
    """None if no trial was both measured and simulated."""
    counts_trials: bool = False
    """Whether it is a number of trials instead of a ratio."""

    @property
    def holds(self) -> bool | None:
        """Whether the threshold holds; None if it is not yet measured."""
        return None if self.found is None else self.found <= self.allowed


def pairs(tables: Iterable[pd.DataFrame]) -> tuple[Pair, ...]:
    """Return the trials that have both a measured and a simulated answer for the same card.

    Of several simulations of a trial the one whose versions are closest to the measurement's is taken. A capped card
    has no simulation: it runs its own kernels in a smaller card's memory.

    Args:
        tables: `runs` tables, of one folder or of several.
    """
    return pairs_among(cell for runs in tables for cell in cells(runs))


def pairs_among(trials: Iterable[Cell]) -> tuple[Pair, ...]:
    """Return the pairs among trials; see `pairs`."""
    measured: list[tuple[tuple[object, ...], Cell]] = []
    simulated: dict[tuple[object, ...], list[Cell]] = {}
    for cell in trials:
        place = (*cell.configuration, cell.setting.card)
        if cell.setting.card is None or cell.status not in (Status.OK, Status.OOM):
            continue
        if cell.setting.origin is Origin.MEASURED:
            measured.append((place, cell))
        elif cell.setting.origin is Origin.SIMULATED:
            simulated.setdefault(place, []).append(cell)
    found = ([Pair(measured=cell, simulated=other) for other in simulated.get(key, ())] for key, cell in measured)
    return tuple(min(candidates, key=lambda pair: len(pair.differing_versions)) for candidates in found if candidates)


def thresholds(found: Iterable[Pair]) -> tuple[Threshold, ...]:
    """Return every threshold with what the pairs of equal versions show; without such pairs none is measured."""
    both = tuple(pair for pair in found if not pair.differing_versions)
    allocated = _errors(both, lambda cell: cell.peak_allocated_bytes)
    reserved = _errors(both, lambda cell: cell.peak_reserved_bytes)
    return (
        Threshold(claim="allocated, median error", allowed=0.01, found=_percentile(allocated, 50)),
        Threshold(claim="allocated, 95th percentile", allowed=0.03, found=_percentile(allocated, 95)),
        Threshold(claim="reserved, median error", allowed=0.03, found=_percentile(reserved, 50)),
        Threshold(claim="reserved, 95th percentile", allowed=0.08, found=_percentile(reserved, 95)),
        Threshold(
            claim="said to fit with more than 2 % to spare, ran out of memory",
            allowed=0,
            found=float(sum(map(_wrongly_predicted_to_fit, both))) if both else None,
            counts_trials=True,
        ),
    )


def _errors(found: Sequence[Pair], peak: Callable[[Cell], int | None]) -> list[float]:
    """Absolute relative errors of the pairs whose trials both fit."""
    peaks = [
        (peak(pair.simulated), peak(pair.measured))
        for pair in found
        if pair.simulated.status is pair.measured.status is Status.OK
    ]
    return [abs(simulated - measured) / measured for simulated, measured in peaks if simulated is not None and measured]


def _percentile(errors: list[float], rank: int) -> float | None:
    return float(np.percentile(errors, rank)) if errors else None


def _wrongly_predicted_to_fit(pair: Pair) -> bool:
    device, memory = pair.simulated.peak_device_bytes, pair.simulated.setting.memory_bytes
    if pair.measured.status is not Status.OOM or pair.simulated.status is not Status.OK:
        return False
    return device is not None and memory is not None and memory - device > _SPARE_RATIO * memory


def _public(version: str) -> str:
    return version.partition("+")[0]
