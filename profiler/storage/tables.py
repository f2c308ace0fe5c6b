"""Tables of a grid: assembled from records, written atomically, read as pandas frames."""

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from profiler.config.labels import labels
from profiler.domain.outcome import Estimate, TrialRecord
from profiler.storage.atomic import StorageError, write_atomically
from profiler.storage.carried import (
    CurrentId,
    StoredTrial,
    builtin_id,
    joined,
    outdated,
    stored_rows,
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
    shape_rows,
    step_rows,
)
from profiler.storage.samples import read_samples
from profiler.storage.schema import OPTIONAL_TABLES, TABLES, arrow_schema
from profiler.storage.table_files import read_table_file, table_path

__all__ = ["Tables", "Written", "read_tables", "table_path", "write_tables"]

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
    steps: pd.DataFrame
    """Empty if nothing was measured."""
    samples: pd.DataFrame
    """Empty if nothing was measured."""
    shape: pd.DataFrame
    """Empty if nothing was simulated."""
    question: str
    """The question of the grid; may be empty."""
    command: str
    """The command that repeats the sweep; may be empty."""


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
    stored = stored_rows(folder)
    ordered, left_out = _writable(sorted(records, key=lambda record: record.trial_id), estimates, folder)
    written = {record.trial_id for record in ordered}
    others = stored_trials(without(stored["runs"], written)) if "runs" in stored else []
    old = outdated([*map(_as_stored, ordered), *others], current_id)
    ordered = [record for record in ordered if record.trial_id not in old.replaced]
    others = [trial for trial in others if trial.trial_id not in old.replaced]
    carried = {name: without(table, written | old.replaced) for name, table in stored.items()}
    if others:
        ordered, carried["runs"] = _relabelled(ordered, others, carried["runs"])
    about = {"question": question, "command": command}
    rows = _rows(ordered, estimates)
    tables = {
        name: pa.Table.from_pylist(rows[name], schema=arrow_schema(columns, about=about))
        for name, columns in {**TABLES, **OPTIONAL_TABLES}.items()
        if name in rows
    }
    samples = read_samples(folder, [record.trial_id for record in ordered if step_rows(record)])
    tables["samples"] = samples.replace_schema_metadata(arrow_schema(OPTIONAL_TABLES["samples"], about=about).metadata)
    if "samples" in stored:
        carried["samples"] = _carried_samples(stored["samples"], samples, ordered, written | old.replaced)
    for name, table in tables.items():
        whole = joined(table, [carried[name]] if name in carried else [])
        if whole.num_rows or name in TABLES:
            _write(folder, name, whole)
        else:
            table_path(folder, name).unlink(missing_ok=True)
    return Written(
        carried=carried["runs"].num_rows if "runs" in carried else 0,
        replaced=len(old.replaced.intersection(stored["runs"]["trial_id"].to_pylist())) if "runs" in stored else 0,
        outdated=len(old.left),
        left_out=left_out,
    )


def _as_stored(record: TrialRecord) -> StoredTrial:
    answered = record.outcome.status.answered
    return StoredTrial(trial_id=record.trial_id, spec=record.spec, versions=record.versions, answered=answered)


def _rows(records: Sequence[TrialRecord], estimates: Mapping[str, Estimate]) -> Mapping[str, list[Row]]:
    """Return the rows of every table except `samples`."""
    return {
        "runs": [run_row(record, estimates.get(record.trial_id)) for record in records],
        "phases": [row for record in records for row in phase_rows(record)],
        "breakdown": [row for record in records for row in breakdown_rows(record)],
        "largest": [row for record in records for row in largest_rows(record)],
        "steps": [row for record in records for row in step_rows(record)],
        "shape": [row for record in records for row in shape_rows(record)],
    }


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
        rows = _rows([record], estimates)
    except (StorageError, TypeError) as error:
        return str(error).rstrip(".")
    values = ((name, value) for table in rows.values() for row in table for name, value in row.items())
    for name, value in values:
        if type(value) is int and not -(2**63) <= value < 2**63:
            return f"{name}={value} does not fit in 64 bits"
        if isinstance(value, str) and not _is_unicode(value):
            return f"{name} is not valid text"
    return ""


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


def _carried_samples(
    stored: pa.Table, read: pa.Table, records: Sequence[TrialRecord], named: Collection[str]
) -> pa.Table:
    """Return stored samples of trials without a record, and of trials whose file of samples is gone."""
    here = set(read["trial_id"].to_pylist())
    lost = {record.trial_id for record in records if _sampled(record)} - here
    return without(stored, set(named) - lost)


def _sampled(record: TrialRecord) -> bool:
    measured = record.outcome.measured
    return measured is not None and measured.sample_period_s is not None


def _write(folder: Path, name: str, table: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    write_atomically(table_path(folder, name), sink.getvalue())


def read_tables(folder: Path) -> Tables:
    """Read the stored tables of a grid.

    Raises:
        UsageError: A table is missing, cannot be read, or was written by another version of the schema.
    """
    read = {name: read_table_file(table_path(folder, name), columns) for name, columns in TABLES.items()}
    for name, columns in OPTIONAL_TABLES.items():
        path = table_path(folder, name)
        read[name] = read_table_file(path, columns) if path.exists() else arrow_schema(columns, about={}).empty_table()
    frames = {name: table.to_pandas(types_mapper=_PANDAS.get) for name, table in read.items()}
    about = read["runs"].schema.metadata
    return Tables(
        runs=frames["runs"],
        phases=frames["phases"],
        breakdown=frames["breakdown"],
        largest=frames["largest"],
        steps=frames["steps"],
        samples=frames["samples"],
        shape=frames["shape"],
        question=about.get(b"question", b"").decode(),
        command=about.get(b"command", b"").decode(),
    )
