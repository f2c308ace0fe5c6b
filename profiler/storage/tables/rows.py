"""Rows of the tables, made from the fields of a record, and why a record does not fit them."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias, cast

from profiler.domain.runs.columns import ColumnField, columns_of
from profiler.domain.runs.other_runs import MonitoredRun, ScriptRecord
from profiler.domain.runs.outcome import Estimate, Outcome, Run, TrialRecord
from profiler.domain.runs.step_shape import StepShape
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.storage.files.atomic import StorageError
from profiler.storage.records.outcome_fields import not_measured
from profiler.storage.tables.schema import ESTIMATED, OPTIONAL_TABLES, TABLES

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


_LEAST = {
    name: {column.name: column.least for column in columns if column.least is not None}
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items()
}

_IDENTIFYING = {
    name: tuple(column.name for column in columns if column.identifies)
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items()
}


ROWS: Mapping[str, Callable[[TrialRecord], list[Row]]] = {
    "phases": phase_rows,
    "breakdown": breakdown_rows,
    "largest": largest_rows,
    "steps": step_rows,
}
"""The rows of each table but `runs`, `shape` and `samples`."""

RUNS = "runs"


def checked_rows(record: TrialRecord, estimate: Estimate | None) -> Mapping[str, list[Row]] | str:
    """Return the rows of a record by table, or why the record does not fit the tables."""
    try:
        _check_consistency(record)
        tables = {RUNS: [run_row(record, estimate)]}
        tables |= {name: rows(record) for name, rows in ROWS.items()}
    except (StorageError, TypeError) as error:
        return str(error).rstrip(".")
    found = (_row_problem(name, rows) for name, rows in tables.items())
    return next(filter(None, found), "") or _shape_problem(record) or tables


def _check_consistency(record: TrialRecord) -> None:
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


def _row_problem(name: str, rows: Sequence[Row]) -> str:
    """Return which value its column cannot hold; empty if there is none."""
    least_of = _LEAST[name]
    for row in rows:
        for column, value in row.items():
            if value is None:
                continue
            if isinstance(value, str):
                if not value.isascii() and not _is_unicode(value):
                    return f"{column} is not valid text"
                continue
            if type(value) is int and not -(2**63) <= value < 2**63:
                return f"{column}={value} does not fit in 64 bits"
            least = least_of.get(column)
            if least is not None and not least <= value < math.inf:
                return f"{column}={value} is not a number of at least {least}"
    names = _IDENTIFYING[name]
    keys = [tuple(row[column] for column in names) for row in rows]
    return "" if len(set(keys)) == len(keys) else f"two of its rows of {name} have the same {' and '.join(names)}"


def _shape_problem(record: TrialRecord) -> str:
    shape = record.outcome.unlimited.step_shape if record.outcome.unlimited else ()
    sizes = shape.sizes_bytes if isinstance(shape, StepShape) else [s.size_bytes for each in shape for s in each.shares]
    return f"a size of its step is {min(sizes)} bytes" if min(sizes, default=0) < 0 else ""


def _is_unicode(text: str) -> bool:
    """Return whether the text can be encoded in UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
