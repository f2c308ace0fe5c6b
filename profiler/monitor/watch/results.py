"""What a monitored run leaves: its record and time series, and tables, pages and figures of all runs in the folder."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from profiler.analysis.runs import Course, MonitoredLines, monitored_lines
from profiler.domain.runs.other_runs import MonitoredRun
from profiler.rendering.document import FIGURES, RenderedFigure
from profiler.rendering.figures.theme import rendered
from profiler.rendering.figures.timeline import (
    gpu_timeline_figure,
    host_timeline_figure,
    script_phases_figure,
    steps_figure,
)
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.runs.monitored import monitored_page, monitored_sentences, monitored_title
from profiler.storage.files.atomic import remove_abandoned, write_atomically, write_parts_atomically
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.storage.tables.run_tables import GPU_SAMPLES, HOST_SAMPLES, write_monitored_tables

PAGE, MARKDOWN = "report.html", "report.md"

MOST_WITH_FIGURES = 10
"""The newest runs of a folder have figures; of others the page has the numbers."""


def write_report(folder: Path) -> tuple[str, ...]:
    """Write parquet tables, `report.html`, `report.md` and figures of all runs in `folder`.

    Returns:
        A sentence for each file that is no record, and for each figure that could not be made.

    Raises:
        StorageError: A file could not be written.
    """
    problems: list[str] = []
    records = RecordFolder(folder, MONITORED, notify=problems.append).read_all()
    remove_abandoned(folder)
    write_monitored_tables(folder, records)
    newest = sorted(records, key=lambda record: record.run_id, reverse=True)
    runs = [lines_of(folder, record) for record in newest]
    made = {run.record.run_id: tuple(_figures(folder, run)) for run in runs[:MOST_WITH_FIGURES]}
    figures = {
        run_id: tuple(figure for figure in own if isinstance(figure, RenderedFigure)) for run_id, own in made.items()
    }
    page = monitored_page(folder.resolve().name, runs, figures)
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    write_parts_atomically(folder / PAGE, html(page))
    return (*problems, *(problem for own in made.values() for problem in own if isinstance(problem, str)))


def sentences(run: MonitoredLines) -> tuple[str, ...]:
    """Return what a terminal shows of a run."""
    return (monitored_title(run), *monitored_sentences(run))


def lines_of(folder: Path, record: MonitoredRun) -> MonitoredLines:
    """Return a run with its curves."""
    samples = GPU_SAMPLES.read(folder, [record.run_id])
    host = HOST_SAMPLES.read(folder, [record.run_id])
    return monitored_lines(record, gpus=tuple(_gpu_courses(record, samples)), host=tuple(_host_courses(host)))


def _gpu_courses(record: MonitoredRun, samples: pa.Table) -> Iterator[Course]:
    for gpu in record.gpus:
        own = samples.filter(pc.equal(samples["gpu"], gpu.index))
        name = f"GPU {gpu.index}, " if len(record.gpus) > 1 else ""
        yield _course(f"{name}all programs", own, "device_used_bytes")
        if len(record.gpus) == 1:
            yield _course("this run", own, "process_used_bytes")


def _host_courses(host: pa.Table) -> Iterator[Course]:
    yield _course("processes of the run", host, "tree_bytes")
    yield _course("all programs", host, "used_bytes")


def _course(label: str, table: pa.Table, column: str) -> Course:
    known = table.filter(pc.is_valid(table[column]))
    return Course(label=label, times_s=tuple(known["time_s"].to_pylist()), sizes_bytes=tuple(known[column].to_pylist()))


def _figures(folder: Path, run: MonitoredLines) -> Iterator[RenderedFigure | str]:
    plans: Sequence[tuple[str, str, bool, Callable[[MonitoredLines, str], Figure]]] = (
        ("gpus", "Memory on the GPU", bool(run.gpus), gpu_timeline_figure),
        ("phases", "Peak by phase", bool(run.outcome.peaks.allocated_bytes), script_phases_figure),
        ("steps", "Peak by step", run.steps > 1, steps_figure),
        ("host", "Memory on the host", bool(run.host), host_timeline_figure),
    )
    for kind, title, has_values, draw in plans:
        if has_values:
            yield _written(folder, f"{run.record.run_id}_{kind}", title, partial(draw, run, monitored_title(run)))


def _written(folder: Path, name: str, title: str, draw: Callable[[], Figure]) -> RenderedFigure | str:
    found = rendered(name, title, draw)
    if isinstance(found, str):
        return found
    figure, files = found
    for kind, content in files.items():
        write_atomically(folder / FIGURES / f"{name}.{kind}", content)
    return figure
