"""What a terminal shows of a sweep, as a document."""

from collections.abc import Iterator

from profiler.analysis.compared.cells import Cell as Trial
from profiler.analysis.compared.comparison import Section as Comparison
from profiler.analysis.findings.cards import CardTable
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.rendering.document import (
    Block,
    Document,
    Section,
    Text,
    Tone,
)
from profiler.rendering.sweep.comparison import IN_TERMINAL, card_table, comparison_blocks, tone_of
from profiler.rendering.sweep.words import (
    cell_name,
    engine_lines,
    errors_text,
    headroom_legend,
    legend,
    more_rows,
    setting_title,
    thresholds_text,
    versions_text,
)

NOTHING = "No trial is stored here yet."
_FAILURES_SHOWN = 10


def sweep_summary(report: SweepReport) -> Document:
    """Return what a terminal shows of a sweep."""
    return Document(title=report.grid, blocks=list(_summary_blocks(report)))


def _summary_blocks(report: SweepReport) -> Iterator[Block]:
    for part in report.sections:
        yield Section(setting_title(part.section.setting), list(_summary_section(part)))
    if report.cards:
        yield Section("", list(_summary_cards(report.cards)))
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
