"""Monitored runs: the page of those in a folder, and the sentences that it shares with the terminal."""

from collections.abc import Iterator, Mapping, Sequence

from profiler.analysis.runs import MonitoredLines, own_peak_bytes
from profiler.domain.memory import as_gib, gib_text
from profiler.domain.runs.other_runs import MonitoredGpu, Watcher
from profiler.domain.runs.outcome import CardFacts
from profiler.rendering.document import Block, Document, RenderedFigure, Section
from profiler.rendering.memory_words import growth_text
from profiler.rendering.runs.page import (
    failure_sentence,
    first_lines,
    peak_sentence,
    run_section,
    run_table,
    runs_page,
    short_gib,
    verdict_text,
    versions_line,
)

LEAST_STEPS = 20
"""Fewer say too little of how memory grows (our choice)."""
_FIRST_STEPS = 2
"""Steps that are no part of a growth: the first one makes the optimizer's states, the second frees what it left."""
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


_LONGEST_COMMAND = 60


def monitored_title(run: MonitoredLines) -> str:
    """Return ``"NVIDIA L40S (44.4 GiB): train.py --lr 1e-5, 2026-01-31 09:00:00 UTC"``."""
    command = " ".join(run.command.split())
    shown = command if len(command) <= _LONGEST_COMMAND else f"{command[:_LONGEST_COMMAND]}..."
    rank = "" if run.record.rank is None else f", rank {run.record.rank}"
    return f"{_cards(run)}: {shown}{rank}, {run.record.started_at[:19].replace('T', ' ')} UTC"


def _cards(run: MonitoredLines) -> str:
    gpus = run.record.gpus
    if not gpus:
        return "No GPU"
    names = dict.fromkeys(f"{gpu.name} ({gib_text(gpu.memory_bytes)})" for gpu in gpus)
    return f"{len(gpus)} x {', '.join(names)}" if len(gpus) > 1 else next(iter(names))


def monitored_sentences(run: MonitoredLines) -> Iterator[str]:
    """Yield what there is to say of a run, one sentence per line."""
    if run.outcome.peaks.allocated_bytes is not None:
        yield peak_sentence(run)
    for gpu in run.record.gpus:
        yield _gpu(gpu, run)
    if run.record.estimate is not None:
        yield _estimated(run)
    before_bytes = sum(gpu.before_bytes or 0 for gpu in run.record.gpus)
    if growth := growth_of_steps(run.step_peaks, run.outcome.card, others_bytes=before_bytes):
        yield growth
    if run.out_of_memory is not None:
        yield failure_sentence(run)
    yield _ending(run)
    yield from _counters(run)
    if run.record.host.used_bytes is not None:
        yield _host(run)
    if run.outcome.verdict.unavailable:
        yield f"Not measured: {run.outcome.verdict.unavailable}."


def growth_of_steps(peaks: Sequence[tuple[int, int]], card: CardFacts, *, others_bytes: int | None) -> str | None:
    """Return how the allocated memory of steps grows; None for fewer than `LEAST_STEPS`.

    Args:
        peaks: Each step, from 1 on, with its highest allocated memory.
        card: With all its memory, and what CUDA takes beyond torch's.
        others_bytes: What other programs have on the card; unknown is as none.
    """
    if len(peaks) < LEAST_STEPS:
        return None
    taken_bytes = (others_bytes or 0) + (card.context_bytes or 0)
    limit_bytes = None if card.memory_bytes is None else card.memory_bytes - taken_bytes
    return growth_text(peaks[_FIRST_STEPS:], limit_bytes)


def _gpu(gpu: MonitoredGpu, run: MonitoredLines) -> str:
    if gpu.peak_used_bytes is None:
        return f"GPU {gpu.index}: {gpu.problem or 'the driver does not report its memory'}."
    parts = [f"{gib_text(gpu.peak_used_bytes, 2)} of {gib_text(gpu.memory_bytes, 2)} by all programs"]
    if gpu.peak_process_bytes is not None:
        parts.append(f"{gib_text(gpu.peak_process_bytes, 2)} by this run")
    if gpu.before_bytes:
        parts.append(f"{gib_text(gpu.before_bytes, 2)} before it")
    if gpu.mean_utilisation_percent is not None:
        parts.append(f"mean utilisation {gpu.mean_utilisation_percent:.0f} %")
    if gpu.mean_power_watts is not None:
        parts.append(f"mean power {gpu.mean_power_watts:.0f} W")
    lost = f" Sampling ended early: {gpu.problem}." if gpu.problem else ""
    period = run.outcome.measured.sample_period_s if run.outcome.measured else None
    every = f", sampled every {period:g} s" if period is not None else ""
    return f"GPU {gpu.index}, highest reading of the driver{every}: {'; '.join(parts)}.{lost}"


def _estimated(run: MonitoredLines) -> str:
    estimate = run.record.estimate
    if estimate is None:
        return ""
    parts = [f"{gib_text(estimate.peak_bytes, 2)} in {estimate.phase}"]
    if estimate.device_bytes is not None:
        parts.append(f"{gib_text(estimate.device_bytes, 2)} on the card with cache and CUDA context")
    compared = ""
    own = own_peak_bytes(run.fullest) if run.fullest is not None else None
    expected = estimate.device_bytes or estimate.peak_bytes
    if own and expected:
        difference = own / expected - 1
        more = "more" if difference >= 0 else "less"
        compared = f" The run had {abs(difference):.0%} {more} on its fullest GPU."
    return f"Estimated: {'; '.join(parts)}.{compared}"


def _ending(run: MonitoredLines) -> str:
    wall_s, work = run.outcome.work.wall_s, run.outcome.work
    after = "" if wall_s is None else f" after {wall_s:,.1f} s"
    if run.record.watcher is Watcher.CALLBACK:
        steps = "step" if work.steps_run == 1 else "steps"
        how = f"{work.steps_run or 0:,} optimizer {steps}, {run.outcome.status}{after}"
    else:
        how = f"Exit code {run.record.exit_code}{after}"
    return f"{how}: {first_lines(run.outcome.message)}." if run.outcome.message else f"{how}."


def _counters(run: MonitoredLines) -> Iterator[str]:
    retries = run.outcome.peaks.alloc_retries
    if retries:
        times = "once" if retries == 1 else f"{retries:,} times"
        yield f"torch's allocator released its cache and tried again {times}."


def _host(run: MonitoredLines) -> str:
    host = run.record.host
    whole = f"{gib_text(host.used_bytes or 0, 2)} of {gib_text(host.total_bytes or 0, 2)} in use on the host"
    if host.tree_bytes is None or host.processes is None:
        return f"At most {whole}."
    processes = "process" if host.processes == 1 else "processes"
    shared = "" if host.shared_bytes is None else f" ({gib_text(host.shared_bytes, 2)} of it shared or of files)"
    return f"At most {host.processes:,} {processes} with {gib_text(host.tree_bytes, 2)} together{shared}; {whole}."
