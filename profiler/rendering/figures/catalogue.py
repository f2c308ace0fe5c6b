"""The figures of a section, and the names of their files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from profiler.analysis.compared.axes import Surface
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.findings.answers import MOST_SURFACES, CardLimit, EstimatedLimit, EstimateLimits
from profiler.analysis.sweep_report import SectionReport
from profiler.domain.runs.outcome import Status
from profiler.rendering.figures.growth import growth_figure, slope_figure
from profiler.rendering.figures.heat import heat_figure
from profiler.rendering.figures.sweep.categories import categories_figure, pages, step_figure
from profiler.rendering.figures.sweep.comparison import bars_figure, comparison_figure
from profiler.rendering.figures.sweep.parity import parity_figure, published_figure
from profiler.rendering.figures.theme import add_note, in_theme
from profiler.rendering.sweep.words import cell_name

MOST_ROWS = 60
"""Of a drawn comparison; a longer one is easier to read as a table."""
MOST_PAGES = 6
"""Of stacked bars."""
MOST_LINES = 14
"""Of one figure, and methods of a slope."""

MOST_FIGURES = 12
"""Of one report. Each takes about half a second, and a page of dozens is not read."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure that can be drawn."""

    name: str
    """Of its files, without the suffix."""
    title: str
    draw: Callable[[], Figure]
    note: str = ""
    """Which trials the figure does not show."""

    def figure(self) -> Figure:
        """Return the figure with its note."""
        made = self.draw()
        with in_theme():
            add_note(made, self.note)
        return made


def _not_estimated(_surface: Surface) -> tuple[EstimatedLimit, ...]:
    return ()


def drawings(
    part: SectionReport, *, number: int, estimate_limits: EstimateLimits = _not_estimated
) -> tuple[Drawing, ...]:
    """Return the figures for which a section has results.

    Args:
        part: The section.
        number: Number of the section on the page, from 1; part of the names of its files.
        estimate_limits: Returns the estimated limits of a surface; called when its figure is drawn.
    """
    suffix = "" if number == 1 else f"-{number}"
    return (
        *_overview(part, suffix),
        *_along_keys(part, suffix, estimate_limits),
        *_references(part, suffix),
        *_step(part, suffix),
    )


def chosen(
    sections: Sequence[SectionReport], estimate_limits: EstimateLimits = _not_estimated
) -> tuple[tuple[Drawing, ...], ...]:
    """Return the figures of each section: all of them if they are few enough, else the first of each in turn."""
    every = [
        drawings(part, number=number, estimate_limits=estimate_limits) for number, part in enumerate(sections, start=1)
    ]
    in_turn = [(turn, number) for number, found in enumerate(every) for turn in range(len(found))]
    kept = sorted(in_turn)[:MOST_FIGURES]
    return tuple(
        tuple(drawing for turn, drawing in enumerate(found) if (turn, number) in kept)
        for number, found in enumerate(every)
    )


def too_much(part: SectionReport, *, number: int, shown: int) -> tuple[str, ...]:
    """Return one sentence per figure that is left out because it would be too large to read, and one for the others.

    Args:
        part: The section.
        number: Number of the section on the page, from 1.
        shown: Number of figures of the section in the report.
    """
    left_out = []
    rows, trials = len(part.section.rows), len(part.stacks)
    if rows > MOST_ROWS:
        left_out.append(f"The comparison has {rows} rows, too many to draw: the table has them all.")
    if len(pages(part.stacks)) > MOST_PAGES:
        left_out.append(f"The categories of {trials} trials are too many to draw: breakdown.parquet has them all.")
    if (others := len(drawings(part, number=number)) - shown) > 0:
        are = "figure of this section is" if others == 1 else "figures of this section are"
        left_out.append(
            f"{others} more {are} left out: a report has at most {MOST_FIGURES}. The report of a smaller grid has them."
        )
    return tuple(left_out)


def _overview(part: SectionReport, suffix: str) -> Iterable[Drawing]:
    """The comparison, and the categories of each peak."""
    section, portions = part.section, pages(part.stacks)
    has_stacks = len(portions) <= MOST_PAGES and len(part.stacks) == len(section.cells)
    if len(section.rows) <= MOST_ROWS and not _is_in_heat_maps(part):
        if len(part.matrix.columns) > 1:
            yield Drawing(
                name=f"comparison{suffix}",
                title="Peak memory of every method and model",
                draw=partial(comparison_figure, section, part.matrix),
            )
        elif part.matrix.columns and not has_stacks:
            yield Drawing(
                name=f"comparison{suffix}",
                title="Peak memory of every method",
                draw=partial(bars_figure, section, part.matrix),
            )
    for page, portion in enumerate(portions, start=1) if len(portions) <= MOST_PAGES else ():
        yield Drawing(
            name=f"categories{suffix}" + (f"-page-{page}" if page > 1 else ""),
            title="What the peak is made of" + (f", page {page} of {len(portions)}" if len(portions) > 1 else ""),
            draw=partial(categories_figure, section, portion),
            note=not_shown(section, (stack.cell for stack in part.stacks), why="their categories are unknown"),
        )


