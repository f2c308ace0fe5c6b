"""The parquet tables of a folder of scripts or of monitored runs, assembled from all of its records at once.

Those of a sweep have up to 100,000 records, and rows without records: `profiler.storage.sweep_tables` assembles them.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.runs.monitored import MonitoredRun
from profiler.domain.runs.script import ScriptRecord
from profiler.storage.files.atomic import write_atomically
from profiler.storage.tables.rows import Row, breakdown_rows, gpu_rows, held_rows, phase_rows, record_row, step_rows
from profiler.storage.tables.samples import GPU_SAMPLES, HOST_SAMPLES, Series
from profiler.storage.tables.schema import MONITORED_TABLES, SCRIPT_TABLES, Column, arrow_schema

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
