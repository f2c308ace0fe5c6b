"""Time series of monitored runs: the samples of the GPUs and of the host, one file each per run."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.monitored import HostSample
from profiler.domain.outcome import Sample
from profiler.domain.units import GIB
from profiler.storage.arrow_buffer import arrow_buffer
from profiler.storage.atomic import write_atomically
from profiler.storage.foreign_files import read_bytes
from profiler.storage.monitored_schema import HOST, SAMPLES
from profiler.storage.rows import Row, sample_values
from profiler.storage.schema import Column, arrow_schema

_MOST_BYTES = 1 * GIB

GPU_SAMPLES, HOST_SAMPLES = "samples", "host"
"""Folders of the time series."""

_COLUMNS: Mapping[str, Sequence[Column]] = {GPU_SAMPLES: SAMPLES, HOST_SAMPLES: HOST}


def write_time_series(
    folder: Path, run_id: str, gpus: Mapping[int, Sequence[Sample]], host: Sequence[HostSample]
) -> None:
    """Store the samples of a run, by the index of the GPU.

    Raises:
        StorageError: The disk did not take a file.
    """
    samples = [{"run_id": run_id, "gpu": gpu, **sample_values(one)} for gpu, found in gpus.items() for one in found]
    _write(folder, GPU_SAMPLES, run_id, samples)
    _write(folder, HOST_SAMPLES, run_id, [{"run_id": run_id, **vars(one)} for one in host])


def _write(folder: Path, name: str, run_id: str, rows: Sequence[Row]) -> None:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=arrow_schema(_COLUMNS[name], about={}))
    pq.write_table(table, sink, compression="zstd")
    write_atomically(folder / name / f"{run_id}.parquet", sink.getvalue())


def read_time_series(folder: Path, name: str, run_ids: Iterable[str]) -> pa.Table:
    """Return the samples of these runs in order. Missing and damaged files are skipped; no peak depends on them.

    Args:
        folder: Of the runs.
        name: `GPU_SAMPLES` or `HOST_SAMPLES`.
        run_ids: The runs.
    """
    schema = arrow_schema(_COLUMNS[name], about={})
    found = [schema.empty_table()]
    for run_id in run_ids:
        try:
            content = read_bytes(folder / name / f"{run_id}.parquet", most_bytes=_MOST_BYTES)
            table = pq.read_table(pa.BufferReader(arrow_buffer(content)))
        except (pa.ArrowException, OSError, ValueError):
            continue
        if table.schema.equals(schema):
            found.append(table.replace_schema_metadata(schema.metadata))
    return pa.concat_tables(found)
