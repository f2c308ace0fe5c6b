"""The rendered figures of a sweep, for both pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

FIGURES = "figures"
"""The folder of figures, in the folder of the pages."""


MOST_ROWS = 200
"""Rows of a comparison that are shown; the list of every trial can be searched, a longer comparison cannot be read."""


def more_rows(rows: int, where: str) -> str:
    """Return the sentence below a table of which only the first `MOST_ROWS` of `rows` are shown; empty if all are."""
    more = rows - MOST_ROWS
    return f"and {more:,} more {'row' if more == 1 else 'rows'}: {where}." if more > 0 else ""


@dataclass(frozen=True, kw_only=True)
class RenderedFigure:
    """A figure, as the bytes that a page can show."""

    name: str
    """Of its files, without the suffix."""
    title: str
    png: bytes
    svg: bytes
    note: str = ""
    """Which trials it does not show."""
    suffixes: Sequence[str] = ("png", "svg")
    """Of its files."""


@dataclass(frozen=True, kw_only=True)
class PageOrigin:
    """When and by what a page is made."""

    made_on: date
    version: str
    """Of the profiler."""
    home: str = ""
    """Address of the project; empty if it declares none."""
    files: Sequence[str] = ()
    """Names of the files next to the page that have the same results."""


@dataclass(frozen=True, kw_only=True)
class SectionFigures:
    """The figures of one section."""

    figures: Sequence[RenderedFigure] = ()
    left_out: Sequence[str] = ()
    """One sentence per figure that would be too large to read."""
    broken: Sequence[str] = ()
    """One sentence per figure that could not be drawn."""