def _is_in_heat_maps(part: SectionReport) -> bool:
    """Whether heat maps have the number of every trial, so that the comparison and the curves would repeat them."""
    shown = {cell.trial_id for surface in part.surfaces for cell in surface.cells.values() if cell.result_bytes}
    return 0 < len(part.surfaces) <= MOST_SURFACES and all(
        cell.trial_id in shown for cell in part.section.cells.values()
    )


def _along_keys(part: SectionReport, suffix: str, estimate_limits: EstimateLimits) -> Iterable[Drawing]:
    """Peaks along one key or two, and what methods save."""
    section = part.section
    drawable = [] if _is_in_heat_maps(part) else [curve for curve in part.curves if len(curve.known) > 1]
    for key in dict.fromkeys(curve.key for curve in drawable):
        along = [curve for curve in drawable if curve.key == key]
        if len(along) <= MOST_LINES and all(len(curve.known) <= MOST_ROWS for curve in along):
            yield Drawing(
                name=f"growth-{key}{suffix}",
                title=f"How the peak grows with {key}",
                draw=partial(growth_figure, section, along),
                note=not_shown(section, (cell for curve in along for _, cell in curve.known)),
            )
    if part.answers.savings and max(len(section.rows), len(section.models)) <= MOST_LINES:
        yield Drawing(
            name=f"savings{suffix}",
            title="What each method saves",
            draw=partial(slope_figure, section),
            note=not_shown(section, (cell for cell in section.cells.values() if cell.result_bytes)),
        )
    surfaces = zip(part.surfaces[:MOST_SURFACES], part.card_limits, strict=True)
    for number, (surface, limits) in enumerate(surfaces, start=1):
        yield Drawing(
            name=f"heat{suffix}-{number}",
            title=f"{surface.method}, {surface.model}: {surface.keys[0]} and {surface.keys[1]}",
            draw=partial(_heat, section, surface, limits, estimate_limits),
            note=not_shown(section, (cell for cell in surface.cells.values() if cell.result_bytes is not None)),
        )


def _heat(section: Section, surface: Surface, limits: Sequence[CardLimit], estimate_limits: EstimateLimits) -> Figure:
    return heat_figure(section, surface, limits, estimate_limits(surface))


def _references(part: SectionReport, suffix: str) -> Iterable[Drawing]:
    """Comparisons with estimates and with published figures."""
    section = part.section
    if part.accuracies:
        yield Drawing(
            name=f"estimate{suffix}",
            title="Estimate against result",
            draw=partial(parity_figure, section, part.accuracies),
            note=not_shown(
                section, (cell for cell in section.cells.values() if cell.result_bytes and cell.estimated_bytes)
            ),
        )
    if section.published:
        yield Drawing(
            name=f"published{suffix}",
            title="The published table and ours",
            draw=partial(published_figure, section),
            note=not_shown(
                section, (cell for cell in section.cells.values() if cell.published), why="nothing is published"
            ),
        )


def _step(part: SectionReport, suffix: str) -> Iterable[Drawing]:
    if part.shapes:
        yield Drawing(
            name=f"step{suffix}",
            title="The shape of an optimizer step",
            draw=partial(step_figure, part.section, part.shapes),
            note=not_shown(part.section, (shape.cell for shape in part.shapes), why="shape.parquet has them"),
        )


_MOST_NAMED = 3


def not_shown(section: Section, shown: Iterable[Cell], *, why: str = "") -> str:
    """Return the sentence about the trials of `section` that are not among `shown`; empty if all are.

    Args:
        section: All trials.
        shown: Those of the figure.
        why: Why the others are missing, where their status does not say it.
    """
    known = {cell.trial_id for cell in shown}
    others = [cell for cell in section.in_order() if cell.trial_id not in known]
    if not others:
        return ""
    reason = f" ({why})" if why else ""
    counted = f"Not shown: {len(others)} of {len(section.cells)} trials{reason}"
    if len(others) > _MOST_NAMED:
        return f"{counted}."
    return f"{counted}: {'; '.join(_named(cell) for cell in others)}."


def _named(cell: Cell) -> str:
    status = "" if cell.status in (Status.OK, Status.OOM) else f", {cell.status.value.replace('_', ' ')}"
    return f"{cell_name(cell)}{status}"
