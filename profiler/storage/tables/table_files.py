"""One table of a grid as a file: its path, its rows, and the fault if it cannot be used."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import GIB
from profiler.storage.files.foreign_files import open_regular, read_bytes
from profiler.storage.tables.laws import Laws, Trials
from profiler.storage.tables.schema import OPTIONAL_TABLES, SCHEMA_VERSION, TABLES, Column, arrow_buffer, arrow_schema

_BATCH_ROWS = 200_000

_DELETE = "Delete it and run the same sweep again: it is assembled anew from the stored records."
_ONLY_COPY = (
    "Its trials may have no records here, so it may be the only copy: restore it from a backup or with git, or move it "
    "away."
)
_MOST_BYTES = 8 * GIB
_UPDATE = "Update this program to read it; nothing was changed."


def table_path(folder: Path, name: str) -> Path:
    """Return the path of a table; `name` is a key of `TABLES` or `OPTIONAL_TABLES`."""
    return folder / f"{name}.parquet"


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """The file of a table, with the columns and the schema version of this program; its rows are not read yet."""

    path: Path
    columns: Sequence[Column]
    content: pa.NativeFile
    """The open file: a table can have hundreds of megabytes, and another sweep may replace it meanwhile."""

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """What `arrow_schema` wrote with the table."""
        return pq.read_schema(self.content).metadata or {}

    def rows(self, trial_ids: Collection[str] | None = None) -> pa.Table:
        """Return the rows of these trials, in the order of the file; all rows if None.

        Raises:
            UsageError: The file is damaged.
        """
        with _damage(self.path):
            if trial_ids is None:
                return self._complete(pq.read_table(self.content))
            found = [self._complete(part) for part in self._parts_of(sorted(trial_ids))]
        return pa.concat_tables(found) if found else arrow_schema(self.columns, about={}).empty_table()

    def _parts_of(self, trial_ids: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some trials, which are sorted, in parts; other rows are in memory only one batch at a time.

        A group of rows is skipped if its smallest and its largest trial say that it has none of them.
        """
        file = pq.ParquetFile(self.content)
        wanted = pa.array(trial_ids, pa.string())
        groups = [number for number in range(file.num_row_groups) if _may_have(file, number, trial_ids)]
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups):
            rows = pa.Table.from_batches([batch])
            own = rows.filter(pc.is_in(rows["trial_id"], value_set=wanted))
            if own.num_rows:
                yield own

    def trial_ids(self) -> set[str]:
        """Return the trials that have rows.

        Raises:
            UsageError: The file is damaged.
        """
        with _damage(self.path):
            file = pq.ParquetFile(self.content, read_dictionary=["trial_id"])
            batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=["trial_id"])
            return {str(name) for batch in batches for name in pc.unique(batch["trial_id"]).to_pylist()}

    def batches(self) -> Iterator[pa.Table]:
        """Yield the rows in parts; the texts of each part are numbered (dictionaries of arrow).

        Raises:
            UsageError: The file is damaged.
        """
        with _damage(self.path):
            present = pq.read_schema(self.content).names
            texts = [each.name for each in self.columns if pa.types.is_string(each.kind) and each.name in present]
            file = pq.ParquetFile(self.content, read_dictionary=texts)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                yield self._complete(pa.Table.from_batches([batch]))

    def check(self, trials: Trials | None) -> None:
        """Check the laws of all rows.

        Args:
            trials: The trials of the folder; None for `runs` itself.

        Raises:
            UsageError: A row breaks a law, or the file is damaged.
        """
        laws = self._checked(trials, in_order=True)
        if laws.is_out_of_order:
            laws = self._checked(trials, in_order=False)
        if laws.problem:
            raise _fault(self.path, laws.problem, _if_damaged(self.path))

    def _checked(self, trials: Trials | None, *, in_order: bool) -> Laws:
        laws = Laws(self.columns, trials, in_order=in_order)
        for batch in self.batches() if trials is not None else [self.rows()]:
            laws.check(batch)
        laws.finish()
        return laws

    def _complete(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns that were added since it was written."""
        for column in self.columns:
            if column.name not in table.schema.names:
                table = table.append_column(column.name, column.before_it_existed(table.num_rows))
        return table.select([column.name for column in self.columns])


def _may_have(file: pq.ParquetFile, number: int, trial_ids: Sequence[str]) -> bool:
    """Return whether a group of rows may have rows of some trials, which are sorted."""
    group = file.metadata.row_group(number)
    columns = (group.column(place) for place in range(group.num_columns))
    known = next((each.statistics for each in columns if each.path_in_schema == "trial_id"), None)
    if known is None or not known.has_min_max:
        return bool(trial_ids)
    place = bisect_left(trial_ids, str(known.min))
    return place < len(trial_ids) and trial_ids[place] <= str(known.max)


def open_table_file(path: Path, columns: Sequence[Column]) -> TableFile:
    """Return the file of a table with exactly `columns`.

    Raises:
        UsageError: The file is missing, cannot be read, is damaged, or was written by another version of the schema.
    """
    content = _content(path)
    with _damage(path):
        schema = pq.read_schema(content)
    found = (schema.metadata or {}).get(b"schema_version", b"none").decode(errors="replace")
    if re.fullmatch("[0-9]{1,9}", found) and int(found) > SCHEMA_VERSION:
        versions = f"schema version {found}; this one reads {SCHEMA_VERSION}"
        raise _fault(path, f"it was written by a newer version of this program ({versions})", _UPDATE)
    if found != str(SCHEMA_VERSION):
        raise _fault(path, f"its schema version is {found}, this program reads {SCHEMA_VERSION}", _if_damaged(path))
    _check_columns(path, schema, columns)
    return TableFile(path=path, columns=columns, content=content)


def open_tables(folder: Path, *, required: bool) -> Mapping[str, TableFile]:
    """Return the tables of a folder by name, after checking the laws of each once.

    Args:
        folder: `<results_dir>/<grid>/`.
        required: Whether a missing table of `TABLES` is a fault. Other tables may always be missing.

    Raises:
        UsageError: Some of them cannot be used; carries every fault found.
    """
    found: dict[str, TableFile] = {}
    faults: list[Fault] = []
    trials: Trials | None = None
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        path = table_path(folder, name)
        if not path.exists() and not (required and name in TABLES):
            continue
        try:
            found[name] = open_table_file(path, columns)
            if name == "runs":
                found[name].check(None)
                trials = Trials.of(found[name].rows())
            elif trials is not None:
                # A sweep in the same folder may be between two tables, or was killed there: a sweep writes all of them
                # anew from the records. Only a reader needs tables that agree.
                found[name].check(trials if required else None)
        except UsageError as error:
            faults.extend(error.faults)
            if name == "runs":  # every other table is checked against it
                break
    if faults:
        raise UsageError(faults)
    return found


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn errors of the parquet reader into the fault of a damaged table."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _fault(path, "this is not a parquet file, or it is damaged", _if_damaged(path)) from error


def _content(path: Path) -> pa.NativeFile:
    try:
        open_regular(path).close()  # a pipe would wait for its writer
        return pa.OSFile(str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _fault(path, "no such file", "Run the grid first: python -m profiler.sweep +grid=<name>.") from error
    except OSError as error:
        hint = "Check its permissions and the disk; the file itself may be sound."
        raise _fault(path, f"it cannot be read ({error.strerror or error})", hint) from error


def _check_columns(path: Path, schema: pa.Schema, columns: Sequence[Column]) -> None:
    names = [column.name for column in columns]
    present = [name for name in names if name in schema.names]
    unknown = [name for name in schema.names if name not in names]
    if unknown:
        listed = ", ".join(unknown)
        raise _fault(path, f"it has columns that this version of the program does not know: {listed}", _UPDATE)
    missing = [column for column in columns if column.name not in present]
    if schema.names != present or not all(column.may_be_missing for column in missing):
        lacking = ", ".join(column.name for column in missing if not column.may_be_missing)
        wrong = f"it lacks columns: {lacking}" if lacking else "its columns are not in their order"
        raise _fault(path, wrong, _if_damaged(path))
    odd = [each.name for each in columns if each.name in present and schema.field(each.name).type != each.kind]
    if odd:
        raise _fault(path, f"values of another kind are in its columns {', '.join(odd)}", _if_damaged(path))


def _if_damaged(path: Path) -> str:
    """Return the hint for a damaged table: it may be deleted only if the records of all its trials exist."""
    return _DELETE if _has_records(path) else _ONLY_COPY


def _has_records(path: Path) -> bool:
    """Return whether all content of an unreadable table is also stored in other files of its folder."""
    folder = path.parent
    tables: Sequence[str] = (*TABLES, *OPTIONAL_TABLES)
    stored = _stems(folder / "records", "json")
    if path.stem == "samples":
        tables, stored = ("steps",), _stems(folder / "samples", "parquet")
    # Trial ids come from the other tables.
    known = {trial_id for name in tables for trial_id in _trial_ids(table_path(folder, name))}
    return bool(known) and known <= set(stored)


def _stems(folder: Path, suffix: str) -> list[str]:
    try:
        return [path.stem for path in folder.glob(f"*.{suffix}")]
    except OSError:
        return []


def _trial_ids(path: Path) -> list[str]:
    try:
        content = arrow_buffer(read_bytes(path, most_bytes=_MOST_BYTES))
        column = pq.read_table(pa.BufferReader(content), columns=["trial_id"])["trial_id"]
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return []
    return [str(trial_id) for trial_id in pc.unique(column).to_pylist()]


def _fault(path: Path, wrong: str, hint: str) -> UsageError:
    return UsageError([Fault(key=path.stem, found=str(path), problem=wrong, hint=hint)])
