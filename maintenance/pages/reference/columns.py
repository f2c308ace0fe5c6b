"""The pages of all columns, one per table, made from the schema."""

from collections.abc import Mapping

from maintenance.pages.members import table
from profiler.storage.tables.schema import (
    MONITORED_TABLES,
    OPTIONAL_TABLES,
    SCHEMA_VERSION,
    SCRIPT_TABLES,
    TABLES,
    Column,
)

_KINDS = (
    (TABLES, "in every results folder"),
    (OPTIONAL_TABLES, "in a results folder, only if it has rows"),
    (SCRIPT_TABLES, "in the folder of a script (`python -m profiler.run`)"),
    (MONITORED_TABLES, "in the folder of monitored runs (`python -m profiler.monitor`, `VramCallback`)"),
)

_PLACES: Mapping[str, str] = {name: place for tables, place in _KINDS for name in tables}
_COLUMNS: Mapping[str, tuple[Column, ...]] = {name: columns for tables, _ in _KINDS for name, columns in tables.items()}

COLUMN_TABLES = tuple(_COLUMNS)
"""Names of all tables."""

_HEAD = f"""\
# Columns

The tables of a sweep, of a script and of monitored runs, as parquet files of schema version {SCHEMA_VERSION}. The
metadata of the files has the same texts. Sizes are integers of bytes, times are seconds; null means "unknown here",
never 0.
"""


def columns_page() -> str:
    """Return the page that lists the tables."""
    rows = [
        (f"[{name}.parquet](reference/columns/{name}.md)", str(len(columns)), _PLACES[name])
        for name, columns in _COLUMNS.items()
    ]
    return f"{_HEAD}\n{table(('table', 'columns', 'where it is'), rows)}\n"


def column_page(name: str) -> str:
    """Return the page of one table."""
    rows = [
        (f"`{column.name}`", str(column.kind), column.unit, column.meaning, column.null or "never null")
        for column in _COLUMNS[name]
    ]
    cells = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    head = f"# {name}.parquet\n\nIt is {_PLACES[name]}. [All tables](../../columns.md)."
    return f"{head}\n\n{table(('column', 'type', 'unit', 'meaning', 'null means'), cells)}\n"
