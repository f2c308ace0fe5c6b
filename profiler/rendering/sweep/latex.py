"""`table.tex`: the comparison of each section as a LaTeX table, for a paper that uses booktabs."""

import re
from collections.abc import Iterable, Sequence

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.matrix import Matrix
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.runs.outcome import Status
from profiler.domain.text.plain_text import plain
from profiler.rendering.document import MOST_ROWS
from profiler.rendering.sweep.words import (
    column_names,
    corner,
    gib_number,
    result_text,
    setting_title,
    versions_text,
)

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
    lines = [
        _row([corner(table), *(names[column] for column in table.columns)]),
        r"\midrule",
        *_rows(table),
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            *lines,
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


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    if cell.status is Status.OOM:
        return r"\textit{OOM}" if cell.result_bytes is None else rf"\textit{{{gib_number(cell.result_bytes)}}}"
    return latex(result_text(cell))
