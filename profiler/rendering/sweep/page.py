"""The page of a sweep as a document, for Markdown and HTML."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiler.analysis.compared.cells import Cell as Trial
from profiler.analysis.compared.comparison import Section as Comparison
from profiler.analysis.errors import Accuracy
from profiler.analysis.findings.answers import CardTable, headroom_bytes
from profiler.analysis.findings.peaks import LargestRow, PhaseRow, VllmPeaks
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Status
from profiler.rendering.document import (
    MOST_ROWS,
    Block,
    Bullets,
    Cell,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    Medium,
    PageOrigin,
    RenderedFigure,
    Section,
    Table,
    Text,
    Tone,
    number_columns,
    text_columns,
)
from profiler.rendering.sweep.comparison import ABSENT, IN_HTML, IN_MARKDOWN, card_table, comparison_blocks
from profiler.rendering.sweep.summary import NOTHING, trial_list
from profiler.rendering.sweep.words import (
    ENGINE_PEAKS,
    RANKS,
    RANKS_NOTE,
    RankTable,
    accuracy_text,
    answer_sentences,
    cell_name,
    compared_text,
    engine_lines,
    engine_texts,
    gib_number,
    group_text,
    headroom_legend,
    legend,
    more_rows,
    percent,
    setting_title,
    signed_percent,
    threshold_text,
    versions_text,
)

_MOST_LISTED = 500
"""Trials whose phases and largest tensors are listed; GitHub does not show a page of several megabytes."""


@dataclass(frozen=True, kw_only=True)
class SectionFigures:
    """The figures of one section."""

    figures: Sequence[RenderedFigure] = ()
    left_out: Sequence[str] = ()
    """One sentence per figure that would be too large to read."""
    broken: Sequence[str] = ()
    """One sentence per figure that could not be drawn."""


def sweep_page(
    report: SweepReport,
    figures: Sequence[SectionFigures],
    *,
    origin: PageOrigin | None = None,
    ranks: RankTable | None = None,
) -> Document:
    """Return the whole page, for Markdown and HTML.

    Args:
        report: What is shown.
        figures: The figures of each section of the report.
        origin: When and by what it is made.
        ranks: The peaks of ranks; None if no trial ran on several GPUs.
    """
    return Document(
        title=report.grid,
        window_title=f"{report.grid}: GPU memory of GRPO training",
        lead=Text(report.question) if report.question else None,
        blocks=list(_page_blocks(report, figures, ranks)),
        origin=origin,
    )


def _page_blocks(report: SweepReport, figures: Sequence[SectionFigures], ranks: RankTable | None) -> Iterator[Block]:
    if not report.sections:
        yield Text(NOTHING)
    if report.cards:
        yield Section("Which card?", list(_page_cards(report.cards)))
    for part, own in zip(report.sections, figures, strict=True):
        blocks = list(_page_section(part, own, report.trial_commands))
        yield Section(setting_title(part.section.setting), blocks, contents=f"{len(part.section.cells)} trials")
    if ranks:
        yield Section(RANKS, list(_ranks(ranks)))
    if report.thresholds:
        yield Section("How far the simulation is from a real card", list(_thresholds(report)))
    if report.gpu_time:
        yield Text(report.gpu_time.sentence(price=None), Tone.NOTE)
    yield Section("Run it again", [Code(report.command, language="sh", is_command=True)])


def _page_section(part: SectionReport, figures: SectionFigures, commands: Mapping[str, str] | None) -> Iterator[Block]:
    section = part.section
    yield from (Text(sentence, Tone.ANSWER, only=(Medium.HTML,)) for sentence in answer_sentences(part))
    for words in (IN_MARKDOWN, IN_HTML):
        yield from comparison_blocks(part.matrix, words)
        lines = legend(section, mark=words.estimate, published_mark=words.published)
        # In Markdown the peaks of engines are a table.
        engines = engine_lines(part.engines) if words is IN_HTML else []
        yield Bullets([*lines, *engines], Tone.NOTE, only=(words.medium,))
    yield from _unanswered(section)
    if part.accuracies:
        yield Heading("How far the estimates are from the results")
        yield _accuracy_table(part.accuracies)
        yield Bullets([accuracy_text(accuracy) for accuracy in part.accuracies], only=(Medium.HTML,))
    yield from _figures(figures)
    yield from _phases(part.phases)
    if part.engines:
        yield Heading(ENGINE_PEAKS, only=(Medium.MARKDOWN,))
        yield _engine_table(part.engines[:_MOST_LISTED])
    yield from _largest(part.largest)
    yield Heading("Every trial", only=(Medium.HTML,))
    yield trial_list(part, commands)
    yield from _versions(section)


def _page_cards(cards: CardTable) -> Iterator[Block]:
    yield card_table(cards, "trial", _tone_on_page)
    note = headroom_legend(cards)
    if more := more_rows(len(cards.places), IN_MARKDOWN.rest):
        yield Text(more, only=(Medium.MARKDOWN,))
    yield Text(note, only=(Medium.MARKDOWN,))
    more = more_rows(len(cards.places), "the lists of every trial have them")
    yield Text(" ".join(filter(None, (more, note))), Tone.NOTE, only=(Medium.HTML,))


def _tone_on_page(trial: Trial | None) -> Tone:
    is_missing = trial is not None and ((headroom_bytes(trial) or 0) < 0 or trial.status is Status.OOM)
    return Tone.BAD if is_missing else Tone.PLAIN


def _unanswered(section: Comparison) -> Iterator[Block]:
    if section.unanswered:
        rows = [[cell_name(cell), cell.status.value, cell.message or ""] for cell in section.unanswered[:MOST_ROWS]]
        yield Heading("Trials without an answer", only=(Medium.MARKDOWN,))
        yield Table(text_columns(["trial", "status", "message"]), rows, only=(Medium.MARKDOWN,))
        if more := more_rows(len(section.unanswered), "runs.parquet has them"):
            yield Text(more, only=(Medium.MARKDOWN,))


def _accuracy_table(found: Iterable[Accuracy]) -> Table:
    rows = [
        [
            accuracy.of,
            str(accuracy.trials),
            percent(accuracy.median_ratio),
            percent(accuracy.p95_ratio),
            f"{signed_percent(accuracy.worst_error_ratio)}: {cell_name(accuracy.worst)}",
        ]
        for accuracy in found
    ]
    columns = number_columns("", ["trials compared", "median error", "95th percentile", "worst"])
    return Table(columns, rows, only=(Medium.MARKDOWN,))


def _figures(figures: SectionFigures) -> Iterator[Block]:
    sentences = (*figures.left_out, *figures.broken)
    if figures.figures or sentences:
        yield Heading("Figures", only=(Medium.MARKDOWN,))
    for figure in figures.figures:
        first, *others = figure.suffixes
        yield Figure(figure, alt=figure.title, caption=figure.title, shown=first, linked=others)
    yield from (Text(sentence, Tone.NOTE) for sentence in sentences)


def _phases(rows: Sequence[PhaseRow]) -> Iterator[Block]:
    only = (Medium.MARKDOWN,)
    if not rows:
        return
    yield Heading("Highest allocated memory of each phase", only=only)
    if len(rows) > _MOST_LISTED:
        yield Text(f"These are {len(rows):,} trials: phases.parquet and report.html have them.", only=only)
        return
    about = "the peak of each in bold; reserved: held by torch's allocator; device: with CUDA's context"
    yield Details(f"GiB, {len(rows)} trials; {about}", [_phase_table(rows)], only=only)


def _phase_table(rows: Sequence[PhaseRow]) -> Table:
    phases = [phase for phase in Phase if any(phase in row.peaks for row in rows)]
    body = [[cell_name(row.cell), *(_phase(row, phase) for phase in phases), *_totals(row)] for row in rows]
    return Table(number_columns("trial", [*phases, "reserved", "device"]), body)


def _phase(row: PhaseRow, phase: Phase) -> str | Cell:
    if phase not in row.peaks:
        return ABSENT
    return Cell(text=gib_number(row.peaks[phase]), strong=phase is row.cell.peak_phase)


def _totals(row: PhaseRow) -> list[str]:
    """Return the peaks of reserved memory and of the device."""
    sizes = (row.cell.peak_reserved_bytes, row.cell.peak_device_bytes)
    return [ABSENT if size is None else gib_number(size) for size in sizes]


def _engine_table(engines: Sequence[VllmPeaks]) -> Table:
    rows = [[cell_name(peaks.cell), *engine_texts(peaks)] for peaks in engines]
    return Table(number_columns("trial", ["rollout", "training"]), rows, only=(Medium.MARKDOWN,))


def _largest(rows: Sequence[LargestRow]) -> Iterator[Block]:
    only = (Medium.MARKDOWN,)
    if not rows:
        return
    yield Heading("The largest tensors at the peak", only=only)
    if len(rows) > _MOST_LISTED:
        yield Text(f"These are those of {len(rows):,} trials: largest.parquet has them.", only=only)
        return
    lists: list[Block] = []
    for row in rows:
        lists += [Heading(cell_name(row.cell), level=4), Bullets(list(map(group_text, row.groups)))]
    yield Details(f"The ten largest groups of each of {len(rows)} trials", lists, only=only)


def _versions(section: Comparison) -> Iterator[Block]:
    versions = versions_text(section.setting)
    trust = f"How far to trust the published figures: {section.published[0].trust}." if section.published else ""
    if trust:
        yield Text(trust, only=(Medium.MARKDOWN,))
    yield Text(f"Versions: {versions}.", only=(Medium.MARKDOWN,))
    yield Text(" ".join(filter(None, (f"{versions}.", trust))), Tone.NOTE, only=(Medium.HTML,))


def _ranks(ranks: RankTable) -> Iterator[Block]:
    note = f"{RANKS_NOTE}."
    yield Text(note, only=(Medium.MARKDOWN,))
    first, *others = ranks.header
    yield Table(number_columns(first, others), ranks.rows)
    if ranks.more:
        yield Text(ranks.more, only=(Medium.MARKDOWN,))
    yield Text(" ".join(filter(None, (note, ranks.more))), Tone.NOTE, only=(Medium.HTML,))


def _thresholds(report: SweepReport) -> Iterator[Block]:
    rows = [
        [
            threshold.claim,
            threshold_text(threshold, threshold.allowed),
            threshold_text(threshold, threshold.found),
        ]
        for threshold in report.thresholds
    ]
    for medium, first in ((Medium.MARKDOWN, ""), (Medium.HTML, "claim")):
        yield Table(number_columns(first, ["allowed", "found"]), rows, only=(medium,))
    if all(threshold.found is None for threshold in report.thresholds):
        yield Text(compared_text(lambda found: found.simulated), Tone.NOTE)
