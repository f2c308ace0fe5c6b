"""Rows of the tables, made from what the fields of a record declare."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias, cast

from profiler.domain.runs.columns import ColumnField, columns_of
from profiler.domain.runs.monitored import MonitoredRun
from profiler.domain.runs.outcome import Estimate, Run, TrialRecord
from profiler.domain.runs.script import ScriptRecord
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.storage.records.outcome_fields import not_measured
from profiler.storage.tables.schema import ESTIMATED

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]

_PLAIN = frozenset({str, int, float, bool})

_NO_ESTIMATE: Row = {each.name: None for each in columns_of(Estimate, ESTIMATED)}


def row_of(value: object, prefix: str = "") -> Row:
    """Return the columns that the fields of a dataclass declare; `prefix` precedes their names."""
    return {each.name: _value(value, each) for each in columns_of(type(value), prefix)}


def record_row(record: Run) -> Row:
    """Return the columns of a record that have one value per run."""
    return {**row_of(record), "not_measured": not_measured(record.outcome) or None}


def run_row(record: TrialRecord, estimate: Estimate | None) -> Row:
    """Return the row of `runs` for one trial."""
    return {
        **{key: _plain(getattr(record.spec, key)) for key in SPEC_KEYS},
        **record_row(record),
        **(row_of(estimate, ESTIMATED) if estimate else _NO_ESTIMATE),
    }


def phase_rows(record: Run) -> list[Row]:
    """Return one row per phase."""
    return _rows(record, record.outcome.peaks.phases)


def step_rows(record: Run) -> list[Row]:
    """Return one row per phase of a step."""
    return _rows(record, record.outcome.measured.step_peaks if record.outcome.measured else ())


def breakdown_rows(record: Run) -> list[Row]:
    """Return one row per category of the peak."""
    return _rows(record, record.outcome.breakdown.shares)


def largest_rows(record: TrialRecord) -> list[Row]:
    """Return one row per group of tensors, for the largest at the peak."""
    return _ranked(_rows(record, record.outcome.breakdown.largest))


def held_rows(record: ScriptRecord) -> list[Row]:
    """Return one row per place of the program, for those that held most memory."""
    return _ranked(_rows(record, record.largest))


def gpu_rows(record: MonitoredRun) -> list[Row]:
    """Return one row per GPU."""
    return _rows(record, record.gpus)


def _rows(record: Run, values: Sequence[object]) -> list[Row]:
    """Return one row per value, with what names the run."""
    names = {each.name: _value(record, each) for each in columns_of(type(record)) if each.identifies}
    return [{**names, **row_of(value)} for value in values]


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "rank": rank} for rank, row in enumerate(rows, start=1)]


def _value(holder: object, column: ColumnField) -> Value:
    value = holder
    for name in column.place:
        if value is None:
            return None
        value = getattr(value, name)
    if value is not None and column.as_text is not None:
        value = column.as_text(value)
    return None if column.empty_is_null and value == "" else _plain(value)


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
