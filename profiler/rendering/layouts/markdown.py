"""Documents as Markdown, as GitHub shows it."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import assert_never

from profiler.domain.text import plain
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
    Step,
    Table,
    Text,
    TrialList,
    as_table,
    shown,
)

_RULES = {Align.LEFT: "---", Align.RIGHT: "---:"}
"""The cell of a column in the line below the header."""
_PART = "&emsp;"
"""Before a cell that is a part of one above it: spaces at the beginning of a cell are not shown."""


def markdown(document: Document) -> str:
    """Return the whole page, with links to its figures."""
    blocks = [f"# {escaped(document.title)}"]
    if document.lead is not None and Medium.MARKDOWN in document.lead.only:
        blocks.append(f"> {escaped(document.lead.text)}")
    return "\n\n".join([*blocks, *_texts(document.blocks)]) + "\n"


def markdown_part(document: Document) -> str:
    """Return the blocks of a document, without its title, as a part of the page of something else."""
    return "\n\n".join(_texts(document.blocks)) + "\n"


def escaped(text: str) -> str:
    """Return `text` on one line, with every character that Markdown would interpret escaped."""
    safe = plain(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|":
        safe = safe.replace(mark, "\\" + mark)
    return safe.replace("~", "\\~")


def code_block(text: str, *, language: str) -> str:
    """Return `text` as a block of code, whatever backticks it contains."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain(text)}\n{fence}"


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, align: Align | Sequence[Align] = Align.RIGHT
) -> str:
    """Return a table of Markdown.

    Args:
        header: Texts of the header. Headers and cells are Markdown: pass plain text through `escaped` first.
        rows: Cells of each row, as many as the header has.
        align: Alignment of each column, or one for all but the first, which then is on the left.

    Raises:
        ValueError: A row or `align` has another length than the header.
    """
    aligned = [Align.LEFT, *[align] * (len(header) - 1)] if isinstance(align, Align) else list(align)
    lines = [list(header), [_RULES[each] for each in aligned], *map(list, rows)]
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"a table of {len(header)} columns has a row of another length")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _texts(blocks: Sequence[Block]) -> Iterable[str]:
    for block in shown(blocks, Medium.MARKDOWN):
        yield from _block(block)


def _block(block: Block) -> Iterable[str]:
    match block:
        case Section():
            yield from [f"## {escaped(block.title)}"] if block.title else []
            yield from _texts(block.blocks)
        case Heading():
            yield f"**{escaped(block.text)}**" if block.level > 3 else f"### {escaped(block.text)}"
        case Text():
            yield "\n".join(map(escaped, [block.text, *block.lines]))
        case Bullets():
            yield "\n".join(f"- {escaped(line)}" for line in block.lines)
        case Step():
            parts = [escaped(block.note), code_block("\n".join(block.code), language="text")]
            first, indent = f"{block.number}. {escaped(block.text)}", " " * (len(str(block.number)) + 2)
            yield "\n\n".join([first, *(textwrap.indent(part, indent) for part in parts)])
        case Table():
            yield _table(block)
        case TrialList():
            yield _table(as_table(block))
        case Figure():
            yield from _figure(block)
        case Code():
            yield code_block(block.text, language=block.language)
        case Details():
            yield f"<details>\n<summary>{escaped(block.summary)}</summary>"
            yield from _texts(block.blocks)
            yield "</details>"
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    header = [escaped(column.title) for column in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return markdown_table(header, rows, align=[column.align for column in table.columns])


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    text = f"**{escaped(cell.text)}**" if cell.strong else escaped(cell.text)
    text = f"{_PART}{text}" if cell.is_part else text
    return "<br>".join([text, *map(escaped, cell.lines)])


def _figure(block: Figure) -> Iterable[str]:
    path = f"{FIGURES}/{block.figure.name}"
    links = ", ".join(f"[{suffix.upper()}]({path}.{suffix})" for suffix in block.linked)
    if block.caption:
        yield f"**{escaped(block.caption)}**{f' ({links})' if links else ''}"
    yield f"![{escaped(block.alt)}]({path}.{block.shown})"
    if links and not block.caption:
        yield f"({links})"
