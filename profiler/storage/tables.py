"""Tables of a grid: assembled from records, written atomically, read as pandas frames."""

import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler.config.labels import labels
from profiler.domain.outcome import Estimate, TrialRecord
from profiler.domain.step_shape import StepShape
from profiler.storage.atomic import StorageError, write_atomically
from profiler.storage.carried import (
    CurrentId,
    StoredTrial,
    builtin_id,
    joined,
    outdated,
    stored_trials,
    without,
)
from profiler.storage.rows import (
    Row,
    breakdown_rows,
    check_consistency,
    largest_rows,
    phase_rows,
    run_row,
    step_rows,
)
from profiler.storage.samples import read_samples
from profiler.storage.schema import OPTIONAL_TABLES, TABLES, Column, arrow_schema
from profiler.storage.shape_table import shape_table
from profiler.storage.table_files import TableFile, open_tables, table_path

__all__ = ["Tables", "Written", "read_tables", "table_path", "write_tables"]

_TRIALS_AT_ONCE = 500

_LEAST = {
    name: {column.name: column.least for column in columns if column.least is not None}
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items()
}

_IDENTIFYING = {
    name: tuple(column.name for column in columns if column.identifies)
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items()
}

_PANDAS = {
    # pandas' nullable types keep an integer column with nulls an integer column.
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Stored tables of one grid; `profiler.storage.schema` documents the columns."""

    runs: pd.DataFrame
    phases: pd.DataFrame
    breakdown: pd.DataFrame
    largest: pd.DataFrame
    optional: Mapping[str, TableFile | None]
    """The files of the optional tables, which can have hundreds of rows per trial; they are read when asked for."""
    question: str
    """The question of the grid; may be empty."""
    command: str
    """The command that repeats the sweep; may be empty."""

    @property
    def steps(self) -> pd.DataFrame:
        """One row per phase of an optimizer step; empty if nothing was measured."""
        return self._rows("steps", None)

    @property
    def samples(self) -> pd.DataFrame:
        """One row per sample; empty if nothing was measured."""
        return self._rows("samples", None)

    @property
    def shape(self) -> pd.DataFrame:
        """One row per instant and category; empty if nothing was simulated."""
        return self._rows("shape", None)

    def shape_of(self, trial_ids: Collection[str]) -> pd.DataFrame:
        """Return the rows of `shape` of these trials."""
        return self._rows("shape", trial_ids)

    def _rows(self, name: str, trial_ids: Collection[str] | None) -> pd.DataFrame:
        file = self.optional[name]
        if file is None:
            return _frame(arrow_schema(OPTIONAL_TABLES[name], about={}).empty_table())
        return _frame(file.rows(trial_ids))


@dataclass(frozen=True, kw_only=True)
class Written:
    """Rows of the written tables that do not come from the records, and records without rows."""

    carried: int = 0
    """Trials without a record in the folder, whose rows were carried over from the previous tables."""
    replaced: int = 0
    """Emulated or simulated trials whose rows were replaced, because they ran again after a change."""
    outdated: int = 0
    """Emulated or simulated trials in the tables that would have another result now."""
    left_out: tuple[str, ...] = ()
    """A sentence for each record that could not be written into the tables."""

    def lines(self, folder: Path) -> list[str]:
        """Return sentences for the user."""
        found = []
        if self.carried:
            rows, their = ("row is", "its record is") if self.carried == 1 else ("rows are", "their records are")
            found.append(f"{self.carried} {rows} carried over from the tables in {folder}: {their} not here.")
        if self.replaced:
            rows = "row is" if self.replaced == 1 else "rows are"
            found.append(f"{self.replaced} {rows} replaced by the same trials, which ran again after a change.")
        if self.outdated:
            rows = "row is" if self.outdated == 1 else "rows are"
            found.append(
                f"{self.outdated} {rows} from before a change of this program or of a config.json; the sweep that made "
                "them runs them again."
            )
        return found


def write_tables(
    folder: Path,
    records: Sequence[TrialRecord],
    estimates: Mapping[str, Estimate],
    *,
    question: str = "",
    command: str = "",
    current_id: CurrentId = builtin_id,
) -> Written:
    """Write a parquet file for each of `TABLES` into `folder`, each whole or not at all.

    A table of `OPTIONAL_TABLES` exists only if it has rows. The bytes do not depend on the order of `records`.

    Rows of trials that have no record are carried over from the existing tables, and all trials get new labels. A trial
    that was simulated again under another id, because the simulation or its model has changed, is replaced. A record
    that contradicts itself or does not fit the columns is left out.

    Args:
        folder: `<results_dir>/<grid>/`; created if missing.
        records: Every record of the grid.
        estimates: By trial id; trials without one get nulls.
        question: The question of the grid, shown above the report.
        command: The command that repeats the sweep.
        current_id: Returns the id that a simulated trial would have now.

    Raises:
        UsageError: An existing table cannot be read; nothing was written.
        StorageError: Writing a file failed.
    """
    stored = open_tables(folder, required=False)
    stored_runs = stored["runs"].rows() if "runs" in stored else None
    ordered, left_out = _writable(sorted(records, key=lambda record: record.trial_id), estimates, folder)
    written = {record.trial_id for record in ordered}
    others = stored_trials(without(stored_runs, written)) if stored_runs is not None else []
    old = outdated([*map(_as_stored, ordered), *others], current_id)
    ordered = [record for record in ordered if record.trial_id not in old.replaced]
    others = [trial for trial in others if trial.trial_id not in old.replaced]
    carried = _Carried(stored=stored, runs=None, without=frozenset(written | old.replaced))
    if stored_runs is not None:
        carried.runs = without(stored_runs, carried.without)
        if others:
            ordered, carried.runs = _relabelled(ordered, others, carried.runs)
    about = {"question": question, "command": command}
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        _write(folder, name, _portions(name, columns, ordered, estimates, carried, folder), about)
    return Written(
        carried=carried.runs.num_rows if carried.runs is not None else 0,
        replaced=len(old.replaced.intersection(_ids(stored_runs))) if stored_runs is not None else 0,
        outdated=len(old.left),
        left_out=left_out,
    )


@dataclass(kw_only=True)
class _Carried:
    """The tables from before, whose rows are kept unless their trial is written anew."""

    stored: Mapping[str, TableFile]
    runs: pa.Table | None
    """The rows of `runs` that are kept; None if there was no such table."""
    without: frozenset[str]
    """Trials that are written anew or replaced."""

    def ids(self, name: str) -> set[str]:
        """Return the trials of one stored table."""
        return {trial_id for batch in self.stored[name].batches() for trial_id in _ids(batch)}

    def rows(self, name: str, trial_ids: Collection[str]) -> pa.Table:
        """Return the kept rows of these trials."""
        if name == "runs" and self.runs is not None:
            return self.runs.filter(pc.is_in(self.runs["trial_id"], value_set=pa.array(sorted(trial_ids), pa.string())))
        return self.stored[name].rows(trial_ids)


def _portions(
    name: str,
    columns: Sequence[Column],
    records: Sequence[TrialRecord],
    estimates: Mapping[str, Estimate],
    carried: _Carried,
    folder: Path,
) -> Iterator[pa.Table]:
    """Yield the rows of a table in order of their trials, so few at a time that memory does not depend on the sweep."""
    schema = arrow_schema(columns, about={})
    by_id = {record.trial_id: record for record in records}
    kept: set[str] = set()
    if name in carried.stored:
        lost = _without_samples(folder, records) if name == "samples" else frozenset()
        kept = carried.ids(name) - (carried.without - lost)
    trial_ids = sorted(by_id.keys() | kept)
    for start in range(0, len(trial_ids), _TRIALS_AT_ONCE):
        some = trial_ids[start : start + _TRIALS_AT_ONCE]
        here = [by_id[trial_id] for trial_id in some if trial_id in by_id]
        if name == "samples":
            new = read_samples(folder, [record.trial_id for record in here if step_rows(record)])
        else:
            new = _table(name, schema, here, estimates)
        old = kept.intersection(some)
        yield joined(new, carried.rows(name, old) if old else None)


def _ids(table: pa.Table) -> list[str]:
    return [str(trial_id) for trial_id in pc.unique(table["trial_id"]).to_pylist()]


def _as_stored(record: TrialRecord) -> StoredTrial:
    answered = record.outcome.status.answered
    return StoredTrial(trial_id=record.trial_id, spec=record.spec, versions=record.versions, answered=answered)


_ROWS: Mapping[str, Callable[[TrialRecord], list[Row]]] = {
    "phases": phase_rows,
    "breakdown": breakdown_rows,
    "largest": largest_rows,
    "steps": step_rows,
}


def _table(name: str, schema: pa.Schema, records: Sequence[TrialRecord], estimates: Mapping[str, Estimate]) -> pa.Table:
    """Return the rows of any table but `samples`."""
    if name == "shape":
        return shape_table(records, schema)
    if name == "runs":
        rows = [run_row(record, estimates.get(record.trial_id)) for record in records]
    else:
        rows = [row for record in records for row in _ROWS[name](record)]
    return pa.Table.from_pylist(rows, schema=schema)


def _writable(
    records: Sequence[TrialRecord], estimates: Mapping[str, Estimate], folder: Path
) -> tuple[list[TrialRecord], tuple[str, ...]]:
    """Return the records that fit the tables, and a sentence for each of the others."""
    found, left_out = [], []
    for record in records:
        reason = _problem(record, estimates)
        if not reason:
            found.append(record)
            continue
        path = folder / "records" / f"{record.trial_id}.json"
        left_out.append(
            f"trial={record.trial_id}: {record.label} of {record.spec.model} is left out of the tables, because "
            f"{reason}. Move {path} away to remove it."
        )
    return found, tuple(left_out)


def _problem(record: TrialRecord, estimates: Mapping[str, Estimate]) -> str:
    """Return why a record does not fit the tables; empty if it does."""
    try:
        check_consistency(record)
        tables = {"runs": [run_row(record, estimates.get(record.trial_id))]}
        tables |= {name: rows(record) for name, rows in _ROWS.items()}
    except (StorageError, TypeError) as error:
        return str(error).rstrip(".")
    found = (_row_problem(name, rows) for name, rows in tables.items())
    return next(filter(None, found), "") or _shape_problem(record)


def _row_problem(name: str, rows: Sequence[Row]) -> str:
    """Return which value its column cannot hold; empty if there is none."""
    for row in rows:
        for column, value in row.items():
            if isinstance(value, str) and not _is_unicode(value):
                return f"{column} is not valid text"
            if type(value) is int and not -(2**63) <= value < 2**63:
                return f"{column}={value} does not fit in 64 bits"
            least = _LEAST[name].get(column)
            if least is not None and value is not None and not least <= value < math.inf:  # type: ignore[operator]
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


def _relabelled(
    records: Sequence[TrialRecord], others: Sequence[StoredTrial], runs: pa.Table
) -> tuple[list[TrialRecord], pa.Table]:
    """Label records and carried rows together. A row whose keys cannot be read keeps its label."""
    found = labels([*(record.spec for record in records), *(trial.spec for trial in others)])
    named = dict(zip((trial.trial_id for trial in others), found[len(records) :], strict=True))
    rows = zip(runs["trial_id"].to_pylist(), runs["label"].to_pylist(), strict=True)
    column = pa.array([named.get(trial_id, label) for trial_id, label in rows], pa.string())
    place = runs.schema.get_field_index("label")
    return (
        [replace(record, label=label) for record, label in zip(records, found, strict=False)],
        runs.set_column(place, runs.schema.field(place), column),
    )


def _without_samples(folder: Path, records: Sequence[TrialRecord]) -> frozenset[str]:
    """Return the sampled trials whose file of samples is gone: their rows are only in the table."""
    sampled = [record.trial_id for record in records if _sampled(record)]
    return frozenset(trial_id for trial_id in sampled if not read_samples(folder, [trial_id]).num_rows)


def _sampled(record: TrialRecord) -> bool:
    measured = record.outcome.measured
    return measured is not None and measured.sample_period_s is not None


def _write(folder: Path, name: str, portions: Iterable[pa.Table], about: Mapping[str, str]) -> None:
    """Write a table; one that is optional and has no rows is removed instead."""
    schema = arrow_schema({**TABLES, **OPTIONAL_TABLES}[name], about=about)
    sink, rows = io.BytesIO(), 0
    with pq.ParquetWriter(sink, schema) as writer:
        for portion in portions:
            writer.write_table(portion.cast(schema))
            rows += portion.num_rows
    if rows or name in TABLES:
        write_atomically(table_path(folder, name), sink.getvalue())
    else:
        table_path(folder, name).unlink(missing_ok=True)


def read_tables(folder: Path) -> Tables:
    """Read the stored tables of a grid, and check the laws of all of them.

    Raises:
        UsageError: A table is missing, cannot be read, breaks a law, or was written by another version of the schema.
            Carries every fault found.
    """
    files = open_tables(folder, required=True)
    frames = {name: _frame(files[name].rows()) for name in TABLES}
    about = files["runs"].metadata
    return Tables(
        runs=frames["runs"],
        phases=frames["phases"],
        breakdown=frames["breakdown"],
        largest=frames["largest"],
        optional={name: files.get(name) for name in OPTIONAL_TABLES},
        question=about.get(b"question", b"").decode(),
        command=about.get(b"command", b"").decode(),
    )


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get)
    return frame
