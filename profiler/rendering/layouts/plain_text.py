"""Documents as plain text, without rich, and answers for programs as JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import dedent, wrap
from typing import assert_never

from profiler.rendering.document import (
    FIGURES,
    Align,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Figure,
    Heading,
    Medium,
    Row,
    Section,
    Step,
    Table,
    Text,
    TrialList,
    Wrap,
    as_table,
    shown,
)

WIDTH = 80
_INDENT = "  "
_GAP = "  "
_STEP_INDENT = "     "


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How texts are broken into lines."""

    width: int = WIDTH
    at_hyphens: bool = False
    """Whether a line may end after a hyphen."""
    in_words: bool = False
    """Whether a word that is longer than a line is broken, such as the path of a file."""

    def of(self, text: str, indent: str) -> list[str]:
        """Return the lines of a text, without its indent."""
        width = self.width - len(indent)
        return wrap(text, width, break_long_words=self.in_words, break_on_hyphens=self.at_hyphens)


def plain_text(document: Document, lines: Lines | None = None) -> str:
    """Return the blocks of a document, without its title: who gave the command knows it.

    A section is set off by an empty line, and the blocks of details are indented. Control characters stay:
    `command_line` shows them as escapes.
    """
    return "\n".join(_all(document.blocks, lines or Lines(), "")).removeprefix("\n") + "\n"


def _all(blocks: Sequence[Block], lines: Lines, indent: str) -> Iterator[str]:
    for block in shown(blocks, Medium.TEXT):
        yield from _block(block, lines, indent)


def _block(block: Block, lines: Lines, indent: str) -> Iterator[str]:
    match block:
        case Section():
            yield from ["", *([indent + block.title, ""] if block.title else [])]
            yield from _all(block.blocks, lines, indent)
        case Heading():
            yield indent + block.text
        case Text():
            for text in (block.text, *block.lines):
                yield from _indented(lines.of(text, indent), indent)
        case Bullets():
            for line in block.lines:
                yield from _indented(lines.of(f"- {line}", indent), indent)
        case Step():
            yield from _step(block, lines, indent)
        case Table():
            yield from _indented(_table(block), indent)
        case TrialList():
            yield from _indented(_table(as_table(block)), indent)
        case Figure():
            yield f"{indent}{block.alt}: {FIGURES}/{block.figure.name}.{block.shown}"
        case Code():
            yield from _indented(block.text.split("\n"), indent)
        case Details():
            yield indent + block.summary
            yield from _all(block.blocks, lines, indent + _INDENT)
        case _:
            assert_never(block)


def _indented(lines: Iterable[str], indent: str) -> Iterator[str]:
    return ((indent + line).rstrip() if indent else line for line in lines)


def _step(step: Step, lines: Lines, indent: str) -> Iterator[str]:
    inner = indent + _STEP_INDENT
    number = f"{indent}{step.number:>3}. "
    for line in lines.of(step.text, inner):
        yield f"{number}{line}"
        number = inner
    yield from _indented(lines.of(step.note, inner), inner)
    yield from _indented(step.code, inner + _INDENT)


def _table(table: Table) -> list[str]:
    """Return the lines of a table, without the spaces at their ends."""
    titles = [column.title for column in table.columns] if table.has_titles else []
    has_parts = any(isinstance(cell, Cell) and cell.is_part for row in table.rows for cell in row)
    if has_parts or any(column.width for column in table.columns):
        return _by_widths(table.columns, [titles, *table.rows] if titles else table.rows)
    # Titles of nothing are not set off from numbers.
    columns = table.columns if table.rows else [replace(column, align=Align.LEFT) for column in table.columns]
    spaced = [_spaced(column) for column in columns] if titles else []
    # Two spaces are before each column on the right, even the first.
    return dedent("\n".join(_by_widths(columns, [spaced, *table.rows] if spaced else table.rows))).splitlines()


def _spaced(column: Column) -> str:
    """Return a title with the space that it has at least before the next one."""
    return _GAP + column.title if column.align is Align.RIGHT else column.title + _GAP


def _by_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Return lines with the widths that columns state, or as wide as their longest line. rich is far slower."""
    stated = [column if column.width else _as_wide_as(rows, column, place) for place, column in enumerate(columns)]
    return [line for row in rows for line in _fixed_row(stated, row)]


def _as_wide_as(rows: Sequence[Row], column: Column, place: int) -> Column:
    longest = max((len(line) for row in rows for line in _cell_lines(row[place])), default=0)
    gap = len(_GAP) if place and column.align is Align.RIGHT else 0
    return replace(column, width=gap + longest, wrap=Wrap.NEVER)


def _fixed_row(columns: Sequence[Column], row: Row) -> Iterator[str]:
    """Yield the lines of a row whose columns have fixed widths: several if a text is wider than its column."""
    cells = [_fixed_cell(column, cell) for column, cell in zip(columns, row, strict=True)]
    for texts in zip_longest(*cells, fillvalue=""):
        yield "".join(map(_padded, columns, texts, range(len(columns)))).rstrip()


def _fixed_cell(column: Column, cell: str | Cell) -> list[str]:
    found = _cell_lines(cell)
    if column.wrap is Wrap.NEVER:
        return found
    return [line for text in found for line in wrap(text, column.width, break_on_hyphens=False)]


def _padded(column: Column, text: str, place: int) -> str:
    """Return a text as wide as its column. The width of a number includes what sets it off from the text before."""
    if column.align is Align.RIGHT:
        return text.rjust(column.width)
    return (_GAP if place else "") + text.ljust(column.width)


def _cell_lines(cell: str | Cell) -> list[str]:
    return [cell] if isinstance(cell, str) else [cell.indented, *cell.lines]


def json_text(content: object, *, in_ascii: bool = True, in_one_line: bool = False) -> str:
    """Return values as JSON, with a line break at the end.

    Args:
        content: Mappings, sequences, texts, numbers, booleans and None.
        in_ascii: Whether other characters are escapes.
        in_one_line: Whether one of many values follows another, one per line; else two spaces per level.
    """
    return json.dumps(content, indent=None if in_one_line else 2, ensure_ascii=in_ascii) + "\n"
