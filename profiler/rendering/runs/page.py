"""Pages of runs that have no trial: an overview, what is shown of each run, and a command on an emulated machine."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from profiler.analysis.card_courses import CardCourse, Holder
from profiler.analysis.runs import ShownRun
from profiler.domain.memory import GIB, Origin, as_gib, gib_text, mib_text
from profiler.domain.runs.other_runs import JobPhase, JobProcess, JobRecord
from profiler.domain.runs.outcome import Status, Versions
from profiler.rendering.document import (
    Block,
    Bullets,
    Code,
    Column,
    Document,
    Figure,
    Heading,
    Medium,
    RenderedFigure,
    Row,
    Section,
    Table,
    Text,
    Tone,
    number_columns,
    text_columns,
)
from profiler.rendering.layouts.plain_text import plain_text
from profiler.rendering.memory_words import CATEGORY_TITLES


def runs_page(
    name: str,
    *,
    kind: str,
    question: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    unit: str,
    runs: Sequence[Block],
) -> Document:
    """Return the page of all runs in a folder.

    Args:
        name: What ran.
        kind: Its kind: ``"a training script"``.
        question: What the page answers.
        columns: Of the overview.
        rows: Of the overview, one per run.
        unit: The unit of its sizes.
        runs: The section of each run.
    """
    first, *others = columns
    overview: list[Block] = [Table(number_columns(first, others), rows), Text(unit, Tone.NOTE)]
    return Document(
        title=name,
        window_title=f"{name}: GPU memory of {kind}",
        lead=Text(question, only=(Medium.HTML,)),
        blocks=[
            Section("Every run", overview, only=(Medium.HTML,)),
            Section("", overview, only=(Medium.MARKDOWN,)),
            *runs,
        ],
    )


def run_section(
    title: str,
    *,
    sentences: Iterable[str],
    figures: Iterable[RenderedFigure],
    tables: Iterable[Block],
    command: str,
    versions: str,
    text: str = "",
) -> Section:
    """Return what is shown of one run; `text` is preformatted, such as an estimate, and empty if there is none."""

    def blocks() -> Iterator[Block]:
        yield Bullets(list(sentences))
        yield from (Figure(figure, alt=title) for figure in figures)
        yield from tables
        if text:
            yield Code(text)
        yield Code(command, language="sh")
        yield Text(f"{versions}.", Tone.NOTE)

    return Section(title, list(blocks()))


def run_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Block]:
    """Return one table of a run, below its title."""
    first, *others = columns
    return [Heading(title), Table(number_columns(first, others), rows)]


_MOST_CHARACTERS = 600


def first_lines(message: str) -> str:
    """Return the beginning of a message, in one line."""
    text = " ".join(message.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def substitutes_sentence(phrases: Sequence[str]) -> str:
    """Return what was replaced."""
    return f"Substitutes: {'; '.join(phrases)}."


def short_gib(run: ShownRun, size_bytes: int | None) -> str:
    """Return GiB without the unit, with the same decimals throughout a run; empty if unknown."""
    if size_bytes is None:
        return ""
    digits = 2 if (run.outcome.peaks.allocated_bytes or 0) >= GIB else 3
    return f"{as_gib(size_bytes):.{digits}f}"


def verdict_text(run: ShownRun) -> str:
    """Return how the run ended, in a word or two."""
    return "OOM" if run.outcome.status is Status.OOM else run.outcome.status.value


def peak_sentence(run: ShownRun) -> str:
    """Return the peaks of allocated and reserved memory and on the card."""
    peaks, parts = run.outcome.peaks, []
    parts.append(f"{gib_text(peaks.allocated_bytes or 0, 2)} allocated, in {peaks.phase}")
    if peaks.reserved_bytes is not None:
        parts.append(f"{gib_text(peaks.reserved_bytes, 2)} reserved")
    if peaks.device_bytes is not None:
        assumed = "" if run.origin is Origin.MEASURED else " (assumed)"
        parts.append(f"{gib_text(peaks.device_bytes, 2)} on the card with the CUDA context{assumed}")
    return f"Peak, {run.origin}: {'; '.join(parts)}."


def failure_sentence(run: ShownRun) -> str:
    """Return the allocation that failed; empty if none did."""
    oom = run.out_of_memory
    if oom is None:
        return ""
    step = f" of step {oom.step}" if oom.step else ""
    sizes = [
        f"{size_text(oom.requested_bytes)} requested",
        f"{size_text(oom.free_bytes)} free",
        f"{size_text(oom.allocated_bytes)} in tensors",
        f"{size_text(oom.reserved_bytes)} reserved",
    ]
    return f"Out of memory in {oom.phase}{step}: {', '.join(sizes)}."


def size_text(size_bytes: int | None) -> str:
    """Return GiB, or MiB of less than one."""
    if size_bytes is None:
        return "an unknown size"
    return gib_text(size_bytes, 2) if size_bytes >= GIB else mib_text(size_bytes)


def versions_line(versions: Versions) -> str:
    """Return the versions, without what is not installed."""
    found = {each.name: getattr(versions, each.name) for each in fields(versions)}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)


# ---- commands on an emulated machine ---------------------------------------------------------------------------------


def job_title(record: JobRecord) -> str:
    """Return ``"Emulated on 2 x NVIDIA L40S: torchrun --nproc_per_node=2 train.py"``."""
    return f"{Origin.EMULATED.capitalize()} on {record.cards} x {record.gpu}: {shlex.join(record.command)}"


_IN_GIB = "GiB (2^30 bytes) of each process on each card, with its CUDA context"
_BY_PHASE = "GiB, peaks of torch's counters in each phase; ranks with the same peaks have the same rows"
_BY_CATEGORY = "GiB of tensors at the peak of each phase, by category; their sum is its allocated memory"


def job_table(record: JobRecord, courses: Sequence[CardCourse] = ()) -> str:
    """Return the table of the processes that used a card, and what there is to say of the run."""
    blocks: list[Block] = [Heading(job_title(record))]
    if record.substitutes:
        blocks.insert(0, Text(substitutes_sentence(record.substitutes)))
    if rows := _all_process_rows(record):
        columns = [*text_columns(("process", "does")), *(Column(title=title) for title in ("rank", "card", "peak"))]
        blocks += [Table(columns, rows), Text(f"{_IN_GIB}.")]
    if phases := _phase_rows(record.memory.processes):
        columns = [
            *text_columns(("does", "rank", "phase")),
            *(Column(title=title) for title in ("allocated", "reserved")),
        ]
        blocks += [Table(columns, phases), Text(f"{_BY_PHASE}.")]
    if shares := _share_rows(record.memory.processes):
        columns = [*text_columns(("does", "rank", "phase", "category")), Column(title="held")]
        blocks += [Table(columns, shares), Text(f"{_BY_CATEGORY}.")]
    blocks += [Text(sentence) for sentence in job_sentences(record, courses)]
    return plain_text(Document(title=job_title(record), blocks=blocks))


def job_page(
    name: str, record: JobRecord, courses: Sequence[CardCourse], figure: RenderedFigure | None = None
) -> Document:
    """Return the page of a command: what there is to say, the course of its cards, and its tables."""
    worst = [row for course in courses for row in _worst_rows(course)]
    tables = [
        *_table_of("When a card held the most, emulated, GiB", ["card", "does", "rank", "in", "held"], worst),
        *_table_of(_IN_GIB, ["process", "does", "rank", "card", "peak"], _all_process_rows(record)),
        *_table_of(_BY_PHASE, ["does", "rank", "phase", "allocated", "reserved"], _phase_rows(record.memory.processes)),
        *_table_of(_BY_CATEGORY, ["does", "rank", "phase", "category", "held"], _share_rows(record.memory.processes)),
    ]
    sentences = [*job_sentences(record, courses)]
    if record.substitutes:
        sentences.insert(0, substitutes_sentence(record.substitutes))
    section = run_section(
        f"{Origin.EMULATED.capitalize()} on {record.cards} x {record.gpu}",
        sentences=sentences,
        figures=() if figure is None else (figure,),
        tables=tables,
        command=shlex.join(record.command),
        versions="Every size is emulated; nothing was measured",
    )
    question = "Which process of this command holds how much GPU memory, and when?"
    return Document(
        title=name,
        window_title=f"{name}: GPU memory of a command",
        lead=Text(question, only=(Medium.HTML,)),
        blocks=[section],
    )


def _table_of(title: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Block]:
    return run_table(title, columns, rows) if rows else []


def _all_process_rows(record: JobRecord) -> list[tuple[str, str, str, str, str]]:
    return [row for process in record.memory.processes for row in _process_rows(process)]


def holder_name(holder: Holder) -> str:
    """Return ``"trains, rank 0 of 2"``."""
    if holder.process is None:
        return "others"
    rank = "" if holder.process.rank is None else f", rank {holder.process.rank} of {holder.process.ranks}"
    return f"{' and '.join(holder.process.roles) or short_command(holder.process)}{rank}"


def card_names(course: CardCourse) -> str:
    """Return ``"card 0"``, or ``"card 0, and 1 and 2 alike"``."""
    first, *others = course.cards
    return f"card {first}" if not others else f"card {first}, and {' and '.join(map(str, others))} alike"


def _worst_rows(course: CardCourse) -> Iterator[tuple[str, str, str, str, str]]:
    name = card_names(course)
    for holder in course.holders:
        if holder.at_worst_bytes:
            does, _, rank = holder_name(holder).partition(", rank ")
            yield name, does, rank, holder.at_worst_phase or "", f"{as_gib(holder.at_worst_bytes):.2f}"
            name = ""


def _worst_sentence(course: CardCourse) -> str:
    """Return who holds what when the card holds the most: ``"Then card 0 has: ..."``."""
    held = (
        f"{holder_name(holder)}: {gib_text(holder.at_worst_bytes, 2)}"
        + (f" in {holder.at_worst_phase}" if holder.at_worst_phase else "")
        for holder in course.holders
        if holder.at_worst_bytes
    )
    return f"At that instant of {card_names(course)}: {'; '.join(held)}."


def _phase_rows(processes: Sequence[JobProcess]) -> list[tuple[str, ...]]:
    """Return the rows of each role and rank: what a process does, its ranks, the phase, and both peaks."""
    rows: list[tuple[str, ...]] = []
    for first, phases in _equal_ranks(processes):
        for phase in phases:
            sizes = (f"{as_gib(size):.3f}" for size in (phase.allocated_bytes, phase.reserved_bytes))
            rows.append((*first, phase.phase.value, *sizes))
            first = ("", "")
    return rows


def _share_rows(processes: Sequence[JobProcess]) -> list[tuple[str, ...]]:
    """Return the rows of each role, rank and phase: the categories at its peak."""
    rows: list[tuple[str, ...]] = []
    for (does, rank), phases in _equal_ranks(processes):
        first = [does, rank]
        for phase in phases:
            name = phase.phase.value
            for share in phase.shares:
                rows.append((*first, name, CATEGORY_TITLES[share.category], f"{as_gib(share.size_bytes):.3f}"))
                first, name = ["", ""], ""
    return rows


def _equal_ranks(processes: Sequence[JobProcess]) -> Iterator[tuple[tuple[str, str], tuple[JobPhase, ...]]]:
    """Yield what a process does, the ranks that do it with the same peaks, and these."""
    equal: dict[tuple[object, ...], list[JobProcess]] = {}
    for process in processes:
        if process.phases:
            equal.setdefault((process.roles, process.ranks, process.phases), []).append(process)
    for same in equal.values():
        ranks = sorted({process.rank for process in same if process.rank is not None})
        named = f"{', '.join(map(str, ranks))} of {same[0].ranks}" if ranks else ""
        yield (", ".join(same[0].roles), named), same[0].phases


def job_sentences(record: JobRecord, courses: Sequence[CardCourse] = ()) -> Iterator[str]:
    """Yield what there is to say of a command's run, one sentence per line."""
    peaks = [f"card {card}: {gib_text(size, 2)}" for card, size in enumerate(record.memory.card_peak_bytes)]
    if record.memory.processes and any(record.memory.card_peak_bytes):
        yield f"The most on each card at once: {', '.join(peaks)}."
        yield from (_worst_sentence(course) for course in courses)
    else:
        yield "No process of the command used a card."
    if record.ranks is not None:
        yield _ranks_run(record)
    if record.settings:
        yield f"Set for this run, to spare the host's memory and time: {', '.join(record.settings)}."
    if record.message:
        yield first_lines(record.message)
    errors = [process for process in record.memory.processes if process.last_sentence]
    others = [process for process in errors if ended_by(process) != record.message]
    yield from (f"Also, {first_lines(ended_by(process))}" for process in others[:_MOST_ERRORS])
    if record.values != "complete":
        yield f"Values that the host read and that a card would have computed: {record.values}."
    if record.left:
        yield f"Removed after its end: {', '.join(record.left)}."
    yield f"Status: {record.status}."


