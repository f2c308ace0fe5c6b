"""Time series of measured trials and of monitored runs: one parquet file per run, joined into one table."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.runs.monitored import HostSample
from profiler.domain.runs.readings import Sample
from profiler.domain.units import GIB
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.tables.arrow_buffer import arrow_buffer
from profiler.storage.tables.rows import Row, row_of
from profiler.storage.tables.schema import MONITORED_TABLES, SAMPLES, Column, arrow_schema

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
