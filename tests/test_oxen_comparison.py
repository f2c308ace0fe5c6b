"""The tables of `results/reference/oxen_2025/comparison.md` have the numbers of results and publication.

After new results, `python tests/test_oxen_comparison.py` writes the tables again, between the marks. The prose has
no simulated number of its own, but read it again.
"""

from pathlib import Path

import pandas as pd
import pytest

from profiler.domain.memory import GIB
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table
from profiler.storage.foreign.published import read_published

FOLDER = Path(__file__).parents[1] / "results" / "reference" / "oxen_2025"
PAGE = FOLDER / "comparison.md"
METHODS = {
    "ft": "full",
    "ft8": "full + 8-bit",
    "ft8gc": "full + 8-bit + checkpointing",
    "lora": "LoRA",
}
"""From the ids of the published rows to our labels."""
UNKNOWN = "?"


def cells() -> pd.DataFrame:
    """One row per cell: method, model, published figure as printed, memory on an unlimited card in GiB, and status."""
    runs = pd.read_parquet(FOLDER / "runs.parquet").set_index(["label", "model"])
    reserved = runs.get("required_reserved_bytes", runs["peak_reserved_bytes"])
    rows = []
    for figure in read_published():
        source, _, rest = figure.id.partition("-")
        method = METHODS.get(rest.rpartition("-")[0])
        if source != "oxen" or method is None:
            continue
        key = (method, str(figure.model_assumed).lower())
        rows.append(
            {
                "method": method,
                "model": key[1],
                "published": figure.printed,
                "allocated": runs.loc[key, "required_allocated_bytes"] / GIB,
                "reserved": reserved[key] / GIB,
                "status": runs.loc[key, "status"],
            }
        )
    return pd.DataFrame(rows)


def number(value: float, *, sign: bool = False) -> str:
    return UNKNOWN if pd.isna(value) else f"{value:{'+' if sign else ''}.1f}"


def table_of_cells() -> str:
    header = (
        "method", "model", "published", "simulated: allocated, GiB", "reserved, GiB", "fits", "published less allocated"
    )  # fmt: skip
    rows = []
    for cell in cells().itertuples():
        difference = UNKNOWN if cell.published == "OOM" else number(float(cell.published) - cell.allocated, sign=True)
        fits = "yes" if cell.status == "ok" else "no"
        rows.append(
            (cell.method, cell.model, cell.published, number(cell.allocated), number(cell.reserved), fits, difference)
        )
    return markdown_table(header, rows, align=(*[Align.LEFT] * 2, *[Align.RIGHT] * 3, Align.LEFT, Align.RIGHT))


def table_of_savings() -> str:
    """The memory that a change of method saves, published and simulated, if both cells are numbers."""
    by_cell = cells().set_index(["method", "model"])
    steps = (("full", "full + 8-bit"), ("full + 8-bit", "full + 8-bit + checkpointing"))
    rows = []
    for before, after in steps:
        for model in by_cell.loc[before].index:
            first, second = by_cell.loc[(before, model)], by_cell.loc[(after, model)]
            if "OOM" in (first.published, second.published):
                continue
            printed = float(first.published) - float(second.published)
            saved = first.allocated - second.allocated
            rows.append((before, after, model, f"{printed:.0f}", number(saved)))
    header = ("from", "to", "model", "published", "simulated, GiB")
    return markdown_table(header, rows, align=(*[Align.LEFT] * 3, *[Align.RIGHT] * 2))


TABLES = {"cells": table_of_cells, "savings": table_of_savings}


def parts(name: str, page: str) -> tuple[str, str, str]:
    """The text before, between and after the marks of a table."""
    before, begun, rest = page.partition(f"<!-- begin {name} -->\n")
    table, ended, after = rest.partition(f"\n<!-- end {name} -->")
    assert begun, name
    assert ended, name
    return before + begun, table, ended + after


def rewrite() -> None:
    """Write the tables again."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        before, _, after = parts(name, page)
        page = before + table() + after
    PAGE.write_text(page, encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_results(name: str) -> None:
    assert parts(name, PAGE.read_text(encoding="utf-8"))[1] == TABLES[name]()


def test_every_published_cell_is_compared() -> None:
    assert len(cells()) == 20


def test_the_statements_of_the_page_about_all_cells_hold() -> None:
    found = cells()
    ran = found[found.published != "OOM"]
    # Every trial published as OOM runs out here, and one more. All others are published higher than they are simulated.
    refused_here = found[(found.status == "oom") & (found.published != "OOM")]
    assert list(refused_here.model + ", " + refused_here.method) == ["qwen2.5-14b, LoRA"]
    assert set(found[found.published == "OOM"].index) <= set(found[found.status == "oom"].index)
    above = ran.published.astype(float) > ran.allocated
    assert list(ran[~above].model + ", " + ran[~above].method) == ["qwen2.5-14b, LoRA"]


def test_the_order_of_methods_is_that_of_the_page() -> None:
    found = cells()
    same = {}
    for model, group in found[found.published != "OOM"].groupby("model"):
        published = group.assign(published=group.published.astype(float)).sort_values("published").method
        same[model] = list(published) == list(group.sort_values("allocated").method)
    assert [model for model, agrees in same.items() if not agrees] == ["qwen2.5-0.5b"]


def test_no_optimizer_saves_as_much_as_published() -> None:
    """States of AdamW in float32 instead of one byte: at most six bytes per parameter."""
    runs = pd.read_parquet(FOLDER / "runs.parquet").drop_duplicates("model").set_index("model")
    most = {model: 6 * runs.loc[model, "parameters"] / 1e9 for model in ("qwen2.5-0.5b", "llama-3.2-1b")}
    assert most["qwen2.5-0.5b"] < 25 - 16
    assert most["llama-3.2-1b"] < 38 - 26


if __name__ == "__main__":
    rewrite()
