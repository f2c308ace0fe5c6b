"""The runs of a script: their page, and one run as text for a terminal."""

from collections.abc import Mapping, Sequence

from profiler.analysis.scripts import RunLines
from profiler.domain.memory import Phase
from profiler.rendering.document import (
    Block,
    Column,
    Document,
    Heading,
    RenderedFigure,
    Section,
    Table,
    Text,
    number_columns,
    text_columns,
)
from profiler.rendering.layouts.plain_text import plain_text
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


def script_table(run: RunLines) -> str:
    """Return the table of a run's phases, and what there is to say of it."""
    sentences = [Text(sentence) for sentence in run_sentences(run)]
    first = 1 if run.record.substitutes else 0
    blocks: list[Block] = [*sentences[:first], Heading(run_title(run))]
    if run.phases:
        rows = [
            (line.phase.value, short_gib(run, line.allocated_bytes), short_gib(run, line.reserved_bytes))
            for line in run.phases
        ]
        blocks += [Table(number_columns("phase", ("allocated", "reserved")), rows), Text(f"{UNIT_NOTE}.")]
    blocks += sentences[first:]
    if run.largest:
        columns = [*(Column(title=title) for title in ("GiB", "tensors")), *text_columns(("what", "line"))]
        blocks += [Heading(f"{held_title(run)}:"), Table(columns, held_rows(run))]
    return plain_text(Document(title=run_title(run), blocks=blocks))
