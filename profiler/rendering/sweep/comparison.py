"""The comparison of a section and the table of cards, for each medium, as LaTeX for a paper, and as CSV."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from profiler.analysis.compared.axes import Matrix
from profiler.analysis.compared.cells import Cell as Trial
from profiler.analysis.findings.answers import CardTable
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.runs.outcome import Status
from profiler.domain.text import plain
from profiler.rendering.document import MOST_ROWS, Block, Cell, Medium, Row, Table, Text, Tone, Wrap, number_columns
from profiler.rendering.sweep.words import (
    card_names,
    column_names,
    corner,
    estimate_text,
    gib_number,
    headroom_text,
    more_rows,
    needs_text,
    place_names,
    published_text,
    result_text,
    setting_title,
    versions_text,
)

ABSENT = "·"
_TONES = {Status.OK: Tone.GOOD, Status.OOM: Tone.BAD}


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a medium says in the cells of a comparison."""

    medium: Medium
    estimate: str
    """The mark of an estimate."""
    published: str
    result: Callable[[Trial], str]
    needs: Callable[[Trial], str]
    """What a trial that ran out of memory needs."""
    rest: str
    """Where the rows are that a table leaves out."""


def comparison_blocks(table: Matrix, words: Words) -> Iterator[Block]:
    """Yield the matrix of a section in the words of a medium, and how many rows it leaves out."""
    only, names = (words.medium,), column_names(table)
    columns = number_columns(corner(table), (names[column] for column in table.columns), wrap=Wrap.NEVER)
    rows = [
        [row, *(_matrix_cell(table.cells.get((row, column)), words) for column in table.columns)]
        for row in table.rows[:MOST_ROWS]
    ]
    yield Table(columns, rows, is_matrix=True, only=only)
    if more := more_rows(len(table.rows), words.rest):
        yield Text(more, _tone_of_rest(words.medium), only=only)


def _tone_of_rest(medium: Medium) -> Tone:
    return Tone.PLAIN if medium is Medium.TERMINAL else Tone.NOTE


def _matrix_cell(trial: Trial | None, words: Words) -> str | Cell:
    if trial is None:
        return Cell(text=ABSENT, tone=Tone.NOTE) if words.medium is Medium.TERMINAL else ABSENT
    published = published_text(trial)
    below = [words.needs(trial), estimate_text(trial, words.estimate), published and words.published + published]
    return Cell(text=words.result(trial), tone=tone_of(trial), strong=True, lines=[line for line in below if line])


def tone_of(trial: Trial) -> Tone:
    """Return the tone of a result."""
    return _TONES.get(trial.status, Tone.WARNING)


def _short_result(trial: Trial) -> str:
    """Return the result without what it needs, which has a line of its own."""
    return "OOM" if trial.status is Status.OOM else result_text(trial)


def _short_needs(trial: Trial) -> str:
    return f"needs {gib_number(trial.result_bytes)}" if trial.status is Status.OOM and trial.result_bytes else ""


IN_TERMINAL = Words(
    medium=Medium.TERMINAL,
    estimate="~",
    published="pub ",
    result=result_text,
    needs=lambda _: "",
    rest="the report has them",
)
IN_MARKDOWN = Words(
    medium=Medium.MARKDOWN,
    estimate="est ",
    published="published ",
    result=_short_result,
    needs=needs_text,
    rest="comparison.csv has them",
)
IN_HTML = Words(
    medium=Medium.HTML,
    estimate="estimated ",
    published="published ",
    result=_short_result,
    needs=_short_needs,
    rest="the list of every trial has them",
)


def card_table(cards: CardTable, corner_text: str, tone: Callable[[Trial | None], Tone]) -> Table:
    """Return a table with the headroom of each trial on each card, in the tones of a medium."""
    names = place_names(cards)
    rows: list[Row] = []
    for place in cards.places[:MOST_ROWS]:
        trials = [cards.cells.get((place, column)) for column in cards.columns]
        rows.append([names[place], *(Cell(text=headroom_text(trial), tone=tone(trial)) for trial in trials)])
    return Table(number_columns(corner_text, card_names(cards), wrap=Wrap.CUT), rows)


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{each: f"\\{each}" for each in "&%$#_{}"},
}
_ANY_SPECIAL = re.compile("[" + re.escape("".join(_SPECIAL)) + "]")


def latex_tables(report: SweepReport) -> str:
    """Return one `table` environment per section."""
    tables = [_table(part, report.grid) for part in report.sections]
    return "\n".join(["% Needs \\usepackage{booktabs}.", *tables])


def latex(text: str) -> str:
    """Return `text` on one line, with every character that LaTeX would interpret escaped."""
    return _ANY_SPECIAL.sub(lambda found: _SPECIAL[found[0]], plain(" ".join(text.split())))


def _table(part: SectionReport, grid: str) -> str:
    section, table = part.section, part.matrix
    caption = f"Peak allocated GPU memory in GiB ({grid}). {setting_title(section.setting)}."
    if any(cell.status is Status.OOM for cell in section.cells.values()):
        caption += " In italics: out of memory; the number is what the trial needs."
    names = column_names(table)
    header = _row([corner(table), *(names[column] for column in table.columns)])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *_rows(table),
            r"\bottomrule",
            r"\end{tabular}",
            f"% {plain(versions_text(section.setting))}",
            r"\end{table}",
            "",
        ]
    )


def _rows(table: Matrix) -> Iterable[str]:
    for row in table.rows[:MOST_ROWS]:
        cells = (_cell(table.cells.get((row, column))) for column in table.columns)
        yield f"{latex(row)} & {' & '.join(cells)} \\\\"
    if (more := len(table.rows) - MOST_ROWS) > 0:
        yield f"% {more} more rows: comparison.csv has them"


def _row(texts: Sequence[str]) -> str:
    return f"{' & '.join(map(latex, texts))} \\\\"


def _cell(cell: Trial | None) -> str:
    if cell is None:
        return "--"
    if cell.status is Status.OOM:
        return r"\textit{OOM}" if cell.result_bytes is None else rf"\textit{{{gib_number(cell.result_bytes)}}}"
    return latex(result_text(cell))
