"""Documents in a terminal of 80 columns or more."""

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from rich import text as rich_text
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable

from profiler.domain.text import plain
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
    Section,
    Step,
    Table,
    Text,
    Tone,
    TrialList,
    Wrap,
    as_table,
    shown,
)

_LABEL_WIDTH = 14
"""Smallest width of the first column of a matrix; longer labels wrap."""
_TEXT_STYLES = {Tone.NOTE: "dim", Tone.WARNING: "yellow", Tone.BAD: "red", Tone.GOOD: "green", Tone.ANSWER: "bold"}
_CELL_STYLES = {Tone.NOTE: "dim", Tone.WARNING: "bold yellow", Tone.BAD: "bold red", Tone.GOOD: "bold"}
_OVERFLOW: Mapping[Wrap, OverflowMethod] = {Wrap.FOLD: "fold", Wrap.CUT: "ellipsis", Wrap.NEVER: "ellipsis"}


class TerminalConsole(Console):
    """A console that shows control characters in text as escapes. Colours and movements of rich itself are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments."""
        for segment in super().render(_escaped(renderable), options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def _escaped(renderable: RenderableType) -> RenderableType:
    """Escape text before it is wrapped, because escapes are longer. Escaped text loses the styles of its parts."""
    if isinstance(renderable, rich_text.Text) and (escaped := plain(renderable.plain)) != renderable.plain:
        return renderable.blank_copy(escaped)
    return renderable


def print_document(document: Document, console: Console) -> None:
    """Print the blocks of a document, without its title: who gave the command knows it.

    Rich leaves colours out if the console is no terminal or `NO_COLOR` is set.
    """
    _print_all(document.blocks, console)


def _print_all(blocks: Sequence[Block], console: Console) -> None:
    for block in shown(blocks, Medium.TERMINAL):
        _print(block, console)


def _print(block: Block, console: Console) -> None:
    match block:
        case Section():
            console.print()
            if block.title:
                console.print(rich_text.Text(block.title, style="bold"))
            _print_all(block.blocks, console)
        case Heading():
            console.print(rich_text.Text(block.text, style="bold"))
        case Text():
            for text in (block.text, *block.lines):
                _print_text(text, block.tone, console)
        case Bullets():
            for line in block.lines:
                console.print(rich_text.Text(f"- {line}", style=_TEXT_STYLES.get(block.tone, "")))
        case Step():
            console.print(rich_text.Text(f"{block.number}. {block.text}"))
            console.print(rich_text.Text(block.note))
            console.print(rich_text.Text("\n".join(block.code)), soft_wrap=True)
        case Table():
            _print_table(block, console)
        case TrialList():
            _print_table(as_table(block), console)
        case Figure():
            console.print(rich_text.Text(f"{block.alt}: {FIGURES}/{block.figure.name}.{block.shown}"))
        case Code():
            console.print(rich_text.Text(block.text), soft_wrap=True)
        case Details():
            console.print(rich_text.Text(block.summary, style="bold"))
            _print_all(block.blocks, console)
        case _:
            assert_never(block)


def _print_text(text: str, tone: Tone, console: Console) -> None:
    if tone is Tone.PLAIN:
        # rich highlights the numbers of a plain string.
        console.print(text, markup=False, emoji=False)
    else:
        console.print(rich_text.Text(text, style=_TEXT_STYLES[tone]))


def _print_table(table: Table, console: Console) -> None:
    if not table.is_matrix:
        console.print(_rich_table(table, range(1, len(table.columns))))
        return
    for places in _fitting(table, console.width):
        console.print(_rich_table(table, places))
        console.print()


def _fitting(table: Table, width: int) -> Iterable[Sequence[int]]:
    """Yield the columns of each part of a matrix; several parts if the terminal is too narrow for one."""
    free = width - _LABEL_WIDTH
    taken: list[int] = []
    left = free
    for place in range(1, len(table.columns)):
        needed = 1 + max(_width(table.columns[place].title), *(_width(row[place]) for row in table.rows))
        if taken and needed > left:
            yield tuple(taken)
            taken, left = [], free
        taken.append(place)
        left -= needed
    yield tuple(taken)


def _width(cell: str | Cell) -> int:
    return len(cell) if isinstance(cell, str) else max(map(len, [cell.indented, *cell.lines]))


def _rich_table(table: Table, places: Iterable[int]) -> RichTable:
    """Return the first column of a table, and those at `places`."""
    chosen = [0, *places]
    padding, leading = ((0, 0, 0, 0), 1) if table.is_matrix else ((0, 1, 0, 0), 0)
    made = RichTable(
        box=SIMPLE_HEAD if table.has_titles else None,
        show_header=table.has_titles,
        padding=padding,
        pad_edge=False,
        show_edge=False,
        leading=leading,
        header_style="",
    )
    for place in chosen:
        _add_column(made, table.columns[place])
    for row in table.rows:
        made.add_row(*(_cell(row[place]) for place in chosen))
    return made


def _add_column(table: RichTable, column: Column) -> None:
    table.add_column(
        rich_text.Text(plain(column.title)),
        justify="right" if column.align is Align.RIGHT else "left",
        no_wrap=column.wrap is Wrap.NEVER,
        overflow=_OVERFLOW[column.wrap],
    )


def _cell(cell: str | Cell) -> rich_text.Text:
    """Return a cell with control characters as escapes: the column is measured before the console escapes them."""
    if isinstance(cell, str):
        return rich_text.Text(plain(cell))
    text = rich_text.Text(plain(cell.indented), style=_CELL_STYLES.get(cell.tone, ""))
    for line in cell.lines:
        text.append(f"\n{plain(line)}", style="not bold dim default")
    return text
