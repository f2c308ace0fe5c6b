"""The end of a run: tables, pages and figures of all runs of a script, the table on the terminal, a job's record."""

import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure as MatplotlibFigure

from profiler.analysis.card_courses import card_courses
from profiler.analysis.runs import RunLines, ordered_runs, run_lines
from profiler.command_line import print_error, print_line, print_text
from profiler.domain.cards.gpu import Gpu
from profiler.domain.runs.other_runs import JobMemory, JobProcess, JobRecord, ScriptRecord
from profiler.domain.runs.outcome import Status
from profiler.emulation.card import choice_of, job_of, marks_of_file, settings_of
from profiler.emulation.launch import MARKS
from profiler.rendering.document import FIGURES, RenderedFigure
from profiler.rendering.figures.theme import rendered
from profiler.rendering.figures.timeline import job_course_figure, script_phases_figure
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.runs.page import ended_by, job_page, job_table, process_name
from profiler.rendering.runs.script import run_title, script_page, script_table
from profiler.run.command import JobCommand, JobEnd
from profiler.storage.files.atomic import remove_abandoned, write_atomically, write_parts_atomically
from profiler.storage.files.typed_json import to_json
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder
from profiler.storage.tables.run_tables import write_script_tables
from profiler.substitutes.options import Replaced

PAGE, MARKDOWN = "report.html", "report.md"
_RECORD = "job.json"
_COURSE, _COURSE_TITLE = "course", "Who holds what of each card"


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
    return _write_figure(folder, run.record.run_id, "Peak by phase", lambda: script_phases_figure(run, run_title(run)))


def _write_figure(folder: Path, name: str, title: str, draw: Callable[[], MatplotlibFigure]) -> RenderedFigure | str:
    found = rendered(name, title, draw)
    if isinstance(found, str):
        return found
    figure, files = found
    for kind, content in files.items():
        write_atomically(folder / FIGURES / f"{figure.name}.{kind}", content)
    return figure


def job_record(command: JobCommand, gpu: Gpu, end: JobEnd, processes: Path) -> JobRecord:
    """Return the record of a command that has ended; `processes` is the folder in which its processes have written."""
    memory = job_of(processes)
    status, message = _verdict(end, memory, command.options.timeout_s)
    ranks, chosen = command.options.ranks, choice_of(processes)
    return JobRecord(
        command=command.words,
        gpu=gpu.title,
        cards=command.cards.count,
        memory_bytes=gpu.memory_bytes,
        status=status,
        message=message,
        exit_code=end.exit_code,
        wall_s=end.wall_s,
        memory=memory,
        values=marks_of_file(processes / MARKS).values,
        left=end.left,
        substitutes=Replaced.of_job(processes).phrases(),
        ranks=chosen if ranks is None else ranks,
        ranks_chosen=ranks is None and chosen is not None,
        settings=settings_of(processes),
    )


_OUT_OF_MEMORY = ("OutOfMemoryError:", "AcceleratorError: CUDA error: out of memory")
"""Beginnings of sentences of torch."""
_IN_USE = ("is in use by", "ddress already in use", "EADDRINUSE")
"""Parts of sentences of a process that finds its port busy: ours, of the C library, and of torch."""
_LOST = re.compile(r"[\w.]*(Connect|BrokenPipe|EOFError|Timeout|DistNetwork)\w*:?")
"""Errors of a process that does not reach another one, or no longer."""


_MEANINGS = {
    124: "with which timeout(1) ends a command whose time is over",
    126: "with which a shell says that a program cannot be run",
    127: "with which a shell says that there is no such program",
    137: "with which a shell says that a program was ended by SIGKILL, as where the host's memory is full",
}
"""Of exit codes."""


def _verdict(end: JobEnd, memory: JobMemory, timeout_s: float) -> tuple[Status, str]:
    """Return how a command ended, and the process whose error was the first one, with its sentence."""
    if end.timed_out:
        return Status.TIMEOUT, f"the command ran longer than timeout_s={timeout_s:g}"
    if end.exit_code == 0:
        return Status.OK, ""
    failed = min((one for one in memory.processes if one.last_sentence), key=_as_a_cause, default=None)
    killed = [process_name(one) for one in memory.processes if any(one.peak_bytes) and not one.has_ended_itself]
    if failed is not None and (not _as_a_cause(failed)[0] or any(failed.peak_bytes) or not killed):
        status = Status.OOM if failed.last_sentence.startswith(_OUT_OF_MEMORY) else Status.FAILED
        return status, ended_by(failed)
    without = f"; without a word ended {', '.join(killed)}" if killed else ""
    if end.exit_code < 0:
        return Status.KILLED, f"the command ended by {signal.Signals(-end.exit_code).name}{without}"
    meaning = f", {_MEANINGS[end.exit_code]}" if end.exit_code in _MEANINGS else ""
    return Status.FAILED, f"the command ended with exit code {end.exit_code}{meaning}{without}"


def _as_a_cause(process: JobProcess) -> tuple[bool, float]:
    """Order processes that failed by how likely they are the cause, and equally likely ones by when they failed.

    First those with memory on a card, as a script may look for a package before, and those whose port is busy, such as
    a server that has not begun. A process that only lost another one is with the others, and so comes after that one.
    """
    is_in_use = any(words in process.last_sentence for words in _IN_USE)
    fails_alone = any(process.peak_bytes) and not _LOST.match(process.last_sentence)
    return not (is_in_use or fails_alone), process.last_sentence_s


def report_job(folder: Path, record: JobRecord) -> None:
    """Write the record, page and figure of a command into its folder, and show its table.

    Raises:
        StorageError: A file could not be written.
    """
    write_atomically(folder / _RECORD, json.dumps(to_json(record), indent=1).encode())
    courses = card_courses(record)
    figure = (
        _write_figure(folder, _COURSE, _COURSE_TITLE, lambda: job_course_figure(courses, record)) if courses else None
    )
    if isinstance(figure, str):
        print_error(figure)
    page = job_page(folder.name, record, courses, figure if isinstance(figure, RenderedFigure) else None)
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    write_parts_atomically(folder / PAGE, html(page))
    print_text(job_table(record, courses))
    print_line(f"Record: {folder / _RECORD}")
    print_line(f"Report: {folder / PAGE}")