def _ranks_run(record: JobRecord) -> str:
    """Return which workers ran, and who speaks for the others."""
    run = record.ranks or 0
    size = max((process.ranks or 0 for process in record.memory.processes), default=0)
    if size <= run:
        return f"ranks={run} left nothing out: no worker group of verl had more workers."
    ran = "worker" if run == 1 else f"{run} workers"
    why = f" This machine was taken not to hold all of them: ranks={size} runs all." if record.ranks_chosen else ""
    return (
        f"Of {size} equal workers the first {ran} ran (ranks={run}), with one engine; its collectives were answered. "
        "Each other worker and engine is taken to hold the same on a card of its own."
        f"{why}"
    )


def _process_rows(process: JobProcess) -> Iterator[tuple[str, str, str, str, str]]:
    rank = "" if process.rank is None else f"{process.rank} of {process.ranks}"
    for card, size in enumerate(process.peak_bytes):
        if size:
            yield short_command(process), ", ".join(process.roles), rank, str(card), f"{as_gib(size):.2f}"


_MOST_OF_A_COMMAND = 60


_MOST_ERRORS = 8


def process_name(process: JobProcess) -> str:
    """Return ``"rank 1, process 4242 (python train.py)"``."""
    rank = "" if process.rank is None else f"rank {process.rank}, "
    return f"{rank}process {process.pid} ({short_command(process)})"


def ended_by(process: JobProcess) -> str:
    """Return the sentence of a process that ended by an error."""
    return f"{process_name(process)} ended by {process.last_sentence}"


def short_command(process: JobProcess) -> str:
    """Return a command that fits a line: without the folder of its program, and with its end if it is long."""
    program, _, words = process.command.partition(" ")
    text = f"{program.rpartition('/')[2]} {words}".rstrip()
    half = _MOST_OF_A_COMMAND // 2
    return text if len(text) <= _MOST_OF_A_COMMAND else f"{text[:half]} ... {text[5 - half :]}"
