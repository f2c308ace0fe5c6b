"""The simulation held against a real card: what its errors may be, and what they are where both ran the same trial."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from profiler.analysis.cells import Cell, cells
from profiler.domain.memory import Origin
from profiler.domain.outcome import Status
from profiler.domain.trial import TrialSpec

_SPEC_KEYS = tuple(field.name for field in fields(TrialSpec) if field.name not in ("backend", "gpu"))
"""What makes two trials the same but for where they ran."""

_SPARE_RATIO = 0.02
"""Of the card's memory: what has more to spare than this is said to fit."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One trial on a real card, and the same trial on the same card simulated."""

    measured: Cell
    simulated: Cell


@dataclass(frozen=True, kw_only=True)
class Gate:
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


def pairs(runs: pd.DataFrame) -> tuple[Pair, ...]:
    """Trials of the `runs` table that have an answer from a real card and from that card's simulation.

    A capped card is none of ours to simulate: it runs its own kernels in a smaller card's memory.
    """
    sides: dict[Origin, dict[tuple[object, ...], Cell]] = {Origin.MEASURED: {}, Origin.SIMULATED: {}}
    keys = runs.reindex(columns=list(_SPEC_KEYS)).astype(str).itertuples(index=False, name=None)
    for key, cell in zip(keys, cells(runs), strict=True):
        origin, card = cell.setting.origin, cell.setting.card
        if origin is not None and card is not None and cell.status in (Status.OK, Status.OOM):
            sides[origin][*key, card] = cell
    measured, simulated = sides[Origin.MEASURED], sides[Origin.SIMULATED]
    return tuple(Pair(measured=measured[key], simulated=simulated[key]) for key in measured if key in simulated)


def gates(found: Iterable[Pair]) -> tuple[Gate, ...]:
    """Every gate, judged by `found`; with no pairs all are not yet measured."""
    both = tuple(found)
    allocated = _errors(both, lambda cell: cell.peak_allocated_bytes)
    reserved = _errors(both, lambda cell: cell.peak_reserved_bytes)
    return (
        Gate(claim="allocated, median error", allowed=0.01, found=_percentile(allocated, 50)),
        Gate(claim="allocated, 95th percentile", allowed=0.03, found=_percentile(allocated, 95)),
        Gate(claim="reserved, median error", allowed=0.03, found=_percentile(reserved, 50)),
        Gate(claim="reserved, 95th percentile", allowed=0.08, found=_percentile(reserved, 95)),
        Gate(
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
