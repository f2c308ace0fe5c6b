"""The page of a grid, `report.md`, as GitHub shows it."""

from collections.abc import Iterable, Sequence

from profiler.analysis.acceptance import Threshold
from profiler.analysis.accuracy import Accuracy
from profiler.analysis.cards import CardTable
from profiler.analysis.cells import Cell
from profiler.analysis.matrix import Matrix
from profiler.analysis.peaks import EnginePeaks, LargestRow, PhaseRow
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.memory import Phase
from profiler.domain.outcome import Status
from profiler.rendering.markdown_table import Align, code_block, escaped, markdown_table
from profiler.rendering.pages import FIGURES, MOST_ROWS, SectionFigures, more_rows
from profiler.rendering.rank_lines import RANKS, RANKS_NOTE, RankTable
from profiler.rendering.wording import (
    ENGINE_PEAKS,
    card_names,
    cell_name,
    column_names,
    corner,
    engine_texts,
    estimate_text,
    gib_number,
    group_text,
    headroom_legend,
    headroom_text,
    legend,
    needs_text,
    percent,
    place_names,
    published_text,
    result_text,
    setting_title,
    signed_percent,
    threshold_text,
    versions_text,
)

_ESTIMATE, _PUBLISHED = "est ", "published "

_IN_CSV = "comparison.csv has them"

_MOST_LISTED = 500
"""Trials whose phases and largest tensors are listed; GitHub does not show a page of several megabytes."""


def report_page(report: SweepReport, figures: Sequence[SectionFigures], ranks: RankTable | None = None) -> str:
    """Return the whole page.

    Args:
        report: What is shown.
        figures: The figures of each section of the report.
        ranks: The peaks of ranks; None if no trial ran on several GPUs.
    """
    blocks = [f"# {escaped(report.grid)}"]
    if report.question:
        blocks.append("> " + escaped(report.question))
    if not report.sections:
        blocks.append("No trial is stored here yet.")
    if report.cards:
        blocks += ["## Which card?", _card_table(report.cards)]
        blocks += filter(None, [more_rows(len(report.cards.places), _IN_CSV), headroom_legend(report.cards)])
    for part, own_figures in zip(report.sections, figures, strict=True):
        blocks += _section_blocks(part, own_figures)
    if ranks:
        blocks += [f"## {RANKS}", f"{RANKS_NOTE}.", markdown_table(ranks.header, map(_escaped_row, ranks.rows))]
        blocks += filter(None, [ranks.more])
    if report.thresholds:
        blocks += ["## How far the simulation is from a real card", _threshold_table(report.thresholds)]
    if report.gpu_time:
        blocks.append(escaped(report.gpu_time.sentence(price=None)))
    blocks += ["## Run it again", code_block(report.command, language="sh")]
    return "\n\n".join(blocks) + "\n"


def _escaped_row(texts: Iterable[str]) -> list[str]:
    return [escaped(text) for text in texts]


def _section_blocks(part: SectionReport, figures: SectionFigures) -> Iterable[str]:
    section = part.section
    yield f"## {escaped(setting_title(section.setting))}"
    yield _comparison_table(part.matrix)
    if more := more_rows(len(part.matrix.rows), _IN_CSV):
        yield more
    yield _bullets(legend(section, mark=_ESTIMATE, published_mark=_PUBLISHED))
    if section.unanswered:
        yield "### Trials without an answer"
        yield _failure_table(section.unanswered[:MOST_ROWS])
        if more := more_rows(len(section.unanswered), "runs.parquet has them"):
            yield more
    if part.accuracies:
        yield "### How far the estimates are from the results"
        yield _accuracy_table(part.accuracies)
    yield from _figure_blocks(figures)
    if part.phases:
        yield "### Highest allocated memory of each phase"
        about = "the peak of each in bold; reserved: held by torch's allocator; device: with CUDA's context"
        if len(part.phases) > _MOST_LISTED:
            yield f"These are {len(part.phases):,} trials: phases.parquet and report.html have them."
        else:
            yield _details(f"GiB, {len(part.phases)} trials; {about}", _phase_table(part.phases))
    if part.engines:
        yield f"### {ENGINE_PEAKS}"
        yield _engine_table(part.engines[:_MOST_LISTED])
    if part.largest:
        yield "### The largest tensors at the peak"
        if len(part.largest) > _MOST_LISTED:
            yield f"These are those of {len(part.largest):,} trials: largest.parquet has them."
        else:
            yield _details(
                f"The ten largest groups of each of {len(part.largest)} trials", _largest_lists(part.largest)
            )
    if section.published:
        yield f"How far to trust the published figures: {escaped(section.published[0].trust)}."
    yield f"Versions: {escaped(versions_text(section.setting))}."


