"""The runs of a script: their page, and one run as text for a terminal."""

from collections.abc import Mapping, Sequence
from textwrap import fill

from profiler.analysis.scripts import RunLines
from profiler.domain.memory import Phase
from profiler.rendering.document import Block, Document, RenderedFigure, Section
from profiler.rendering.layouts.text_table import text_table
from profiler.rendering.runs.page import run_section, run_table, runs_page
from profiler.rendering.runs.script_words import (
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


_WIDTH = 80
_SIZES = ("allocated", "reserved")


def script_table(run: RunLines) -> str:
    """Return the table of a run's phases, and what there is to say of it."""
    sentences = [_filled(sentence) for sentence in run_sentences(run)]
    first = 1 if run.record.substitutes else 0
    lines = [*sentences[:first], run_title(run)]
    if run.phases:
        rows = [
            (line.phase.value, short_gib(run, line.allocated_bytes), short_gib(run, line.reserved_bytes))
            for line in run.phases
        ]
        lines += [*text_table(("phase", *_SIZES), rows, numbers=_SIZES), f"{UNIT_NOTE}."]
    lines += sentences[first:]
    if run.largest:
        lines.append(f"{held_title(run)}:")
        lines += text_table(("GiB", "tensors", "what", "line"), held_rows(run), numbers=("GiB", "tensors"))
    return "\n".join(lines) + "\n"


def _filled(sentence: str) -> str:
    return fill(sentence, _WIDTH, break_long_words=False, break_on_hyphens=False)
