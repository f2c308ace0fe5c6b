"""The parquet tables of monitored runs, assembled from their records and time series."""

import io
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.monitored import MonitoredRun
from profiler.domain.outcome import Outcome
from profiler.storage.atomic import write_atomically
from profiler.storage.monitored_samples import GPU_SAMPLES, HOST_SAMPLES, read_time_series
from profiler.storage.monitored_schema import MONITORED_TABLES
from profiler.storage.rows import Row, result_row, rows_by_phase, rows_by_step, version_row
from profiler.storage.schema import arrow_schema


def write_monitored_tables(folder: Path, records: Sequence[MonitoredRun]) -> None:
    """Write a parquet file for each of `MONITORED_TABLES` into `folder`, each whole or not at all.

    Raises:
        StorageError: Writing a file failed.
    """
    ordered = sorted(records, key=lambda record: record.run_id)
    names = [record.run_id for record in ordered]
    tables = {
        "monitored": _table("monitored", [_row(record) for record in ordered]),
        "monitored_gpus": _table("monitored_gpus", [row for record in ordered for row in _gpus(record)]),
        "monitored_phases": _table("monitored_phases", _of_runs(ordered, rows_by_phase)),
        "monitored_steps": _table("monitored_steps", _of_runs(ordered, rows_by_step)),
        "monitored_samples": read_time_series(folder, GPU_SAMPLES, names),
        "monitored_host": read_time_series(folder, HOST_SAMPLES, names),
    }
    for name, table in tables.items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(MONITORED_TABLES[name], about={}))


def _row(record: MonitoredRun) -> Row:
    estimate = record.estimate
    return {
        "run_id": record.run_id,
        "watcher": record.watcher.value,
        "command": shlex.join(record.command),
        "started_at": record.started_at,
        "exit_code": record.exit_code,
        "host_tree_peak_bytes": record.host.tree_bytes,
        "host_processes": record.host.processes,
        "host_used_peak_bytes": record.host.used_bytes,
        "host_total_bytes": record.host.total_bytes,
        "estimated_peak_bytes": estimate.peak_bytes if estimate else None,
        "estimated_device_bytes": estimate.device_bytes if estimate else None,
        "estimated_phase": estimate.phase if estimate else None,
        **result_row(record.outcome),
        **version_row(record.versions),
    }


def _gpus(record: MonitoredRun) -> list[Row]:
    found: list[Row] = []
    for gpu in record.gpus:
        values = asdict(gpu)
        index = values.pop("index")
        found.append({"run_id": record.run_id, "gpu": index, **values, "problem": gpu.problem or None})
    return found


def _of_runs(records: Sequence[MonitoredRun], rows_of: Callable[[Outcome], list[Row]]) -> list[Row]:
    return [{"run_id": record.run_id, **row} for record in records for row in rows_of(record.outcome)]
