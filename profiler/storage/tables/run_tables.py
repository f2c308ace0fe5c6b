"""The tables of runs of scripts and of monitored runs, and time series: parquet files.

The parquet tables of a folder of scripts or of monitored runs, assembled from all of its records at once.

Those of a sweep have up to 100,000 records, and rows without records: `profiler.storage.sweep_tables` assembles them.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.memory import GIB
from profiler.domain.runs.other_runs import HostSample, MonitoredRun, ScriptRecord
from profiler.domain.runs.readings import Sample
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.tables.rows import (
    Row,
    breakdown_rows,
    gpu_rows,
    held_rows,
    phase_rows,
    record_row,
    row_of,
    step_rows,
)
from profiler.storage.tables.schema import MONITORED_TABLES, SAMPLES, SCRIPT_TABLES, Column, arrow_buffer, arrow_schema

_MOST_BYTES = 1 * GIB


@dataclass(frozen=True, kw_only=True)
class Series:
    """One kind of time series."""

    folder: str
    """Name of the folder of its files."""
    columns: Sequence[Column]

    def path(self, folder: Path, name: str) -> Path:
        """Return the path of the samples of a run in a folder of results, whether it exists or not."""
        return folder / self.folder / f"{name}.parquet"

    def write(self, folder: Path, name: str, rows: Sequence[Row]) -> None:
        """Store the samples of a run, replacing earlier ones.

        Raises:
            StorageError: The disk did not take the file.
        """
        sink = io.BytesIO()
        table = pa.Table.from_pylist(list(rows), schema=arrow_schema(self.columns, about={}))
        pq.write_table(table, sink, compression="zstd")
        write_atomically(self.path(folder, name), sink.getvalue())

    def read(self, folder: Path, names: Iterable[str]) -> pa.Table:
        """Return the samples of these runs in order.

        Missing and damaged files are skipped; no peak depends on them.
        """
        schema = arrow_schema(self.columns, about={})
        found = [schema.empty_table()]
        for name in names:
            try:
                content = read_bytes(self.path(folder, name), most_bytes=_MOST_BYTES)
                table = pq.read_table(pa.BufferReader(arrow_buffer(content)))
            except (pa.ArrowException, OSError, ValueError):
                continue
            if table.schema.equals(schema):
                found.append(table.replace_schema_metadata(schema.metadata))
        return pa.concat_tables(found)


TRIAL_SAMPLES = Series(folder="samples", columns=SAMPLES)
GPU_SAMPLES = Series(folder="samples", columns=MONITORED_TABLES["monitored_samples"])
HOST_SAMPLES = Series(folder="host", columns=MONITORED_TABLES["monitored_host"])


def samples_path(folder: Path, trial_id: str) -> Path:
    """Return the path of a trial's samples in a grid's folder, whether it exists or not."""
    return TRIAL_SAMPLES.path(folder, trial_id)


def write_samples(folder: Path, trial_id: str, samples: Sequence[Sample]) -> None:
    """Store the samples of a trial, replacing earlier ones.

    Raises:
        StorageError: The disk did not take the file.
    """
    TRIAL_SAMPLES.write(folder, trial_id, [{"trial_id": trial_id, **row_of(each)} for each in samples])


def read_samples(folder: Path, trial_ids: Iterable[str]) -> pa.Table:
    """Return the samples of these trials in order. Missing and damaged files are skipped; no peak depends on them."""
    return TRIAL_SAMPLES.read(folder, trial_ids)


def write_time_series(
    folder: Path, run_id: str, gpus: Mapping[int, Sequence[Sample]], host: Sequence[HostSample]
) -> None:
    """Store the samples of a monitored run, by the index of the GPU.

    Raises:
        StorageError: The disk did not take a file.
    """
    rows = [{"run_id": run_id, "gpu": gpu, **row_of(each)} for gpu, found in gpus.items() for each in found]
    GPU_SAMPLES.write(folder, run_id, rows)
    HOST_SAMPLES.write(folder, run_id, [{"run_id": run_id, **row_of(each)} for each in host])


Kind = TypeVar("Kind", ScriptRecord, MonitoredRun)

_Rows = Callable[[Kind], list[Row]]

_SCRIPT_ROWS: Mapping[str, _Rows[ScriptRecord]] = {
    "scripts": lambda record: [record_row(record)],
    "script_phases": phase_rows,
    "script_steps": step_rows,
    "script_breakdown": breakdown_rows,
    "script_largest": held_rows,
}
_MONITORED_ROWS: Mapping[str, _Rows[MonitoredRun]] = {
    "monitored": lambda record: [record_row(record)],
    "monitored_gpus": gpu_rows,
    "monitored_phases": phase_rows,
    "monitored_steps": step_rows,
}
_MONITORED_SERIES: Mapping[str, Series] = {"monitored_samples": GPU_SAMPLES, "monitored_host": HOST_SAMPLES}


def write_script_tables(folder: Path, records: Sequence[ScriptRecord]) -> None:
    """Write a parquet file for each of `SCRIPT_TABLES` into `folder`, each whole or not at all.

    Raises:
        StorageError: Writing a file failed.
    """
    _write(folder, _tables(records, _SCRIPT_ROWS, SCRIPT_TABLES))


def write_monitored_tables(folder: Path, records: Sequence[MonitoredRun]) -> None:
    """Write a parquet file for each of `MONITORED_TABLES` into `folder`, each whole or not at all.

    Raises:
        StorageError: Writing a file failed.
    """
    names = sorted(record.run_id for record in records)
    series = {name: each.read(folder, names) for name, each in _MONITORED_SERIES.items()}
    _write(folder, {**_tables(records, _MONITORED_ROWS, MONITORED_TABLES), **series})


def _tables(
    records: Sequence[Kind], rows_of: Mapping[str, _Rows[Kind]], columns: Mapping[str, tuple[Column, ...]]
) -> dict[str, pa.Table]:
    ordered = sorted(records, key=lambda record: record.run_id)
    return {
        name: pa.Table.from_pylist(
            [row for record in ordered for row in rows(record)], schema=arrow_schema(columns[name], about={})
        )
        for name, rows in rows_of.items()
    }


def _write(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    for name, table in tables.items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())
