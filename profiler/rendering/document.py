"""A page as a value. Subjects build a document of blocks, and each file of `layouts/` lays any document out."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from itertools import islice
from typing import TypeAlias

FIGURES = "figures"
"""The folder of figures, in the folder of the pages."""

PART_INDENT = "  "

MOST_ROWS = 200
"""Rows of a table that are shown; the list of every trial can be searched, a longer table cannot be read."""


class Medium(StrEnum):
    """What a document is laid out for."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    HTML = "html"
    TEXT = "text"
    """Plain text of a fixed width."""


class Tone(StrEnum):
    """How a text or a cell stands out, where a medium can show it."""

    PLAIN = "plain"
    NOTE = "note"
    """Less important than what it is about."""
    ANSWER = "answer"
    """What the reader asked for."""
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Align(StrEnum):
    """Alignment of a column."""

    LEFT = "left"
    RIGHT = "right"


class Wrap(StrEnum):
    """What happens to a cell that is wider than its column, in a terminal or where plain text has a fixed width."""

    FOLD = "fold"
    """It continues on the next line, even within a word."""
    CUT = "cut"
    """It continues on the next line; a word that is longer ends with an ellipsis."""
    NEVER = "never"
    """The column has the width of its longest cell; in a row of a fixed width the cells after it move."""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """What all blocks have."""

    only: Collection[Medium] = tuple(Medium)
    """The media that show it, because another has other words for it or no place."""


@dataclass(frozen=True)
class Heading(_Block):
    """A heading within a section."""

    text: str
    level: int = 3
    """3, or 4 within the parts of a list."""


@dataclass(frozen=True)
class Text(_Block):
    """One paragraph."""

    text: str
    tone: Tone = Tone.PLAIN
    lines: Sequence[str] = ()
    """Lines of the paragraph that follow its first."""


@dataclass(frozen=True)
class Bullets(_Block):
    """A list of sentences."""

    lines: Sequence[str]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    align: Align = Align.RIGHT
    wrap: Wrap = Wrap.FOLD
    width: int = 0
    """Fixed number of characters in plain text. 0: the longest cell, or the rest of the line if others are fixed."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell that is more than its text."""

    text: str
    tone: Tone = Tone.PLAIN
    strong: bool = False
    lines: Sequence[str] = ()
    """Less important lines below the text."""
    is_part: bool = False
    """Whether it is a part of a row above it, or of the sentence before the table."""

    @property
    def indented(self) -> str:
        """The text; that of a part is indented, for media of a fixed width."""
        return f"{PART_INDENT}{self.text}" if self.is_part else self.text


Row: TypeAlias = Sequence[str | Cell]


@dataclass(frozen=True)
class Table(_Block):
    """A table; the first column says what a row is about where the others have numbers."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    is_matrix: bool = False
    """Whether its cells have several lines, and it may be split between columns where it is too wide."""
    has_titles: bool = True
    """Whether plain text and a terminal show the titles of its columns; not if the sentence before it says them."""

    @property
    def has_numbers(self) -> bool:
        """Whether all columns but the first have numbers."""
        return all(column.align is Align.RIGHT for column in self.columns[1:])


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


@dataclass(frozen=True)
class Figure(_Block):
    """A figure, in the page itself or as a link to its file."""

    figure: RenderedFigure
    alt: str
    """What is shown in place of the figure where it cannot be."""
    shown: str = "svg"
    """The suffix of the file that a page links to."""
    linked: Sequence[str] = ()
    """Suffixes of other files."""
    caption: str = ""


@dataclass(frozen=True)
class Code(_Block):
    """Preformatted text."""

    text: str
    language: str = "text"
    is_command: bool = False
    """Whether a reader copies it."""


@dataclass(frozen=True)
class Step(_Block):
    """One of several things to do, in order."""

    number: int
    """From 1 on."""
    text: str
    note: str
    """Less important sentences below the text."""
    code: Sequence[str]
    """Lines that a reader copies."""


@dataclass(frozen=True)
class Details(_Block):
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section(_Block):
    """Blocks below a heading of the second level; without one if it is empty."""

    title: str
    blocks: Sequence["Block"]
    contents: str = ""
    """What the table of contents says after the title, ``"25 trials"``; empty to leave the section out of it."""


@dataclass(frozen=True, kw_only=True)
class ListedTrial:
    """One row of a list of trials. Each field has its text, and the value by which it is sorted if that is another."""

    tone: Tone
    fields: Sequence[Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class TrialList(_Block):
    """All trials of a section, to search, sort and open; made anew with each call, because there can be 100,000."""

    columns: Sequence[str]
    count: int
    rows: Callable[[], Iterable[ListedTrial]]
    details: Callable[[bool], Iterable[Sequence[object]]]
    """What a page shows of an opened trial, in the order in which `page.js` takes it apart; called with whether the
    page has the phases and categories of each trial."""


Block: TypeAlias = Section | Heading | Text | Bullets | Step | Table | TrialList | Figure | Code | Details
"""One part of a document. A back end lays each kind out."""


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
class Document:
    """One page."""

    title: str
    window_title: str = ""
    """For a window or a tab of a browser; empty if it is the title."""
    lead: Text | None = None
    """What the page is about, below its title."""
    blocks: Sequence[Block]
    origin: PageOrigin | None = None


def as_table(trials: TrialList) -> Table:
    """Return the first rows of a list of trials, for a medium in which nothing can be opened."""
    rows = [[str(field[0]) for field in row.fields] for row in islice(trials.rows(), MOST_ROWS)]
    return Table(text_columns(trials.columns), rows)


def shown(blocks: Iterable[Block], medium: Medium) -> list[Block]:
    """Return the blocks that a medium shows."""
    return [block for block in blocks if medium in block.only]


def paragraphs(*texts: str) -> Section:
    """Return texts as a section without a title; empty ones are left out."""
    return Section("", [Text(text) for text in texts if text])


def number_columns(first: str, others: Iterable[str], *, wrap: Wrap = Wrap.FOLD) -> tuple[Column, ...]:
    """Return the columns of a table of numbers: texts on the left, then numbers on the right."""
    return (Column(title=first, align=Align.LEFT), *(Column(title=title, wrap=wrap) for title in others))


def text_columns(titles: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns of a table of texts."""
    return tuple(Column(title=title, align=Align.LEFT) for title in titles)


class FigureKind(StrEnum):
    """Format of a figure's file, as the suffix of its name."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


STANDARD_KINDS = (FigureKind.PNG, FigureKind.SVG)
"""Those of a report where the user names none."""