def _figure_blocks(figures: SectionFigures) -> Iterable[str]:
    if figures.figures or figures.left_out or figures.broken:
        yield "### Figures"
    for figure in figures.figures:
        title, path = escaped(figure.title), f"{FIGURES}/{figure.name}"
        shown, *others = figure.suffixes
        links = ", ".join(f"[{suffix.upper()}]({path}.{suffix})" for suffix in others)
        yield f"**{title}**{f' ({links})' if links else ''}\n\n![{title}]({path}.{shown})"
    yield from (escaped(sentence) for sentence in (*figures.left_out, *figures.broken))


def _comparison_table(table: Matrix) -> str:
    names = column_names(table)
    rows = [
        [escaped(row), *(_cell(table.cells.get((row, column))) for column in table.columns)]
        for row in table.rows[:MOST_ROWS]
    ]
    return markdown_table([escaped(corner(table)), *(escaped(names[column]) for column in table.columns)], rows)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "·"
    published = published_text(cell)
    bold = "OOM" if cell.status is Status.OOM else result_text(cell)
    lines = [
        f"**{escaped(bold)}**",
        needs_text(cell),
        estimate_text(cell, _ESTIMATE),
        f"{_PUBLISHED}{published}" if published else "",
    ]
    return "<br>".join(line for line in lines if line)


def _failure_table(cells: Iterable[Cell]) -> str:
    rows = [[escaped(cell_name(cell)), cell.status.value, escaped(cell.message or "")] for cell in cells]
    return markdown_table(["trial", "status", "message"], rows, align=Align.LEFT)


def _accuracy_table(found: Iterable[Accuracy]) -> str:
    rows = [
        [
            accuracy.of,
            str(accuracy.trials),
            percent(accuracy.median_ratio),
            percent(accuracy.p95_ratio),
            f"{signed_percent(accuracy.worst_error_ratio)}: {escaped(cell_name(accuracy.worst))}",
        ]
        for accuracy in found
    ]
    return markdown_table(["", "trials compared", "median error", "95th percentile", "worst"], rows)


def _card_table(table: CardTable) -> str:
    names = place_names(table)
    rows = [
        [escaped(names[place]), *(headroom_text(table.cells.get((place, column))) for column in table.columns)]
        for place in table.places[:MOST_ROWS]
    ]
    return markdown_table(["trial", *map(escaped, card_names(table))], rows)


def _threshold_table(thresholds: Iterable[Threshold]) -> str:
    rows = [
        [
            escaped(threshold.claim),
            threshold_text(threshold, threshold.allowed),
            threshold_text(threshold, threshold.found),
        ]
        for threshold in thresholds
    ]
    return markdown_table(["", "allowed", "found"], rows)


def _phase_table(rows: Sequence[PhaseRow]) -> str:
    phases = [phase for phase in Phase if any(phase in row.peaks for row in rows)]
    body = [[escaped(cell_name(row.cell)), *(_phase(row, phase) for phase in phases), *_totals(row)] for row in rows]
    return markdown_table(["trial", *phases, "reserved", "device"], body)


def _engine_table(engines: Sequence[EnginePeaks]) -> str:
    rows = [[escaped(cell_name(peaks.cell)), *engine_texts(peaks)] for peaks in engines]
    return markdown_table(["trial", "rollout", "training"], rows)


def _totals(row: PhaseRow) -> list[str]:
    """Return the peaks of reserved memory and of the device."""
    return [
        "·" if size is None else gib_number(size) for size in (row.cell.peak_reserved_bytes, row.cell.peak_device_bytes)
    ]


def _largest_lists(rows: Iterable[LargestRow]) -> str:
    return "\n\n".join(f"**{escaped(cell_name(row.cell))}**\n\n{_bullets(map(group_text, row.groups))}" for row in rows)


def _phase(row: PhaseRow, phase: Phase) -> str:
    if phase not in row.peaks:
        return "·"
    text = gib_number(row.peaks[phase])
    return f"**{text}**" if phase is row.cell.peak_phase else text


def _details(summary: str, content: str) -> str:
    return f"<details>\n<summary>{escaped(summary)}</summary>\n\n{content}\n\n</details>"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)
