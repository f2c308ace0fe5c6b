"""The tables of a grid: assembled from records, written atomically, read back as pandas frames."""

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
    check_laws,
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
    # pandas' nullable types: an integer column with a null stays one of integers.
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What is stored of one grid; columns as `profiler.storage.schema` documents them."""

    runs: pd.DataFrame
    phases: pd.DataFrame
    breakdown: pd.DataFrame
    largest: pd.DataFrame
    steps: pd.DataFrame
    """Empty where nothing was measured."""
    samples: pd.DataFrame
    """Empty where nothing was measured."""
    shape: pd.DataFrame
    """Empty where nothing was simulated."""
    question: str
    """What the grid asks; empty if nobody said."""
    command: str
    """The command that repeats the sweep; empty if nobody said."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `write_tables` did with rows that are not simply those of the records."""

    carried: int = 0
    """Trials without a record in the folder, whose rows were taken over from the tables before."""
    replaced: int = 0
    """Simulated trials whose rows gave way to those of the same trial, simulated again after a change."""
    outdated: int = 0
    """Simulated trials in the tables that would find something else now."""
    left_out: tuple[str, ...] = ()
    """A sentence for each record that could not be written into the tables."""

    def lines(self, folder: Path) -> list[str]:
        """What to tell of it."""
        found = []
        if self.carried:
            rows, their = ("row is", "its record is") if self.carried == 1 else ("rows are", "their records are")
            found.append(f"{self.carried} {rows} carried over from the tables in {folder}: {their} not here.")
        if self.replaced:
            rows = "simulated row is" if self.replaced == 1 else "simulated rows are"
            found.append(f"{self.replaced} {rows} replaced by the same trials, simulated again after a change.")
        if self.outdated:
            rows = "simulated row is" if self.outdated == 1 else "simulated rows are"
            found.append(
                f"{self.outdated} {rows} from before a change of the simulation or of a config.json; the sweep that "
                "made them simulates them again."
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

    Those of `OPTIONAL_TABLES` are there if they have rows. The same records in any order give the same bytes.

    Rows of trials that are in the tables already and have no record are carried over; all are then labelled among each
    other. A simulated trial that was simulated again under another name, because the simulation or its model has
    changed, is replaced. A record that contradicts itself or does not fit the columns is left out.

    Args:
        folder: `<results_dir>/<grid>/`; made where it is missing.
        records: Every record of the grid.
        estimates: By trial id; a trial without one gets nulls.
        question: What the grid asks, shown above the report.
        command: The command that repeats the sweep.
        current_id: The present name of a simulated trial.

    Raises:
        UsageError: A table that is there cannot be read; nothing was written.
        StorageError: The disk did not take a file.
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
    """The rows of every table but `samples`."""
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
    """The records that the tables can take, and a sentence for each other."""
    found, left_out = [], []
    for record in records:
        reason = _problem(record, estimates)
        if not reason:
            found.append(record)
            continue
        path = folder / "records" / f"{record.trial_id}.json"
        left_out.append(
            f"trial={record.trial_id}: {record.label} of {record.spec.model} is left out of the tables, because "
            f"{reason}. Move {path} away to be rid of it."
        )
    return found, tuple(left_out)


def _problem(record: TrialRecord, estimates: Mapping[str, Estimate]) -> str:
    """Why the tables cannot take a record; empty if they can."""
    try:
        check_laws(record)
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
    """Whether UTF-8 has the text; half a surrogate pair it has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _relabelled(
    records: Sequence[TrialRecord], others: Sequence[StoredTrial], runs: pa.Table
) -> tuple[list[TrialRecord], pa.Table]:
    """Records and carried rows, labelled among each other. A row whose keys cannot be read keeps its label."""
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
    """Samples of trials without a record, and of those whose own file of samples is not here any more."""
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
    """The stored tables of a grid.

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
