"""Rows of new tables on the disk, until all records are read, and the locks of their folder.

A sweep can have 100,000 records, whose rows take more memory than a machine has to spare. Labels and replaced trials
are known only when all of them are read. A trial has hundreds of rows of `shape`, which is made column by column.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.runs.step_shape import CATEGORIES, PHASES, StepShape
from profiler.storage.files.atomic import temporary_next_to, write_errors
from profiler.storage.files.trial_files import Lock, LockError, wait_for_lock
from profiler.storage.tables.rows import ROWS, RUNS, Row
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES, arrow_schema
from profiler.storage.tables.table_files import TableFile, open_tables, table_path

TRIALS_AT_ONCE = 500
"""Trials of one part of a table."""

SHAPE = "shape"

_SPOOLED = (RUNS, *ROWS, SHAPE)


class Spool:
    """Tables that are being made, each in a temporary file next to its place; a context manager."""

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        """Write nothing yet.

        Args:
            folder: The folder of the tables.
            about: Goes into the files.
        """
        self._folder = folder
        self._schemas = {name: arrow_schema({**TABLES, **OPTIONAL_TABLES}[name], about=about) for name in _SPOOLED}
        self._counts = dict.fromkeys(_SPOOLED, 0)
        self._records: list[TrialRecord] = []
        self._rows: dict[str, list[Row]] = {name: [] for name in (RUNS, *ROWS)}
        self._stack = ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._paths: dict[str, Path] = {}

    def __enter__(self) -> Self:
        for name, schema in self._schemas.items():
            path = self._stack.enter_context(temporary_next_to(table_path(self._folder, name)))
            self._paths[name] = path
            with write_errors(path):
                self._writers[name] = pq.ParquetWriter(path, schema)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            with suppress(OSError, pa.ArrowException):
                writer.close()
        self._stack.__exit__(kind, error, traceback)

    def add(self, record: TrialRecord, rows: Mapping[str, Sequence[Row]]) -> None:
        """Add the rows of a record. Records come in the order of their trials."""
        self._records.append(record)
        for name, some in rows.items():
            self._rows[name].extend(some)
        if len(self._records) == TRIALS_AT_ONCE:
            self._flush()

    def finish(self) -> None:
        """Write what is left. Afterwards rows can be read."""
        if self._records:
            self._flush()
        for name, writer in self._writers.items():
            with write_errors(table_path(self._folder, name)):
                writer.close()

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return self._paths[name]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._counts[name]

    def rows(self, name: str) -> "RowsInOrder":
        """Return the rows of a table, to be read once, from the first trial to the last."""
        return RowsInOrder(self._parts(name), self._schemas[name])

    def _parts(self, name: str) -> Iterator[pa.Table]:
        with pa.OSFile(str(self._paths[name])) as source:
            file = pq.ParquetFile(source)
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)

    def _flush(self) -> None:
        for name, schema in self._schemas.items():
            rows = self._rows.get(name)  # none of the shape
            table = shape_table(self._records, schema) if rows is None else pa.Table.from_pylist(rows, schema=schema)
            with write_errors(table_path(self._folder, name)):
                self._writers[name].write_table(table)
            self._counts[name] += table.num_rows
        self._records.clear()
        for some in self._rows.values():
            some.clear()


class RowsInOrder:
    """Rows that are sorted by trial, of which each call takes the next."""

    def __init__(self, parts: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._parts = parts
        self._left = schema.empty_table()
        self._is_at_end = False

    def upto(self, last: str) -> pa.Table:
        """Return the next rows, up to those of trial `last`."""
        while not self._is_at_end and not self._has_more_than(last):
            part = next(self._parts, None)
            if part is None:
                self._is_at_end = True
            else:
                self._left = pa.concat_tables([self._left, part.cast(self._left.schema)])
        # Rows are in order, so that those that are taken come first.
        taken = pc.sum(pc.less_equal(self._left["trial_id"], last)).as_py() or 0
        found, self._left = self._left.slice(0, taken), self._left.slice(taken)
        return found.combine_chunks()

    def _has_more_than(self, last: str) -> bool:
        return self._left.num_rows > 0 and str(self._left["trial_id"][-1].as_py()) > last


_PHASES, _CATEGORIES = (pa.array([*map(str, words)], pa.string()) for words in (PHASES, CATEGORIES))


def shape_table(records: Sequence[TrialRecord], schema: pa.Schema) -> pa.Table:
    """Return the rows of `records`, in order.

    Args:
        records: The trials; those that were not simulated have no rows.
        schema: The schema of the table.
    """
    known = [(each.trial_id, each.outcome.unlimited.step_shape) for each in records if each.outcome.unlimited]
    shapes = [(name, shape if isinstance(shape, StepShape) else StepShape.of(shape)) for name, shape in known]
    tables = [_shape_rows(trial_id, shape, schema) for trial_id, shape in shapes]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def _shape_rows(trial_id: str, shape: StepShape, schema: pa.Schema) -> pa.Table:
    lengths = np.frombuffer(shape.lengths, dtype=np.uint8)
    columns = {
        "trial_id": pa.repeat(trial_id, len(shape.sizes_bytes)),
        "instant": pa.array(np.repeat(np.arange(1, len(shape) + 1), lengths), pa.int64()),
        "phase": _PHASES.take(pa.array(np.repeat(np.frombuffer(shape.phases, dtype=np.uint8), lengths))),
        "category": _CATEGORIES.take(pa.array(np.frombuffer(shape.categories, dtype=np.uint8))),
        "bytes": pa.array(np.frombuffer(shape.sizes_bytes, dtype=np.int64)),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


_LOCK = "tables.lock"
"""Held from the first record that is read: for minutes, if there are many."""

_REPLACING_LOCK = "replacing.lock"
"""Held while files are opened or get their names, so that a reader waits for a moment only."""


def writing_tables(folder: Path) -> Lock:
    """Hold the tables of a folder, which is created if missing, from the first record that is read.

    Otherwise a sweep could replace the tables of another one by its own, which know fewer records.

    Raises:
        LockError: The folder cannot be written, or its file system has no locks.
    """
    return wait_for_lock(folder / _LOCK, f"writes the tables of {folder}")


def replacing_tables(folder: Path) -> Lock:
    """Keep readers out of a folder whose tables are written, while the files get their names.

    Raises:
        LockError: The folder cannot be written, or its file system has no locks.
    """
    return wait_for_lock(folder / _REPLACING_LOCK, f"opens the tables of {folder}")


def tables_to_read(folder: Path) -> Mapping[str, TableFile]:
    """Open the tables of a folder while no sweep replaces them: all of them are of the same sweep.

    A folder that cannot be locked, such as one that may only be read, is opened as it is.

    Raises:
        UsageError: Some of them are missing or cannot be used; carries every fault found.
    """
    with ExitStack() as held:
        with suppress(LockError):
            if folder.is_dir():
                held.enter_context(wait_for_lock(folder / _REPLACING_LOCK, f"replaces the tables of {folder}"))
        return open_tables(folder, required=True)
