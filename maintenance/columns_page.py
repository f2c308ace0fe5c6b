"""The documentation of all columns in Markdown, generated from the schema."""

from profiler.rendering.markdown_table import Align, markdown_table
from profiler.storage.schema import OPTIONAL_TABLES, SCHEMA_VERSION, TABLES, Column

_ALWAYS, _SOMETIMES = "in every results folder", "only if it has rows"


def columns_page() -> str:
    """Return the text of `docs/columns.md`."""
    blocks = [
        "# The columns of the tables of a sweep",
        f"Generated from `profiler/storage/schema.py` (schema version {SCHEMA_VERSION}); the same texts are in the "
        'metadata of the parquet files. Sizes are integers of bytes, times are seconds; null means "unknown here", '
        "never 0.",
    ]
    for tables, when in ((TABLES, _ALWAYS), (OPTIONAL_TABLES, _SOMETIMES)):
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
