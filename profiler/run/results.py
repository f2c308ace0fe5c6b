"""The end of a run: tables, pages and figures of all runs of the script, and the table on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from profiler.analysis.runs import RunLines, ordered_runs, run_lines
from profiler.command_line import print_error, print_line, print_text
from profiler.domain.runs.other_runs import ScriptRecord
from profiler.rendering.document import FIGURES, RenderedFigure
from profiler.rendering.figures.theme import rendered
from profiler.rendering.figures.timeline import script_phases_figure
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.runs.script import run_title, script_page, script_table
from profiler.storage.files.atomic import remove_abandoned, write_atomically, write_parts_atomically
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder
from profiler.storage.tables.run_tables import write_script_tables

PAGE, MARKDOWN = "report.html", "report.md"


def report_run(folder: Path, record: ScriptRecord) -> None:
    """Write the tables and pages of all runs in `folder`, and show `record`.

    Raises:
        StorageError: A file could not be written.
    """
    records = RecordFolder(folder, SCRIPTS, notify=print_error).read_all()
    for problem in write_pages(folder, records):
        print_error(problem)
    print_text(script_table(run_lines(record)))
    print_line(f"Report: {folder / PAGE}")


def write_pages(folder: Path, records: Sequence[ScriptRecord]) -> tuple[str, ...]:
    """Write parquet tables, `report.html`, `report.md` and figures.

    Returns:
        A sentence for each figure that could not be drawn.

    Raises:
        StorageError: A file could not be written.
    """
    remove_abandoned(folder)
    write_script_tables(folder, records)
    runs = ordered_runs(records)
    made = {run.record.run_id: _draw(folder, run) for run in runs if run.outcome.peaks.allocated_bytes}
    figures = {run_id: figure for run_id, figure in made.items() if isinstance(figure, RenderedFigure)}
    page = script_page(runs[0].script if runs else folder.name, runs, figures)
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    write_parts_atomically(folder / PAGE, html(page))
    return tuple(problem for problem in made.values() if isinstance(problem, str))


def _draw(folder: Path, run: RunLines) -> RenderedFigure | str:
    found = rendered(run.record.run_id, "Peak by phase", lambda: script_phases_figure(run, run_title(run)))
    if isinstance(found, str):
        return found
    figure, files = found
    for kind, content in files.items():
        write_atomically(folder / FIGURES / f"{figure.name}.{kind}", content)
    return figure
