"""The runs of a script: their page, one run as text for a terminal, and the sentences of both."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from profiler.analysis.runs import RunLines
from profiler.domain.memory import Phase, gib_text
from profiler.domain.runs.other_runs import COMPLETION_TOKENS, PROMPT_TOKENS, HeldTensors, LateEvents, ScriptWeights
from profiler.domain.runs.outcome import Status, UnlimitedCard
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
from profiler.rendering.runs.page import (
    failure_sentence,
    first_lines,
    peak_sentence,
    run_section,
    run_table,
    runs_page,
    short_gib,
    size_text,
    substitutes_sentence,
    verdict_text,
    versions_line,
)

UNIT_NOTE = "GiB (2^30 bytes): the peak of each phase"
NULL = "null"


def run_title(run: RunLines) -> str:
    """Return ``"Emulated on NVIDIA L40S (44.4 GiB): train.py, rank 0 of 8"``."""
    card = run.outcome.card
    memory = f" ({gib_text(card.memory_bytes)})" if card.memory_bytes is not None else ""
    processes = run.record.spec.num_processes
    rank = f", rank 0 of {processes}" if processes > 1 else ""
    return f"{run.origin.capitalize()} on {card.name or 'an unknown card'}{memory}: {run.script}{rank}"


def run_sentences(run: RunLines) -> Iterator[str]:
    """Yield what there is to say of a run, one sentence per line; what was replaced comes first."""
    if run.record.substitutes:
        yield substitutes_sentence(run.record.substitutes)
    if run.outcome.peaks.allocated_bytes is not None:
        yield peak_sentence(run)
    if run.record.late_events is not None:
        yield _late_events(run, run.record.late_events)
    if run.out_of_memory is not None:
        yield failure_sentence(run)
    if run.out_of_memory is not None and run.outcome.unlimited is not None:
        yield _needs(run, run.outcome.unlimited)
    if run.outcome.message:
        yield first_lines(run.outcome.message)
    yield _work(run)
    if run.outcome.verdict.unavailable:
        yield f"Not measured: {run.outcome.verdict.unavailable}."


def held_rows(run: RunLines) -> list[tuple[str, str, str, str]]:
    """Return the largest tensors: GiB, number, what they are, and the line that made them."""
    return [(short_gib(run, held.size_bytes), f"{held.tensors:,}", _what(held), held.line) for held in run.largest]


def held_title(run: RunLines) -> str:
    """Return the title of the table of the largest tensors."""
    when = "when the allocation failed" if run.out_of_memory is not None else "at the peak"
    return f"Largest tensors {when}"


def _late_events(run: RunLines, late: LateEvents) -> str:
    """Return both bounds where they differ: memory of other streams returns at once, or when host and card have met."""
    peaks = run.outcome.peaks
    if late.status is not Status.OK:
        return f"With late events the script ends differently: {late.status}."
    if (late.allocated_bytes, late.reserved_bytes) == (peaks.allocated_bytes, peaks.reserved_bytes):
        return "With late events: the same peaks."
    sizes = f"{size_text(late.allocated_bytes)} allocated; {size_text(late.reserved_bytes)} reserved"
    return f"With late events: {sizes}. A real card is between both."


def _needs(run: RunLines, needs: UnlimitedCard) -> str:
    reserved = needs.required_reserved_bytes
    more = "" if reserved is None else f"; {gib_text(reserved, 2)} reserved"
    return f"It needs {gib_text(needs.required_allocated_bytes, 2)} allocated{more} ({run.origin}, unlimited memory)."


def _work(run: RunLines) -> str:
    work, ending = run.outcome.work, run.record.ending
    parts = []
    if work.steps_run is not None:
        steps = "step" if work.steps_run == 1 else "steps"
        parts.append(f"{work.steps_run:,} optimizer {steps}, {work.micro_batches_run or 0:,} backward passes")
    if work.parameters:
        parts.append(f"{work.parameters:,} parameters, {work.trainable_parameters or 0:,} trainable")
    if ending is not None and ending.by_steps:
        parts.append(f"ended by steps={run.record.spec.steps}")
    if not parts:
        return f"Status: {verdict_text(run)}."
    return f"{'; '.join(parts)}."


def _what(held: HeldTensors) -> str:
    if held.name:
        return held.name
    if held.library:
        return f"made in {held.library}"
    return "" if held.line else "unknown: made in a backward pass or by a library"


def command_text(run: RunLines) -> str:
    """Return the command of a run."""
    spec = run.record.spec
    keys = [f"backend={spec.backend}", f"gpu={spec.gpu}" if spec.gpu else "", f"steps={spec.steps or NULL}"]
    keys += [f"num_processes={spec.num_processes}"] if spec.num_processes > 1 else []
    keys += [f"weights={spec.weights}"] if spec.weights is not ScriptWeights.RANDOM else []
    keys += [f"prompt_tokens={spec.prompt_tokens}"] if spec.prompt_tokens != PROMPT_TOKENS else []
    keys += [f"completion_tokens={spec.completion_tokens}"] if spec.completion_tokens != COMPLETION_TOKENS else []
    words = [*filter(None, keys), *spec.launcher, spec.script, *spec.arguments]
    return f"python -m profiler.run {shlex.join(words)}"


def versions_text(run: RunLines) -> str:
    """Return ``"torch 2.13.0+cu130, trl 1.16.0, ..."``."""
    return versions_line(run.record.versions)


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
