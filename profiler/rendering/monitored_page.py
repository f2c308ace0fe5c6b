"""The page of the monitored runs in a folder."""

from collections.abc import Mapping, Sequence

from profiler.analysis.monitored import MonitoredLines, own_peak_bytes
from profiler.domain.monitored import Watcher
from profiler.domain.units import as_gib
from profiler.rendering.document import Block, Document, RenderedFigure, Section
from profiler.rendering.monitored_words import monitored_sentences, monitored_title
from profiler.rendering.run_page import run_section, run_table, runs_page
from profiler.rendering.script_words import short_gib, verdict_text, versions_line

_COLUMNS = ("run", "status", "allocated", "reserved", "this run on the card", "all programs", "estimated")


def monitored_page(
    name: str, runs: Sequence[MonitoredLines], figures: Mapping[str, Sequence[RenderedFigure]]
) -> Document:
    """Return the page of the monitored runs in a folder; `figures` are by run id."""
    return runs_page(
        name,
        kind="a monitored run",
        question="How much GPU memory did each run take, and when?",
        columns=_COLUMNS,
        rows=[_overview(run) for run in runs],
        unit="GiB (2^30 bytes), measured: in tensors and reserved by torch's counters, on the card by the driver. "
        "The last column is estimated.",
        runs=[_run(run, figures.get(run.record.run_id, ())) for run in runs],
    )


def _overview(run: MonitoredLines) -> list[str]:
    peaks, gpu, estimate = run.outcome.peaks, run.fullest, run.record.estimate
    own = peaks.device_bytes if peaks.device_bytes is not None else own_peak_bytes(gpu) if gpu else None
    return [
        monitored_title(run),
        verdict_text(run),
        *(
            _gib(size)
            for size in (
                peaks.allocated_bytes,
                peaks.reserved_bytes,
                own,
                gpu.peak_used_bytes if gpu else None,
                (estimate.device_bytes or estimate.peak_bytes) if estimate else None,
            )
        ),
    ]


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{as_gib(size_bytes):.2f}"


def _run(run: MonitoredLines, figures: Sequence[RenderedFigure]) -> Section:
    tables: list[Block] = []
    if run.phases:
        rows = [
            (
                line.phase.value,
                short_gib(run, line.allocated_bytes),
                short_gib(run, line.reserved_bytes),
                _gib(peak.sampled_max_device_bytes),
            )
            for line, peak in zip(run.phases, run.outcome.peaks.phases, strict=True)
        ]
        columns = ["phase", "allocated", "reserved", "all programs, sampled"]
        tables += run_table(f"Peak of each phase, {run.origin}, GiB", columns, rows)
    by_command = run.record.watcher is Watcher.COMMAND
    return run_section(
        monitored_title(run),
        sentences=monitored_sentences(run),
        figures=figures,
        tables=tables,
        command=f"python -m profiler.monitor {run.command}" if by_command else run.command,
        versions=versions_line(run.record.versions),
        text=run.record.estimate.text.rstrip() if run.record.estimate else "",
    )
