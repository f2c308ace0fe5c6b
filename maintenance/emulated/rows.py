"""The records of both sides as rows: one per trial and phase, and one per trial."""

from collections.abc import Sequence

import pandas as pd

from maintenance.emulated.running import Pair
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Outcome, Status

WHOLE = "all"
"""In the place of the phase, in the row of a whole trial."""

REQUIRED = "required"
"""In the place of the phase: the peak of a trial that ran out of memory, on a card of unlimited memory."""

METRICS = ("allocated", "reserved")


def comparison_frame(pairs: Sequence[Pair]) -> pd.DataFrame:
    """Return the rows of trials that have ended on both sides.

    A row has the number of the trial in the sample, how it ended on each side, the phase in which memory ran out, the
    phase of the row, and the peaks of both sides in bytes. Reserved memory of a phase is the most that was held in it.
    """
    rows = [row for pair in pairs for row in _rows(pair)]
    bytes_ = [f"{side}_{metric}_bytes" for metric in METRICS for side in ("emulated", "simulated")]
    return pd.DataFrame(rows).astype(dict.fromkeys(bytes_, "Int64")) if rows else pd.DataFrame()


def _rows(pair: Pair) -> list[dict[str, object]]:
    if not pair.is_complete or pair.emulated is None or pair.simulated is None:
        return []
    both = {"emulated": pair.emulated.outcome, "simulated": pair.simulated.outcome}
    ends: dict[str, object] = {"trial": pair.number}
    for side, outcome in both.items():
        ends[f"{side}_status"] = outcome.status.value
        ends[f"{side}_oom_phase"] = outcome.verdict.oom.phase.value if outcome.verdict.oom else None
    found = {phase for outcome in both.values() for phase in _peaks(outcome)}
    phases = [phase.value for phase in Phase if phase.value in found]
    return [
        {
            **ends,
            "phase": phase,
            **{
                f"{side}_{metric}_bytes": _peaks(outcome).get(phase, {}).get(metric)
                for metric in METRICS
                for side, outcome in both.items()
            },
        }
        for phase in (WHOLE, *phases, *([REQUIRED] if REQUIRED in found else []))
    ]


def needed_sizes(outcome: Outcome) -> tuple[int | None, int | None]:
    """Return allocated and reserved bytes that a trial needs on a card of unlimited memory; None where unknown."""
    needed, peaks = outcome.unlimited, outcome.peaks
    if outcome.status is Status.OOM and needed is not None:
        return needed.required_allocated_bytes, needed.required_reserved_bytes
    if outcome.status is Status.OK:
        return peaks.allocated_bytes, peaks.reserved_bytes
    return None, None


def _peaks(outcome: Outcome) -> dict[str, dict[str, int | None]]:
    """Return allocated and reserved bytes by phase, of the whole trial, and those that it would have needed."""
    peaks = outcome.peaks
    by_phase = {
        peak.phase.value: {"allocated": peak.peak_allocated_bytes, "reserved": peak.peak_reserved_bytes}
        for peak in peaks.phases
    }
    found = {WHOLE: {"allocated": peaks.allocated_bytes, "reserved": peaks.reserved_bytes}, **by_phase}
    needed = outcome.unlimited
    if outcome.status is Status.OOM and needed is not None:
        sizes = {"allocated": needed.required_allocated_bytes, "reserved": needed.required_reserved_bytes}
        found[REQUIRED] = {metric: sizes[metric] for metric in METRICS}
    return found
