"""The rows of a record, and why a record does not fit the tables."""

import math
from collections.abc import Callable, Mapping, Sequence

from profiler.domain.runs.outcome import Estimate, Outcome, TrialRecord
from profiler.domain.runs.step_shape import StepShape
from profiler.storage.files.atomic import StorageError
from profiler.storage.tables.rows import Row, breakdown_rows, largest_rows, phase_rows, run_row, step_rows
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES

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
