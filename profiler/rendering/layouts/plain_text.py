"""Documents as plain text, without rich: an estimate takes less time than its import."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent, wrap
from typing import assert_never

from profiler.rendering.document import (
    FIGURES,
    Align,
    Block,
    Bullets,
    Cell,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    Medium,
    Section,
    Table,
    Text,
    TrialList,
    as_table,
    shown,
)

WIDTH = 80
_INDENT = "  "


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


def _table(table: Table) -> list[str]:
    numbers = [column.title for column in table.columns if column.align is Align.RIGHT]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return text_table([column.title for column in table.columns], rows, numbers=numbers)


def _cell(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else "\n".join([cell.text, *cell.lines])


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str]) -> list[str]:
    """Return the lines of a table, without the spaces at their ends.

    Args:
        header: Titles of the columns; an empty one is allowed.
        rows: Texts of each row, as many as `header` has.
        numbers: Titles of the columns that are aligned on the right.
    """
    sides = ["right" if title in numbers else "left" for title in header]
    # rich is slower by far for 100,000 rows, and the estimate does not import it.
    from tabulate import tabulate  # 12 ms, and most estimates have no table

    table = tabulate(list(rows), headers=header, tablefmt="plain", disable_numparse=True, colalign=sides)
    # Two spaces are before each column on the right, even the first.
    return [line.rstrip() for line in dedent(table).splitlines()]
