"""A table as CSV, for a spreadsheet."""

import pandas as pd

from profiler.domain.text import plain

_FORMULA = ("=", "+", "-", "@")
"""Beginnings of a cell that a spreadsheet computes."""


def as_csv(table: pd.DataFrame) -> str:
    """Return `table` with a header. Text that a spreadsheet would compute begins with an apostrophe."""
    safe = table.copy()
    for name in table.columns:
        if isinstance(table[name].dtype, pd.StringDtype):
            safe[name] = table[name].map(_cell, na_action="ignore")
    return safe.to_csv(index=False, lineterminator="\n")


def _cell(text: str) -> str:
    safe = plain(text)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
