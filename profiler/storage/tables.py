"""The tables of a grid: assembled from records, written atomically, read back as pandas frames."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.errors import Fault, UsageError
from profiler.domain.outcome import Estimate, TrialRecord
from profiler.storage.atomic import write_atomically
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
from profiler.storage.schema import OPTIONAL_TABLES, SCHEMA_VERSION, TABLES, Column, arrow_schema

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


def write_tables(
    folder: Path,
    records: Sequence[TrialRecord],
    estimates: Mapping[str, Estimate],
    *,
    question: str = "",
    command: str = "",
) -> None:
    """Write a parquet file for each of `TABLES` into `folder`, each whole or not at all.

    Those of `OPTIONAL_TABLES` are there if they have rows. The same records in any order give the same bytes.

    Args:
        folder: `<results_dir>/<grid>/`; made where it is missing.
        records: Every record of the grid.
        estimates: By trial id; a trial without one gets nulls.
        question: What the grid asks, shown above the report.
        command: The command that repeats the sweep.

    Raises:
        StorageError: A record contradicts itself, or the disk did not take a file.
    """
    ordered = sorted(records, key=lambda record: record.trial_id)
    for record in ordered:
        check_laws(record)
    rows: Mapping[str, Iterable[Row]] = {
        "runs": [run_row(record, estimates.get(record.trial_id)) for record in ordered],
        "phases": [row for record in ordered for row in phase_rows(record)],
        "breakdown": [row for record in ordered for row in breakdown_rows(record)],
        "largest": [row for record in ordered for row in largest_rows(record)],
    }
    about = {"question": question, "command": command}
    for name, columns in TABLES.items():
        _write(folder, name, pa.Table.from_pylist(list(rows[name]), schema=arrow_schema(columns, about=about)))
    shape = [row for record in ordered for row in shape_rows(record)]
    steps = [row for record in ordered for row in step_rows(record)]
    samples = read_samples(folder, [record.trial_id for record in ordered if record.outcome.step_peaks])
    optional = {
        name: pa.Table.from_pylist(found, schema=arrow_schema(OPTIONAL_TABLES[name], about=about))
        for name, found in (("steps", steps), ("shape", shape))
    }
    optional["samples"] = samples.replace_schema_metadata(optional["steps"].schema.metadata)
    for name, table in optional.items():
        if table.num_rows:
            _write(folder, name, table)
        else:
            table_path(folder, name).unlink(missing_ok=True)


def _write(folder: Path, name: str, table: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    write_atomically(table_path(folder, name), sink.getvalue())


def read_tables(folder: Path) -> Tables:
    """The stored tables of a grid.

    Raises:
        UsageError: A table is missing, is not parquet, or was written by another version of the schema.
    """
    read = {name: _read(table_path(folder, name), columns) for name, columns in TABLES.items()}
    for name, columns in OPTIONAL_TABLES.items():
        path = table_path(folder, name)
        read[name] = _read(path, columns) if path.exists() else arrow_schema(columns, about={}).empty_table()
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


def table_path(folder: Path, name: str) -> Path:
    """Where the table of this name (a key of `TABLES` or `OPTIONAL_TABLES`) is, or would be."""
    return folder / f"{name}.parquet"


def _read(path: Path, columns: Sequence[Column]) -> pa.Table:
    if not path.is_file():
        raise _fault(path, "no such file", "Run the grid first: python -m profiler.sweep +grid=<name>.")
    again = "Delete it and run the same sweep again: it is assembled anew from the stored records."
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _fault(path, "this is no parquet file, or a damaged one", again) from error
    found = (table.schema.metadata or {}).get(b"schema_version", b"none").decode()
    if found != str(SCHEMA_VERSION):
        raise _fault(path, f"its schema version is {found}, this program reads {SCHEMA_VERSION}", again)
    names = [column.name for column in columns]
    present = [name for name in names if name in table.schema.names]
    missing = [column for column in columns if column.name not in present]
    if table.schema.names != present or not all(column.null for column in missing):
        odd = sorted(set(names) ^ set(table.schema.names))
        raise _fault(path, f"columns missing or unknown: {', '.join(odd) or 'their order'}", again)
    # Written before these columns were thought of: not known there, which is what null means.
    for column in missing:
        table = table.append_column(column.name, pa.nulls(table.num_rows, column.kind))
    return table.select(names)


def _fault(path: Path, wrong: str, way_out: str) -> UsageError:
    return UsageError([Fault(key=path.stem, found=str(path), allowed=wrong, way_out=way_out)])
