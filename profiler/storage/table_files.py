"""One table of a grid as a file: its path, its rows, and the fault if it cannot be used."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler.domain.errors import Fault, UsageError
from profiler.domain.units import GIB
from profiler.storage.foreign_files import read_bytes
from profiler.storage.schema import OPTIONAL_TABLES, SCHEMA_VERSION, TABLES, Column

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


def read_table_file(path: Path, columns: Sequence[Column]) -> pa.Table:
    """Read a table with exactly `columns`.

    Raises:
        UsageError: The file is missing, cannot be read, is damaged, or was written by another version of the schema.
    """
    content = _content(path)
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _fault(path, "this is not a parquet file, or it is damaged", _if_damaged(path)) from error
    found = (table.schema.metadata or {}).get(b"schema_version", b"none").decode(errors="replace")
    if re.fullmatch("[0-9]{1,9}", found) and int(found) > SCHEMA_VERSION:
        versions = f"schema version {found}; this one reads {SCHEMA_VERSION}"
        raise _fault(path, f"it was written by a newer version of this program ({versions})", _UPDATE)
    if found != str(SCHEMA_VERSION):
        raise _fault(path, f"its schema version is {found}, this program reads {SCHEMA_VERSION}", _if_damaged(path))
    return _with_columns(path, table, columns)


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, most_bytes=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _fault(path, "no such file", "Run the grid first: python -m profiler.sweep +grid=<name>.") from error
    except OSError as error:
        hint = "Check its permissions and the disk; the file itself may be sound."
        raise _fault(path, f"it cannot be read ({error.strerror or error})", hint) from error


def _with_columns(path: Path, table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    names = [column.name for column in columns]
    present = [name for name in names if name in table.schema.names]
    unknown = [name for name in table.schema.names if name not in names]
    if unknown:
        listed = ", ".join(unknown)
        raise _fault(path, f"it has columns that this version of the program does not know: {listed}", _UPDATE)
    missing = [column for column in columns if column.name not in present]
    if table.schema.names != present or not all(column.may_be_missing for column in missing):
        lacking = ", ".join(column.name for column in missing if not column.may_be_missing)
        wrong = f"it lacks columns: {lacking}" if lacking else "its columns are not in their order"
        raise _fault(path, wrong, _if_damaged(path))
    for column in missing:
        table = table.append_column(column.name, column.before_it_existed(table.num_rows))
    odd = [column.name for column in columns if not _holds(table[column.name], column)]
    if odd:
        raise _fault(path, f"values of another kind are in its columns {', '.join(odd)}", _if_damaged(path))
    return table.select(names)


def _holds(values: pa.ChunkedArray, column: Column) -> bool:
    return bool(values.type == column.kind and (column.null or not values.null_count))


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
        column = pq.read_table(io.BytesIO(read_bytes(path, most_bytes=_MOST_BYTES)), columns=["trial_id"])["trial_id"]
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return []
    return [str(trial_id) for trial_id in pc.unique(column).to_pylist()]


def _fault(path: Path, wrong: str, hint: str) -> UsageError:
    return UsageError([Fault(key=path.stem, found=str(path), problem=wrong, hint=hint)])
