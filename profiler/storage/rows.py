"""Rows of the tables, made from records, and the consistency checks of a record."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import TypeAlias

from profiler.domain.outcome import Estimate, Outcome, Sample, StepPeak, TrialRecord
from profiler.domain.trial import SPEC_KEYS
from profiler.storage.atomic import StorageError
from profiler.storage.outcome_fields import flat_values

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]

_OTHER_TABLES = frozenset({"oom", "phases", "breakdown", "step_shape", "largest", "step_peaks"})
"""Keys of an outcome that are not one column of `runs`."""


def run_row(record: TrialRecord, estimate: Estimate | None) -> Row:
    """Return the row of `runs` for one trial."""
    oom, outcome = record.outcome.verdict.oom, flat_values(record.outcome)
    return {
        "trial_id": record.trial_id,
        "grid": record.grid,
        "label": record.label,
        **{key: _plain(getattr(record.spec, key)) for key in SPEC_KEYS},
        **{name: _plain(value) for name, value in outcome.items() if name not in _OTHER_TABLES},
        "message": outcome["message"] or None,
        "not_measured": outcome["not_measured"] or None,
        "oom_phase": _plain(oom.phase) if oom else None,
        "oom_step": oom.step if oom else None,
        "oom_requested_bytes": oom.requested_bytes if oom else None,
        "oom_free_bytes": oom.free_bytes if oom else None,
        "oom_allocated_bytes": oom.allocated_bytes if oom else None,
        "oom_reserved_bytes": oom.reserved_bytes if oom else None,
        "estimated_peak_allocated_bytes": estimate.peak_allocated_bytes if estimate else None,
        "estimated_peak_reserved_bytes": estimate.peak_reserved_bytes if estimate else None,
        "estimated_peak_rule_bytes": estimate.peak_rule_bytes if estimate else None,
        **{f"{field.name}_version": getattr(record.versions, field.name) for field in fields(record.versions)},
    }


def phase_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `phases` for one trial."""
    return [
        {
            "trial_id": record.trial_id,
            "phase": peak.phase.value,
            "peak_allocated_bytes": peak.peak_allocated_bytes,
            "peak_reserved_bytes": peak.peak_reserved_bytes,
            "time_s": peak.time_s,
            "samples": peak.samples,
            "sampled_max_device_bytes": peak.sampled_max_device_bytes,
            "mean_utilisation_percent": peak.mean_utilisation_percent,
            "mean_power_watts": peak.mean_power_watts,
            "mean_sm_clock_mhz": peak.mean_sm_clock_mhz,
        }
        for peak in record.outcome.peaks.phases
    ]


def step_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `steps` for one trial."""
    return [
        {"trial_id": record.trial_id, **{field.name: _plain(getattr(peak, field.name)) for field in fields(StepPeak)}}
        for peak in (record.outcome.measured.step_peaks if record.outcome.measured else ())
    ]


def sample_rows(trial_id: str, samples: Sequence[Sample]) -> list[Row]:
    """Return the rows of `samples` for one trial."""
    names = [field.name for field in fields(Sample)]
    return [{"trial_id": trial_id, **{name: _plain(getattr(one, name)) for name in names}} for one in samples]


def breakdown_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `breakdown` for one trial."""
    return [
        {"trial_id": record.trial_id, "category": share.category.value, "bytes": share.size_bytes}
        for share in record.outcome.breakdown.shares
    ]


def largest_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `largest` for one trial."""
    return [
        {
            "trial_id": record.trial_id,
            "rank": rank,
            "bytes": group.size_bytes,
            "tensors": group.tensors,
            "category": group.category.value,
            "shape": "x".join(str(size) for size in group.shape),
            "dtype": group.dtype,
            "name": group.name,
            "module": group.module,
            "operation": group.operation,
            "phase": group.phase.value,
        }
        for rank, group in enumerate(record.outcome.breakdown.largest, start=1)
    ]


def check_consistency(record: TrialRecord) -> None:
    """Check that the categories sum to the peak, and that the largest phase has the peak.

    Raises:
        StorageError: The record contradicts itself. This is a defect of this program, not of the trial.
    """
    outcome = record.outcome
    whole = outcome.peaks.allocated_bytes
    parts = sum(share.size_bytes for share in outcome.breakdown.shares)
    if outcome.breakdown.shares and parts != whole:
        raise StorageError(f"trial {record.trial_id}: its categories sum to {parts} bytes, its peak is {whole} bytes.")
    largest = _largest_phase(outcome)
    if largest is not None and largest != whole:
        raise StorageError(
            f"trial {record.trial_id}: its largest phase has {largest} bytes, its peak is {whole} bytes."
        )


def _largest_phase(outcome: Outcome) -> int | None:
    known = [peak.peak_allocated_bytes for peak in outcome.peaks.phases if peak.peak_allocated_bytes is not None]
    return max(known, default=None)


def _plain(value: object) -> Value:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return ",".join(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"no column type for {type(value).__name__}")
