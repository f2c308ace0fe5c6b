"""The report of a sweep as a document: its whole page, and the summary that a terminal shows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiler.analysis.accuracy import Accuracy
from profiler.analysis.cards import CardTable, headroom_bytes
from profiler.analysis.cells import Cell as Trial
from profiler.analysis.comparison import Section as Comparison
from profiler.analysis.matrix import Matrix
from profiler.analysis.peaks import EnginePeaks, LargestRow, PhaseRow
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.memory import Phase
from profiler.domain.outcome import Status
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
    Row,
    Section,
    Table,
    Text,
    Tone,
    Wrap,
    number_columns,
    text_columns,
)
from profiler.rendering.rank_lines import RANKS, RANKS_NOTE, RankTable
from profiler.rendering.trial_list import trial_list
from profiler.rendering.wording import (
    ENGINE_PEAKS,
    accuracy_text,
    answer_sentences,
    card_names,
    cell_name,
    column_names,
    corner,
    engine_lines,
    engine_texts,
    errors_text,
    estimate_text,
    gib_number,
    group_text,
    headroom_legend,
    headroom_text,
    legend,
    more_rows,
    needs_text,
    percent,
    place_names,
    published_text,
    result_text,
    setting_title,
    signed_percent,
    threshold_text,
    thresholds_text,
    versions_text,
)

_NOTHING = "No trial is stored here yet."
_ABSENT = "·"
_FAILURES_SHOWN = 10
_TONES = {Status.OK: Tone.GOOD, Status.OOM: Tone.BAD}

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


@dataclass(frozen=True, kw_only=True)
class _Words:
    """What a medium says in the cells of a comparison."""

    medium: Medium
    estimate: str
    """The mark of an estimate."""
    published: str
    result: Callable[[Trial], str]
    needs: Callable[[Trial], str]
    """What a trial that ran out of memory needs."""
    rest: str
    """Where the rows are that a table leaves out."""


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
        yield Text(_NOTHING)
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
        yield Text(_NOTHING)


def _summary_section(part: SectionReport) -> Iterator[Block]:
    section = part.section
    yield from _comparison(part.matrix, _IN_TERMINAL)
    notes = legend(section, mark=_IN_TERMINAL.estimate, published_mark=_IN_TERMINAL.published)
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


def _page_section(part: SectionReport, figures: SectionFigures, commands: Mapping[str, str] | None) -> Iterator[Block]:
    section = part.section
    yield from (Text(sentence, Tone.ANSWER, only=(Medium.HTML,)) for sentence in answer_sentences(part))
    for words in (_IN_MARKDOWN, _IN_HTML):
        yield from _comparison(part.matrix, words)
        lines = legend(section, mark=words.estimate, published_mark=words.published)
        # In Markdown the peaks of engines are a table.
        engines = engine_lines(part.engines) if words is _IN_HTML else []
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


def _comparison(table: Matrix, words: _Words) -> Iterator[Block]:
    only, names = (words.medium,), column_names(table)
    columns = number_columns(corner(table), (names[column] for column in table.columns), wrap=Wrap.NEVER)
    rows = [
        [row, *(_matrix_cell(table.cells.get((row, column)), words) for column in table.columns)]
        for row in table.rows[:MOST_ROWS]
    ]
    yield Table(columns, rows, is_matrix=True, only=only)
    if more := more_rows(len(table.rows), words.rest):
        yield Text(more, _tone_of_rest(words.medium), only=only)


def _tone_of_rest(medium: Medium) -> Tone:
    return Tone.PLAIN if medium is Medium.TERMINAL else Tone.NOTE


def _matrix_cell(trial: Trial | None, words: _Words) -> str | Cell:
    if trial is None:
        return Cell(text=_ABSENT, tone=Tone.NOTE) if words.medium is Medium.TERMINAL else _ABSENT
    published = published_text(trial)
    below = [
        words.needs(trial),
        estimate_text(trial, words.estimate),
        f"{words.published}{published}" if published else "",
    ]
    return Cell(text=words.result(trial), tone=_tone(trial), strong=True, lines=[line for line in below if line])


def _tone(trial: Trial) -> Tone:
    return _TONES.get(trial.status, Tone.WARNING)


def _short_result(trial: Trial) -> str:
    """Return the result without what it needs, which has a line of its own."""
    return "OOM" if trial.status is Status.OOM else result_text(trial)


def _short_needs(trial: Trial) -> str:
    return f"needs {gib_number(trial.result_bytes)}" if trial.status is Status.OOM and trial.result_bytes else ""


_IN_TERMINAL = _Words(
    medium=Medium.TERMINAL,
    estimate="~",
    published="pub ",
    result=result_text,
    needs=lambda _: "",
    rest="the report has them",
)
_IN_MARKDOWN = _Words(
    medium=Medium.MARKDOWN,
    estimate="est ",
    published="published ",
    result=_short_result,
    needs=needs_text,
    rest="comparison.csv has them",
)
_IN_HTML = _Words(
    medium=Medium.HTML,
    estimate="estimated ",
    published="published ",
    result=_short_result,
    needs=_short_needs,
    rest="the list of every trial has them",
)


def _summary_cards(cards: CardTable) -> Iterator[Block]:
    yield _card_table(cards, "which card?", _tone_in_summary)
    if more := more_rows(len(cards.places), _IN_TERMINAL.rest):
        yield Text(more)
    yield Text(headroom_legend(cards), Tone.NOTE)


def _page_cards(cards: CardTable) -> Iterator[Block]:
    yield _card_table(cards, "trial", _tone_on_page)
    note = headroom_legend(cards)
    if more := more_rows(len(cards.places), _IN_MARKDOWN.rest):
        yield Text(more, only=(Medium.MARKDOWN,))
    yield Text(note, only=(Medium.MARKDOWN,))
    more = more_rows(len(cards.places), "the lists of every trial have them")
    yield Text(" ".join(filter(None, (more, note))), Tone.NOTE, only=(Medium.HTML,))


def _card_table(cards: CardTable, corner_text: str, tone: Callable[[Trial | None], Tone]) -> Table:
    names = place_names(cards)
    rows: list[Row] = []
    for place in cards.places[:MOST_ROWS]:
        trials = [cards.cells.get((place, column)) for column in cards.columns]
        rows.append([names[place], *(Cell(text=headroom_text(trial), tone=tone(trial)) for trial in trials)])
    return Table(number_columns(corner_text, card_names(cards), wrap=Wrap.CUT), rows)


def _tone_in_summary(trial: Trial | None) -> Tone:
    return Tone.NOTE if trial is None else _tone(trial)


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
        return _ABSENT
    return Cell(text=gib_number(row.peaks[phase]), strong=phase is row.cell.peak_phase)


def _totals(row: PhaseRow) -> list[str]:
    """Return the peaks of reserved memory and of the device."""
    sizes = (row.cell.peak_reserved_bytes, row.cell.peak_device_bytes)
    return [_ABSENT if size is None else gib_number(size) for size in sizes]


def _engine_table(engines: Sequence[EnginePeaks]) -> Table:
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
