"""The page of a grid, `report.md`, as GitHub shows it."""

from collections.abc import Iterable, Sequence

from profiler.analysis.acceptance import Threshold
from profiler.analysis.accuracy import Accuracy, accuracies
from profiler.analysis.cards import CardTable, by_card
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import matrix
from profiler.analysis.peaks import LargestRow, PhaseRow
from profiler.domain.memory import Phase
from profiler.domain.outcome import Status
from profiler.rendering.markdown_table import Align, escaped, markdown_table
from profiler.rendering.pages import FIGURES, SectionPage
from profiler.rendering.wording import (
    HEADROOM_LEGEND,
    cell_name,
    column_names,
    corner,
    estimate_text,
    gib_number,
    group_text,
    headroom_text,
    legend,
    needs_text,
    percent,
    published_text,
    result_text,
    setting_title,
    short_card,
    short_models,
    signed_percent,
    threshold_text,
    versions_text,
)

_ESTIMATE, _PUBLISHED = "est ", "published "


def report_page(
    *,
    grid: str,
    question: str,
    command: str,
    pages: Sequence[SectionPage],
    thresholds: Sequence[Threshold] = (),
    spent: str = "",
) -> str:
    """The whole page.

    Args:
        grid: Name of the grid.
        question: What it asks; left out if empty.
        command: The command that repeats it; left out if empty.
        pages: The sections with their figures.
        thresholds: How far the simulation may be from a real card, and is; none where nothing is simulated.
        spent: What the sweep took of GPUs; left out if empty.
    """
    blocks = [f"# {escaped(grid)}"]
    if question:
        blocks.append("> " + escaped(question))
    if not pages:
        blocks.append("No trial is stored here yet.")
    cards = by_card(page.section for page in pages)
    if cards:
        blocks += ["## Which card?", _card_table(cards), HEADROOM_LEGEND]
    for page in pages:
        blocks += _section_blocks(page)
    if thresholds:
        blocks += ["## How far the simulation is from a real card", _threshold_table(thresholds)]
    if spent:
        blocks.append(escaped(spent))
    if command:
        blocks += ["## Run it again", f"```sh\n{command}\n```"]
    return "\n\n".join(blocks) + "\n"


def _section_blocks(page: SectionPage) -> Iterable[str]:
    section = page.section
    yield f"## {escaped(setting_title(section.setting))}"
    yield _comparison_table(section)
    yield _bullets(legend(section, mark=_ESTIMATE, published_mark=_PUBLISHED))
    if section.unanswered:
        yield "### Trials without an answer"
        yield _failure_table(section.unanswered)
    compared = accuracies(section.cells.values())
    if compared:
        yield "### How far the estimates are from the results"
        yield _accuracy_table(compared)
    if page.figures or page.left_out or page.broken:
        yield "### Figures"
    for figure in page.figures:
        title, path = escaped(figure.title), f"{FIGURES}/{figure.name}"
        yield f"**{title}** ([SVG]({path}.svg))\n\n![{title}]({path}.png)"
    yield from (escaped(sentence) for sentence in (*page.left_out, *page.broken))
    if page.phases:
        yield "### Highest allocated memory of each phase"
        about = "the peak of each in bold; reserved: held by torch's allocator; device: with CUDA's context"
        yield _fold(f"GiB, {len(page.phases)} trials; {about}", _phase_table(page.phases))
    if page.largest:
        yield "### The largest tensors at the peak"
        yield _fold(f"The ten largest groups of each of {len(page.largest)} trials", _largest_lists(page.largest))
    if section.published:
        yield f"How far to trust the published figures: {escaped(section.published[0].trust)}."
    yield f"Versions: {escaped(versions_text(section.setting))}."


def _comparison_table(section: Section) -> str:
    table = matrix(section)
    names = column_names(table)
    rows = [[escaped(row), *(_cell(table.cells.get((row, column))) for column in table.columns)] for row in table.rows]
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
    names = short_models(tuple(dict.fromkeys(model for _, model in table.places)))
    rows = [
        [f"{escaped(label)}, {escaped(names[model])}"]
        + [headroom_text(table.cells.get(((label, model), card))) for card in table.cards]
        for label, model in table.places
    ]
    return markdown_table(["trial", *(escaped(short_card(card)) for card in table.cards)], rows)


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
    body = [[escaped(cell_name(row.cell)), *(_phase(row, phase) for phase in phases), *_rulers(row)] for row in rows]
    return markdown_table(["trial", *phases, "reserved", "device"], body)


def _rulers(row: PhaseRow) -> list[str]:
    """What torch's allocator held and what the driver saw, at most."""
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


def _fold(summary: str, content: str) -> str:
    return f"<details>\n<summary>{escaped(summary)}</summary>\n\n{content}\n\n</details>"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)
