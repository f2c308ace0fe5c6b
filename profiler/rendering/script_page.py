"""The page of a script: the runs in its folder."""

from collections.abc import Mapping, Sequence

from profiler.analysis.scripts import RunLines
from profiler.domain.memory import Phase
from profiler.rendering.document import Block, Document, RenderedFigure, Section
from profiler.rendering.run_page import run_section, run_table, runs_page
from profiler.rendering.script_words import (
    UNIT_NOTE,
    command_text,
    held_rows,
    held_title,
    run_sentences,
    run_title,
    short_gib,
    verdict_text,
    versions_text,
)


def script_page(name: str, runs: Sequence[RunLines], figures: Mapping[str, RenderedFigure]) -> Document:
    """Return the page of the runs in the folder of a script; `figures` are by run id."""
    phases = [phase for phase in Phase if any(line.phase is phase for run in runs for line in run.phases)]
    return runs_page(
        name,
        kind="a training script",
        question="How much GPU memory does this script need, and in which phase?",
        columns=["run", "origin", "status", *(phase.value for phase in phases), "reserved", "with context"],
        rows=[_overview(run, phases) for run in runs],
        unit=f"{UNIT_NOTE}, allocated in tensors; reserved by torch and, with the CUDA context, on the card.",
        runs=[_run(run, figures.get(run.record.run_id)) for run in runs],
    )


def _overview(run: RunLines, phases: Sequence[Phase]) -> list[str]:
    by_phase = {line.phase: line.allocated_bytes for line in run.phases}
    peaks = run.outcome.peaks
    return [
        run_title(run),
        str(run.origin),
        verdict_text(run),
        *(short_gib(run, by_phase.get(phase)) for phase in phases),
        short_gib(run, peaks.reserved_bytes),
        short_gib(run, peaks.device_bytes),
    ]


def _run(run: RunLines, figure: RenderedFigure | None) -> Section:
    tables: list[Block] = []
    if run.phases:
        steps = [f"step {step}" for step in range(1, run.steps + 1)]
        rows = [
            (
                line.phase.value,
                short_gib(run, line.allocated_bytes),
                short_gib(run, line.reserved_bytes),
                *(short_gib(run, size) for size in line.steps_bytes),
            )
            for line in run.phases
        ]
        columns = ["phase", "allocated", "reserved", *steps]
        tables += run_table(f"Peak of each phase, {run.origin}, GiB", columns, rows)
    if run.largest:
        held = [(what, line, gib, tensors) for gib, tensors, what, line in held_rows(run)]
        columns = ["what", "line", "GiB", "tensors"]
        tables += run_table(f"{held_title(run)}, {run.origin}", columns, held)
    return run_section(
        run_title(run),
        sentences=run_sentences(run),
        figures=() if figure is None else (figure,),
        tables=tables,
        command=command_text(run),
        versions=versions_text(run),
    )
