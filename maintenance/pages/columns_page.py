"""The documentation of all columns in Markdown, generated from the schema."""

from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table
from profiler.storage.tables.schema import (
    MONITORED_TABLES,
    OPTIONAL_TABLES,
    SCHEMA_VERSION,
    SCRIPT_TABLES,
    TABLES,
    Column,
)

_ALWAYS, _SOMETIMES = "in every results folder", "only if it has rows"
_OF_SCRIPTS = "in the folder of a script (`python -m profiler.run`)"
_OF_MONITORED = "in the folder of monitored runs (`python -m profiler.monitor`, `VramCallback`)"


def columns_page() -> str:
    """Return the text of `docs/columns.md`."""
    blocks = [
        "# The columns of the tables of a sweep, of a script and of monitored runs",
        "Generated from the fields that `profiler/domain/` declares (schema version "
        f"{SCHEMA_VERSION}); the "
        "same texts are in the metadata of the parquet files. Sizes are integers of bytes, times are seconds; null "
        'means "unknown here", never 0.',
    ]
    kinds = (
        (TABLES, _ALWAYS),
        (OPTIONAL_TABLES, _SOMETIMES),
        (SCRIPT_TABLES, _OF_SCRIPTS),
        (MONITORED_TABLES, _OF_MONITORED),
    )
    for tables, when in kinds:
        for name, columns in tables.items():
            blocks += [f"## `{name}.parquet`, {when}", _table(columns)]
    return "\n\n".join(blocks) + "\n"


def _table(columns: tuple[Column, ...]) -> str:
    rows = [
        (f"`{column.name}`", str(column.kind), column.unit, column.meaning, column.null or "never null")
        for column in columns
    ]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return markdown_table(("column", "type", "unit", "meaning", "null means"), cells, align=Align.LEFT)
