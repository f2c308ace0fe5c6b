"""Time series of measured trials: one parquet file per trial, joined into `samples.parquet`."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.outcome import Sample
from profiler.domain.units import GIB
from profiler.storage.arrow_buffer import arrow_buffer
from profiler.storage.atomic import write_atomically
from profiler.storage.foreign_files import read_bytes
from profiler.storage.rows import sample_rows
from profiler.storage.schema import SAMPLES, arrow_schema

_MOST_BYTES = 1 * GIB


def samples_path(folder: Path, trial_id: str) -> Path:
    """Return the path of a trial's samples in a grid's folder, whether it exists or not."""
    return folder / "samples" / f"{trial_id}.parquet"


def write_samples(folder: Path, trial_id: str, samples: Sequence[Sample]) -> None:
    """Store the samples of a trial, replacing earlier ones.

    Raises:
        StorageError: The disk did not take the file.
    """
    sink = io.BytesIO()
    schema = arrow_schema(SAMPLES, about={})
    pq.write_table(pa.Table.from_pylist(sample_rows(trial_id, samples), schema=schema), sink, compression="zstd")
    write_atomically(samples_path(folder, trial_id), sink.getvalue())


def read_samples(folder: Path, trial_ids: Iterable[str]) -> pa.Table:
    """Return the samples of these trials in order. Missing and damaged files are skipped; no peak depends on them."""
    schema = arrow_schema(SAMPLES, about={})
    found = [schema.empty_table()]
    for trial_id in trial_ids:
        try:
            content = read_bytes(samples_path(folder, trial_id), most_bytes=_MOST_BYTES)
            table = pq.read_table(pa.BufferReader(arrow_buffer(content)))
        except (pa.ArrowException, OSError, ValueError):
            continue
        if table.schema.equals(schema):
            found.append(table.replace_schema_metadata(schema.metadata))
    return pa.concat_tables(found)
