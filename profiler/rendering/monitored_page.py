"""The pages of monitored runs: those in a folder as `report.html` and as `report.md`."""

from collections.abc import Mapping, Sequence

from profiler.analysis.monitored import MonitoredLines, own_peak_bytes
from profiler.domain.monitored import Watcher
from profiler.domain.units import as_gib
from profiler.rendering.monitored_words import monitored_sentences, monitored_title
from profiler.rendering.pages import RenderedFigure
from profiler.rendering.run_page import PageTable, RunPage, RunSection, page_html, page_markdown
from profiler.rendering.script_words import short_gib, verdict_text, versions_line

_COLUMNS = ("run", "status", "allocated", "reserved", "this run on the card", "all programs", "estimated")


def monitored_html(name: str, runs: Sequence[MonitoredLines], figures: Mapping[str, Sequence[RenderedFigure]]) -> str:
    """Return one HTML file with everything in it; `figures` are by run id."""
    return page_html(_page(name, runs, figures))


def monitored_markdown(
    name: str, runs: Sequence[MonitoredLines], figures: Mapping[str, Sequence[RenderedFigure]]
) -> str:
    """Return the page that GitHub shows, with links to the figures."""
    return page_markdown(_page(name, runs, figures))


def _page(name: str, runs: Sequence[MonitoredLines], figures: Mapping[str, Sequence[RenderedFigure]]) -> RunPage:
    return RunPage(
        name=name,
        kind="a monitored run",
        question="How much GPU memory did each run take, and when?",
        columns=_COLUMNS,
        overview=[_overview(run) for run in runs],
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


def _run(run: MonitoredLines, figures: Sequence[RenderedFigure]) -> RunSection:
    tables = []
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
        tables.append(PageTable(title=f"Peak of each phase, {run.origin}, GiB", columns=columns, rows=rows))
    by_command = run.record.watcher is Watcher.COMMAND
    return RunSection(
        title=monitored_title(run),
        sentences=list(monitored_sentences(run)),
        figures=figures,
        tables=tables,
        command=f"python -m profiler.monitor {run.command}" if by_command else run.command,
        versions=versions_line(run.record.versions),
        text=run.record.estimate.text.rstrip() if run.record.estimate else "",
    )
