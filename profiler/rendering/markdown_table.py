"""Tables of Markdown, as GitHub shows them."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

from profiler.domain.plain_text import plain


class Align(StrEnum):
    """Alignment of a column, as its cell in the line below the header."""

    LEFT = "---"
    RIGHT = "---:"


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
    lines = [list(header), [each.value for each in aligned], *map(list, rows)]
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"a table of {len(header)} columns has a row of another length")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
