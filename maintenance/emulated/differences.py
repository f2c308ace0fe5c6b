"""Differences between both sides: errors by metric and phase, and trials that do not end alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from maintenance.accuracy.errors import ErrorSummary, error_summary
from maintenance.emulated.rows import METRICS, REQUIRED, WHOLE
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Status

THRESHOLDS: Mapping[str, tuple[float, float]] = {"allocated": (0.0005, 0.003), "reserved": (0.005, 0.03)}
"""Largest error in the median and in the 95th percentile, by metric; 0.01 is 1 %."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far one metric differs over the trials that end well on both sides."""

    metric: str
    phase: str
    equal: int
    """Rows in which both sides are equal to the byte."""
    errors: ErrorSummary

    @property
    def is_within(self) -> bool:
        """Whether the thresholds hold."""
        median, p95 = THRESHOLDS[self.metric]
        return self.errors.median_ratio <= median and self.errors.p95_ratio <= p95

    @property
    def verdict(self) -> str:
        """Whether the thresholds hold, as a sentence."""
        median, p95 = (f"{limit * 100:g} %" for limit in THRESHOLDS[self.metric])
        holds = "holds" if self.is_within else "does not hold"
        of = self.metric if self.phase == WHOLE else f"{self.phase} {self.metric}"
        return f"The threshold of {of} memory (median {median}, 95th percentile {p95}) {holds}."


@dataclass(frozen=True, kw_only=True)
class OppositeEnd:
    """A trial that does not end alike on both sides."""

    trial: int
    emulated: str
    simulated: str
    cause: str
    """Found by hand; empty while it is not known."""


def differences(frame: pd.DataFrame) -> tuple[Difference, ...]:
    """Return the differences of whole trials, of what trials out of memory would have needed, and by phase."""
    ends = frame.emulated_status.where(frame.emulated_status == frame.simulated_status)
    rows = frame[(ends == Status.OK) | ((ends == Status.OOM) & (frame.phase == REQUIRED))]
    phases = (WHOLE, REQUIRED, *(phase.value for phase in Phase))
    found = (_difference(rows[rows.phase == phase], metric, phase) for phase in phases for metric in METRICS)
    return tuple(difference for difference in found if difference is not None)


def of_whole_trials(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences of whole trials, to which the thresholds apply."""
    return [each for each in found if each.phase in (WHOLE, REQUIRED)]


def opposite_ends(frame: pd.DataFrame, causes: Mapping[int, str]) -> tuple[OppositeEnd, ...]:
    """Return the trials of which one side ends in another way, or runs out of memory in another phase.

    Args:
        frame: The rows.
        causes: Why they do, by the number of the trial.
    """
    whole = frame[frame.phase == WHOLE].to_dict(orient="records")
    ends = [(int(row["trial"]), _end(row, "emulated"), _end(row, "simulated")) for row in whole]
    return tuple(
        OppositeEnd(trial=trial, emulated=emulated, simulated=simulated, cause=causes.get(trial, ""))
        for trial, emulated, simulated in ends
        if emulated != simulated
    )


def _end(row: Mapping[object, object], side: str) -> str:
    status, phase = row[f"{side}_status"], row[f"{side}_oom_phase"]
    return f"{status} in {phase}" if status == Status.OOM else str(status)


def _difference(rows: pd.DataFrame, metric: str, phase: str) -> Difference | None:
    simulated, emulated = f"simulated_{metric}_bytes", f"emulated_{metric}_bytes"
    errors = error_summary(phase, rows, simulated, emulated)
    if errors is None:
        return None
    equal = int((rows[simulated] == rows[emulated]).sum())
    return Difference(metric=metric, phase=phase, equal=equal, errors=errors)
