"""The comparison as a table for a terminal of 80 columns or more."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.analysis.cards import CardTable
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import Matrix
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.outcome import Status
from profiler.rendering.pages import MOST_ROWS, more_rows
from profiler.rendering.wording import (
    card_names,
    cell_name,
    column_names,
    corner,
    engine_lines,
    errors_text,
    estimate_text,
    headroom_legend,
    headroom_text,
    legend,
    place_names,
    published_text,
    result_text,
    setting_title,
    thresholds_text,
    versions_text,
)

_ESTIMATE, _PUBLISHED = "~", "pub "
_LABEL_WIDTH = 14
"""Smallest width of the column of methods; longer labels wrap."""
_FAILURES_SHOWN = 10
_IN_REPORT = "the report has them"
_STYLES = {Status.OK: "bold", Status.OOM: "bold red"}


def print_comparison(report: SweepReport, console: Console) -> None:
    """Print every section: title, table, legend, accuracy of the estimates and acceptance thresholds.

    Rich leaves colours out if the console is no terminal or `NO_COLOR` is set.
    """
    for part in report.sections:
        _print_section(part, console)
    if report.cards:
        _print_cards(report.cards, console)
    if report.thresholds:
        console.print(Text(thresholds_text(report.thresholds), style="dim"))
    if not report.sections:
        console.print("No trial is stored here yet.")


def _print_section(part: SectionReport, console: Console) -> None:
    console.print()
    console.print(Text(setting_title(part.section.setting), style="bold"))
    for columns in _fitting(part.matrix, console.width):
        console.print(_table(part.matrix, columns))
        console.print()
    if more := more_rows(len(part.matrix.rows), _IN_REPORT):
        console.print(more)
    for line in _notes(part):
        console.print(Text(line, style="dim"))
    for line in _failures(part.section):
        console.print(Text(line, style="yellow"))


def _fitting(table: Matrix, width: int) -> Iterable[tuple[str, ...]]:
    """Yield the columns of each table; several tables if the terminal is too narrow for one."""
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
    places = (table.cells.get((row, column)) for row in table.rows[:MOST_ROWS])
    lines = [line for cell in places if cell is not None for line in _lines(cell)]
    return max(len(line) for line in [*lines, column_names(table)[column]])


def _table(source: Matrix, columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, leading=1, header_style="")
    table.add_column(corner(source), overflow="fold")
    names = column_names(source)
    for column in columns:
        table.add_column(Text(names[column]), justify="right", no_wrap=True)
    for row in source.rows[:MOST_ROWS]:
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
    for name in card_names(cards):
        table.add_column(Text(name), justify="right")
    names = place_names(cards)
    for place in cards.places[:MOST_ROWS]:
        cells = (cards.cells.get((place, column)) for column in cards.columns)
        table.add_row(Text(names[place]), *map(_headroom, cells))
    console.print()
    console.print(table)
    if more := more_rows(len(cards.places), _IN_REPORT):
        console.print(more)
    console.print(Text(headroom_legend(cards), style="dim"))


def _headroom(cell: Cell | None) -> Text:
    return Text(headroom_text(cell), style=_STYLES.get(cell.status, "bold yellow") if cell else "dim")


def _notes(part: SectionReport) -> list[str]:
    lines = legend(part.section, mark=_ESTIMATE, published_mark=_PUBLISHED)
    # Only the pages name the worst trial: in a terminal every line counts.
    lines += [f"{errors_text(accuracy)}." for accuracy in part.accuracies]
    return [*lines, *engine_lines(part.engines), versions_text(part.section.setting)]


def _failures(section: Section) -> list[str]:
    unanswered = section.unanswered
    lines = [f"{cell.status.value}: {cell_name(cell)}{_reason(cell)}" for cell in unanswered[:_FAILURES_SHOWN]]
    more = len(unanswered) - _FAILURES_SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _reason(cell: Cell) -> str:
    lines = (cell.message or "").strip().splitlines()
    # The last line of a traceback is the error.
    return f": {lines[-1].strip()}" if lines else ""
