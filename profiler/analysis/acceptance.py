"""Acceptance thresholds: how far the simulation may be from a real card, and how far it is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler.analysis.cells import Cell, cells
from profiler.domain.memory import Origin
from profiler.domain.outcome import Status
from profiler.domain.trial import WORKLOAD_KEYS

"""What makes two trials the same but for where they ran."""

_DECIDING = ("torch", "trl", "transformers")
"""Packages whose versions have to be equal on both sides; a local version such as ``+cpu`` does not count."""

_SPARE_RATIO = 0.02
"""Of the card's memory: what has more to spare than this is said to fit."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One trial on a real card, and the same trial on the same card simulated."""

    measured: Cell
    simulated: Cell

    @property
    def differing_versions(self) -> tuple[tuple[str, str, str], ...]:
        """(package, measured version, simulated version) where they differ; empty for a pair that counts."""
        sides = [dict(cell.setting.versions) for cell in (self.measured, self.simulated)]
        versions = [(package, sides[0].get(package, "none"), sides[1].get(package, "none")) for package in _DECIDING]
        return tuple(found for found in versions if _public(found[1]) != _public(found[2]))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """One thing that has to hold of the simulation, as a ratio (0.01 is 1 %) or a number of trials."""

    claim: str
    """What is looked at, ``"allocated, median error"``."""
    allowed: float
    found: float | None
    """None: not yet measured, because no trial ran both ways."""
    counts_trials: bool = False
    """Whether it is a number of trials and not a ratio."""

    @property
    def holds(self) -> bool | None:
        """Whether it does; None where it is not yet measured."""
        return None if self.found is None else self.found <= self.allowed


def pairs(tables: Iterable[pd.DataFrame]) -> tuple[Pair, ...]:
    """Return the trials that have an answer from a real card and one from that card's simulation.

    Of several simulations of a trial the one with the versions of the measurement is taken; where there is none, the
    pair says by what it differs. A capped card is not simulated: it runs its own kernels in a smaller card's memory.

    Args:
        tables: `runs` tables, of one folder or of several.
    """
    measured: list[tuple[tuple[object, ...], Cell]] = []
    simulated: dict[tuple[object, ...], list[Cell]] = {}
    for runs in tables:
        keys = runs.reindex(columns=list(WORKLOAD_KEYS)).astype(str).itertuples(index=False, name=None)
        for key, cell in zip(keys, cells(runs), strict=True):
            place = (*key, cell.setting.card)
            if cell.setting.card is None or cell.status not in (Status.OK, Status.OOM):
                continue
            if cell.setting.origin is Origin.MEASURED:
                measured.append((place, cell))
            elif cell.setting.origin is Origin.SIMULATED:
                simulated.setdefault(place, []).append(cell)
    found = ([Pair(measured=cell, simulated=other) for other in simulated.get(key, ())] for key, cell in measured)
    return tuple(min(candidates, key=lambda pair: len(pair.differing_versions)) for candidates in found if candidates)


def thresholds(found: Iterable[Pair]) -> tuple[Threshold, ...]:
    """Every threshold, judged by the pairs of equal versions; without any all are not yet measured."""
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
            found=float(sum(map(_wrongly_said_to_fit, both))) if both else None,
            counts_trials=True,
        ),
    )


def _errors(found: Sequence[Pair], peak: Callable[[Cell], int | None]) -> list[float]:
    """Absolute relative errors where both sides ran to the end."""
    peaks = [
        (peak(pair.simulated), peak(pair.measured))
        for pair in found
        if pair.simulated.status is pair.measured.status is Status.OK
    ]
    return [abs(said - was) / was for said, was in peaks if said is not None and was]


def _percentile(errors: list[float], rank: int) -> float | None:
    return float(np.percentile(errors, rank)) if errors else None


def _wrongly_said_to_fit(pair: Pair) -> bool:
    device, memory = pair.simulated.peak_device_bytes, pair.simulated.setting.memory_bytes
    if pair.measured.status is not Status.OOM or pair.simulated.status is not Status.OK:
        return False
    return device is not None and memory is not None and memory - device > _SPARE_RATIO * memory


def _public(version: str) -> str:
    return version.partition("+")[0]
