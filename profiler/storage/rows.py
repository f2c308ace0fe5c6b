"""Rows of the tables, made from records, and the consistency checks of a record."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import TypeAlias, cast

from profiler.domain.outcome import Estimate, Outcome, PhasePeak, Sample, StepPeak, TrialRecord, Versions
from profiler.domain.trial import SPEC_KEYS
from profiler.storage.atomic import StorageError
from profiler.storage.outcome_fields import flat_values

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]

_PLAIN = frozenset({str, int, float, bool})

_OTHER_TABLES = frozenset({"oom", "phases", "breakdown", "step_shape", "largest", "step_peaks"})
"""Keys of an outcome that are not one column of `runs`."""


def run_row(record: TrialRecord, estimate: Estimate | None) -> Row:
    """Return the row of `runs` for one trial."""
    return {
        "trial_id": record.trial_id,
        "grid": record.grid,
        "label": record.label,
        **{key: _plain(getattr(record.spec, key)) for key in SPEC_KEYS},
        **result_row(record.outcome),
        "estimated_peak_allocated_bytes": estimate.peak_allocated_bytes if estimate else None,
        "estimated_peak_reserved_bytes": estimate.peak_reserved_bytes if estimate else None,
        "estimated_peak_rule_bytes": estimate.peak_rule_bytes if estimate else None,
        **version_row(record.versions),
    }


def result_row(outcome: Outcome) -> Row:
    """Return the columns of an outcome that have one value per trial or script."""
    oom, values = outcome.verdict.oom, flat_values(outcome)
    return {
        **{name: _plain(value) for name, value in values.items() if name not in _OTHER_TABLES},
        "message": _plain(values["message"] or None),
        "not_measured": _plain(values["not_measured"] or None),
        "oom_phase": _plain(oom.phase) if oom else None,
        "oom_step": oom.step if oom else None,
        "oom_requested_bytes": oom.requested_bytes if oom else None,
        "oom_free_bytes": oom.free_bytes if oom else None,
        "oom_allocated_bytes": oom.allocated_bytes if oom else None,
        "oom_reserved_bytes": oom.reserved_bytes if oom else None,
    }


def version_row(versions: Versions) -> Row:
    """Return the columns of the versions."""
    return {f"{field.name}_version": getattr(versions, field.name) for field in fields(versions)}


def phase_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `phases` for one trial."""
    return [{"trial_id": record.trial_id, **row} for row in rows_by_phase(record.outcome)]


def rows_by_phase(outcome: Outcome) -> list[Row]:
    """Return one row per phase, without what names the trial or the script."""
    return [
        {field.name: _plain(getattr(peak, field.name)) for field in fields(PhasePeak)} for peak in outcome.peaks.phases
    ]


def step_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `steps` for one trial."""
    return [{"trial_id": record.trial_id, **row} for row in rows_by_step(record.outcome)]


def rows_by_step(outcome: Outcome) -> list[Row]:
    """Return one row per phase of a step, without what names the trial or the script."""
    return [
        {field.name: _plain(getattr(peak, field.name)) for field in fields(StepPeak)}
        for peak in (outcome.measured.step_peaks if outcome.measured else ())
    ]


def sample_rows(trial_id: str, samples: Sequence[Sample]) -> list[Row]:
    """Return the rows of `samples` for one trial."""
    return [{"trial_id": trial_id, **sample_values(one)} for one in samples]


def sample_values(sample: Sample) -> Row:
    """Return the row of a sample, without what names the trial or the run."""
    return {field.name: _plain(getattr(sample, field.name)) for field in fields(Sample)}


def breakdown_rows(record: TrialRecord) -> list[Row]:
    """Return the rows of `breakdown` for one trial."""
    return [{"trial_id": record.trial_id, **row} for row in rows_by_category(record.outcome)]


def rows_by_category(outcome: Outcome) -> list[Row]:
    """Return one row per category of the peak, without what names the trial or the script."""
    return [{"category": share.category.value, "bytes": share.size_bytes} for share in outcome.breakdown.shares]


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
    if value is None or type(value) in _PLAIN:
        return cast("Value", value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"no column type for {type(value).__name__}")
