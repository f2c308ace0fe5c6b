"""What a terminal shows of a sweep, and the list of its trials."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TypeVar

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.cells import Cell as Trial
from profiler.analysis.compared.comparison import Section
from profiler.analysis.compared.comparison import Section as Comparison
from profiler.analysis.findings.answers import CardTable, headroom_bytes
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Status
from profiler.rendering.document import Block, Document, ListedTrial, Medium, Text, Tone, TrialList
from profiler.rendering.document import Section as PageSection
from profiler.rendering.sweep.comparison import IN_TERMINAL, card_table, comparison_blocks, tone_of
from profiler.rendering.sweep.words import (
    cell_name,
    engine_lines,
    errors_text,
    gib_number,
    group_text,
    headroom_legend,
    headroom_text,
    legend,
    more_rows,
    needs_text,
    origin_word,
    published_text,
    setting_title,
    short_models,
    signed_percent,
    thresholds_text,
    versions_text,
)

Word = TypeVar("Word", bound=StrEnum)
Size = TypeVar("Size", int, float)

_IN_THE_TABLES = "its keys are in runs.parquet"
_ALL_IN_THE_TABLES = f"{_IN_THE_TABLES}, its phases in phases.parquet, its categories in breakdown.parquet"


def trial_list(part: SectionReport, commands: Mapping[str, str] | None) -> TrialList:
    """Return the list of a section's trials; `commands` repeat one each, by trial id."""
    return TrialList(
        columns=_columns(part.section),
        count=len(part.section.cells),
        rows=partial(_rows, part.section),
        details=partial(_details, part, commands),
        only=(Medium.HTML,),
    )


def _rows(section: Section) -> Iterator[ListedTrial]:
    names, published = short_models(section.models), bool(section.published)
    for cell in section.in_order():
        tone = Tone.PLAIN if cell.status is Status.OK else Tone.BAD
        yield ListedTrial(tone=tone, fields=_fields(cell, names[cell.model], published=published))


def _columns(section: Section) -> list[str]:
    origin = origin_word(section.setting)
    known = ["method", "model", "answer", f"{origin}, GiB", "free, GiB", "peak in", "estimated, GiB", "error"]
    return [*known, "published"] if section.published else known


def _fields(cell: Cell, model: str, *, published: bool) -> list[list[object]]:
    """Return the texts of a trial's row. Numbers have the value by which they are sorted; an unknown size has none."""
    error = cell.estimate_error_ratio
    phase = cell.peak_phase
    found = [
        _text(cell.label),
        _text(model, cell.parameters),
        _text("fits" if cell.status is Status.OK else cell.status.value),
        _size_cell(cell.result_bytes),
        _text(headroom_text(cell), headroom_bytes(cell)),
        _text(phase.value if phase else ""),
        _size_cell(cell.estimated_bytes),
        _text("" if error is None else signed_percent(error), error),
    ]
    return [*found, _text(published_text(cell))] if published else found


def _text(text: str, sort: float | None = None) -> list[object]:
    return [text] if sort is None else [text, round(sort, 6)]


def _size_cell(size_bytes: int | None) -> list[object]:
    return _text("" if size_bytes is None else gib_number(size_bytes), size_bytes)


def _details(part: SectionReport, commands: Mapping[str, str] | None, is_in_full: bool) -> Iterator[Sequence[object]]:
    """Yield the details of each trial, in the order in which `page.js` takes them apart.

    Args:
        part: The section.
        commands: By trial id; None if there are too many trials.
        is_in_full: Whether the page has the phases and categories of each trial.
    """
    rows, parts = (part.phases, part.stacks) if is_in_full else ((), ())
    phases = {row.cell.trial_id: row.peaks for row in rows}
    busy = {row.cell.trial_id: row.utilisation_percent for row in rows}
    stacks = {stack.cell.trial_id: stack.shares for stack in parts}
    largest = {row.cell.trial_id: row.groups for row in part.largest} if commands is not None else {}
    where = _IN_THE_TABLES if is_in_full else _ALL_IN_THE_TABLES
    for cell in part.section.in_order():
        name = cell.trial_id
        metrics = (cell.peak_allocated_bytes, cell.peak_reserved_bytes, cell.peak_device_bytes)
        yield [
            _known(phases.get(name, {}), Phase, gib_number),
            _known(stacks.get(name, {}), Category, gib_number),
            [0 if size is None else gib_number(size) for size in metrics],
            _known(busy.get(name, {}), Phase, "{:.0f} %".format),
            [group_text(group) for group in largest.get(name, ())],
            ". ".join(filter(None, (needs_text(cell), cell.message))),
            (commands or {}).get(name, f"trial_id={name}; {where}"),
        ]


def _known(values: Mapping[Word, Size], words: Iterable[Word], shown: Callable[[Size], str]) -> list[str | int]:
    """Return the text of each word in order, 0 where it has no value; empty if none has one."""
    return [shown(values[word]) if word in values else 0 for word in words] if values else []


NOTHING = "No trial is stored here yet."
_FAILURES_SHOWN = 10


def sweep_summary(report: SweepReport) -> Document:
    """Return what a terminal shows of a sweep."""
    return Document(title=report.grid, blocks=list(_summary_blocks(report)))


def _summary_blocks(report: SweepReport) -> Iterator[Block]:
    for part in report.sections:
        yield PageSection(setting_title(part.section.setting), list(_summary_section(part)))
    if report.cards:
        yield PageSection("", list(_summary_cards(report.cards)))
    if report.thresholds:
        yield Text(thresholds_text(report.thresholds), Tone.NOTE)
    if not report.sections:
        yield Text(NOTHING)


def _summary_section(part: SectionReport) -> Iterator[Block]:
    section = part.section
    yield from comparison_blocks(part.matrix, IN_TERMINAL)
    notes = legend(section, mark=IN_TERMINAL.estimate, published_mark=IN_TERMINAL.published)
    # Only the pages name the worst trial: in a terminal every line counts.
    notes += [f"{errors_text(accuracy)}." for accuracy in part.accuracies]
    yield from (Text(line, Tone.NOTE) for line in [*notes, *engine_lines(part.engines), versions_text(section.setting)])
    yield from (Text(line, Tone.WARNING) for line in _failures(section))


def _failures(section: Comparison) -> list[str]:
    unanswered = section.unanswered
    lines = [f"{cell.status.value}: {cell_name(cell)}{_reason(cell)}" for cell in unanswered[:_FAILURES_SHOWN]]
    more = len(unanswered) - _FAILURES_SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _reason(cell: Trial) -> str:
    lines = (cell.message or "").strip().splitlines()
    # The last line of a traceback is the error.
    return f": {lines[-1].strip()}" if lines else ""


def _summary_cards(cards: CardTable) -> Iterator[Block]:
    yield card_table(cards, "which card?", _tone_in_summary)
    if more := more_rows(len(cards.places), IN_TERMINAL.rest):
        yield Text(more)
    yield Text(headroom_legend(cards), Tone.NOTE)


def _tone_in_summary(trial: Trial | None) -> Tone:
    return Tone.NOTE if trial is None else tone_of(trial)
