"""The parquet tables of a script's folder, assembled from its records."""

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.domain.script import ScriptRecord
from profiler.storage.atomic import write_atomically
from profiler.storage.rows import Row, result_row, rows_by_category, rows_by_phase, rows_by_step, version_row
from profiler.storage.schema import arrow_schema
from profiler.storage.script_schema import SCRIPT_TABLES


def write_script_tables(folder: Path, records: Sequence[ScriptRecord]) -> None:
    """Write a parquet file for each of `SCRIPT_TABLES` into `folder`, each whole or not at all.

    Raises:
        StorageError: Writing a file failed.
    """
    ordered = sorted(records, key=lambda record: record.run_id)
    for name, columns in SCRIPT_TABLES.items():
        rows = [row for record in ordered for row in _ROWS[name](record)]
        table = pa.Table.from_pylist(rows, schema=arrow_schema(columns, about={}))
        sink = io.BytesIO()
        pq.write_table(table, sink)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())


def script_row(record: ScriptRecord) -> Row:
    """Return the row of `scripts` for one run."""
    spec, ending, late = record.spec, record.ending, record.late_events
    return {
        "run_id": record.run_id,
        "script": spec.script,
        "arguments": shlex.join(spec.arguments),
        "launcher": shlex.join(spec.launcher) or None,
        "backend": spec.backend.value,
        "gpu": spec.gpu,
        "steps": spec.steps,
        "num_processes": spec.num_processes,
        "weights": spec.weights.value,
        "prompt_tokens": spec.prompt_tokens,
        "completion_tokens": spec.completion_tokens,
        "alloc_conf": spec.alloc_conf or None,
        "script_sha256": record.script_sha256,
        "substitutes": "; ".join(record.substitutes) or None,
        "exit_code": ending.exit_code if ending else None,
        "ended_by_steps": ending.by_steps if ending else None,
        "late_events_status": late.status.value if late else None,
        "late_events_allocated_bytes": late.allocated_bytes if late else None,
        "late_events_reserved_bytes": late.reserved_bytes if late else None,
        **result_row(record.outcome),
        **version_row(record.versions),
    }


def _with_run(rows_of: Callable[[ScriptRecord], list[Row]]) -> Callable[[ScriptRecord], list[Row]]:
    return lambda record: [{"run_id": record.run_id, **row} for row in rows_of(record)]


def _largest(record: ScriptRecord) -> list[Row]:
    found: list[Row] = []
    for rank, held in enumerate(record.largest, start=1):
        values = asdict(held)
        found.append({"rank": rank, "bytes": values.pop("size_bytes"), **values})
    return found


_ROWS: Mapping[str, Callable[[ScriptRecord], list[Row]]] = {
    "scripts": lambda record: [script_row(record)],
    "script_phases": _with_run(lambda record: rows_by_phase(record.outcome)),
    "script_steps": _with_run(lambda record: rows_by_step(record.outcome)),
    "script_breakdown": _with_run(lambda record: rows_by_category(record.outcome)),
    "script_largest": _with_run(_largest),
}
