"""`docs/columns.md` is what the schema says. After a change of it: `python tests/storage/test_columns_page.py`."""

from pathlib import Path

from maintenance.pages.columns_page import columns_page
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_page_is_that_of_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == columns_page()


def test_every_column_is_there_with_its_unit() -> None:
    page = columns_page()
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        part = page.split(f"## `{name}.parquet`")[1].split("\n## ")[0]
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert len(rows) == len(columns)
        assert all(f"| `{column.name}` | {column.kind} | {column.unit} |" in part for column in columns)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(columns_page(), encoding="utf-8")
