"""The comparison as a table for a terminal of 80 columns or more."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.analysis.acceptance import Threshold
from profiler.analysis.accuracy import accuracies
from profiler.analysis.cards import CardTable, by_card
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import Matrix, matrix
from profiler.domain.outcome import Status
from profiler.rendering.wording import (
    HEADROOM_LEGEND,
    accuracy_text,
    cell_name,
    column_names,
    corner,
    estimate_text,
    headroom_text,
    legend,
    published_text,
    result_text,
    setting_title,
    short_card,
    short_models,
    thresholds_text,
    versions_text,
)

_ESTIMATE, _PUBLISHED = "~", "pub "
_LABEL_WIDTH = 14
"""What the column of methods keeps when there are many models; longer labels wrap."""
_FAILURES_SHOWN = 10
_STYLES = {Status.OK: "bold", Status.OOM: "bold red"}


def print_comparison(sections: Iterable[Section], console: Console, *, thresholds: Sequence[Threshold] = ()) -> None:
    """Print every section: its title, the table, what its marks mean, and how far estimates and simulation are.

    Colours are the console's affair: rich leaves them out where it is no terminal or `NO_COLOR` is set.
    """
    found = tuple(sections)
    for section in found:
        console.print()
        console.print(Text(setting_title(section.setting), style="bold"))
        table = matrix(section)
        for columns in _fitting(table, console.width):
            console.print(_table(table, columns))
            console.print()
        for line in _notes(section):
            console.print(Text(line, style="dim"))
        for line in _failures(section):
            console.print(Text(line, style="yellow"))
    cards = by_card(found)
    if cards:
        _print_cards(cards, console)
    if thresholds:
        console.print(Text(thresholds_text(thresholds), style="dim"))
    if not found:
        console.print("No trial is stored here yet.")


def _fitting(table: Matrix, width: int) -> Iterable[tuple[str, ...]]:
    """The columns in as many tables as the width of the terminal makes necessary."""
    free = width - _LABEL_WIDTH
    taken: list[str] = []
    left = free
    for column in table.columns:
        needed = 1 + _width(table, column)
        if taken and needed > left:
            yield tuple(taken)
            taken, left = [], free
        taken.append(column)
        left -= needed
    yield tuple(taken)


def _width(table: Matrix, column: str) -> int:
    places = (table.cells.get((row, column)) for row in table.rows)
    lines = [line for cell in places if cell is not None for line in _lines(cell)]
    return max(len(line) for line in [*lines, column_names(table)[column]])


def _table(source: Matrix, columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, leading=1, header_style="")
    table.add_column(corner(source), overflow="fold")
    names = column_names(source)
    for column in columns:
        table.add_column(Text(names[column]), justify="right", no_wrap=True)
    for row in source.rows:
        table.add_row(Text(row), *(_text(source.cells.get((row, column))) for column in columns))
    return table


def _text(cell: Cell | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    first, *others = _lines(cell)
    text = Text(first, style=_STYLES.get(cell.status, "bold yellow"))
    for line in others:
        text.append(f"\n{line}", style="not bold dim default")
    return text


def _lines(cell: Cell) -> list[str]:
    published = published_text(cell)
    lines = [result_text(cell), estimate_text(cell, _ESTIMATE), f"{_PUBLISHED}{published}" if published else ""]
    return [line for line in lines if line]


def _print_cards(cards: CardTable, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="")
    table.add_column("which card?", overflow="fold")
    for card in cards.cards:
        table.add_column(Text(short_card(card)), justify="right")
    names = short_models(tuple(dict.fromkeys(model for _, model in cards.places)))
    for label, model in cards.places:
        cells = (cards.cells.get(((label, model), card)) for card in cards.cards)
        table.add_row(Text(f"{label}, {names[model]}"), *map(_room, cells))
    console.print()
    console.print(table)
    console.print(Text(HEADROOM_LEGEND, style="dim"))


def _room(cell: Cell | None) -> Text:
    return Text(headroom_text(cell), style=_STYLES.get(cell.status, "bold yellow") if cell else "dim")


def _notes(section: Section) -> list[str]:
    lines = legend(section, mark=_ESTIMATE, published_mark=_PUBLISHED)
    # Of the worst only the page tells: here every line counts.
    lines += [accuracy_text(accuracy).split(", worst")[0] + "." for accuracy in accuracies(section.cells.values())]
    return [*lines, versions_text(section.setting)]


def _failures(section: Section) -> list[str]:
    unanswered = section.unanswered
    lines = [f"{cell.status.value}: {cell_name(cell)}{_reason(cell)}" for cell in unanswered[:_FAILURES_SHOWN]]
    more = len(unanswered) - _FAILURES_SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _reason(cell: Cell) -> str:
    lines = (cell.message or "").strip().splitlines()
    # The last line of a traceback is the one that says what happened.
    return f": {lines[-1].strip()}" if lines else ""
