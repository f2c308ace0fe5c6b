"""The figures of a section, and the names of their files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from profiler.analysis.axes import Surface
from profiler.analysis.comparison import Section
from profiler.analysis.limits import CardLimit, EstimatedLimit, EstimateLimits
from profiler.analysis.sweep_report import SectionReport
from profiler.rendering.figures.categories import categories_figure, pages
from profiler.rendering.figures.comparison import comparison_figure
from profiler.rendering.figures.growth import growth_figure
from profiler.rendering.figures.heat import heat_figure
from profiler.rendering.figures.parity import parity_figure
from profiler.rendering.figures.published import published_figure
from profiler.rendering.figures.slopes import slope_figure
from profiler.rendering.figures.step_shape import step_figure

MOST_ROWS = 60
"""Of a drawn comparison; a longer one is easier to read as a table."""
MOST_PAGES = 6
"""Of stacked bars."""
MOST_LINES = 14
"""Of one figure, and methods of a slope."""
MOST_SURFACES = 6


MOST_FIGURES = 12
"""Of one report. Each takes about half a second, and a page of dozens is not read."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure that can be drawn."""

    name: str
    """Of its files, without the suffix."""
    title: str
    draw: Callable[[], Figure]


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
    if len(part.section.rows) <= MOST_ROWS:
        yield Drawing(
            name=f"comparison{suffix}",
            title="Peak memory of every method and model",
            draw=partial(comparison_figure, part.section, part.matrix),
        )
    portions = pages(part.stacks)
    for page, portion in enumerate(portions, start=1) if len(portions) <= MOST_PAGES else ():
        yield Drawing(
            name=f"categories{suffix}" + (f"-page-{page}" if page > 1 else ""),
            title="What the peak is made of" + (f", page {page} of {len(portions)}" if len(portions) > 1 else ""),
            draw=partial(categories_figure, part.section, portion),
        )


def _along_keys(part: SectionReport, suffix: str, estimate_limits: EstimateLimits) -> Iterable[Drawing]:
    """Peaks along one key or two, and what methods save."""
    drawable = [curve for curve in part.curves if len(curve.known) > 1]
    for key in dict.fromkeys(curve.key for curve in drawable):
        along = [curve for curve in drawable if curve.key == key]
        if len(along) <= MOST_LINES and all(len(curve.known) <= MOST_ROWS for curve in along):
            yield Drawing(
                name=f"growth-{key}{suffix}",
                title=f"How the peak grows with {key}",
                draw=partial(growth_figure, part.section, along),
            )
    if part.answers.savings and max(len(part.section.rows), len(part.section.models)) <= MOST_LINES:
        yield Drawing(name=f"savings{suffix}", title="What each method saves", draw=partial(slope_figure, part.section))
    surfaces = list(zip(part.surfaces, part.card_limits, strict=True))
    for number, (surface, limits) in enumerate(surfaces[:MOST_SURFACES], start=1):
        yield Drawing(
            name=f"heat{suffix}-{number}",
            title=f"{surface.method}, {surface.model}: {surface.keys[0]} and {surface.keys[1]}",
            draw=partial(_heat, part.section, surface, limits, estimate_limits),
        )


def _heat(section: Section, surface: Surface, limits: Sequence[CardLimit], estimate_limits: EstimateLimits) -> Figure:
    return heat_figure(section, surface, limits, estimate_limits(surface))


def _references(part: SectionReport, suffix: str) -> Iterable[Drawing]:
    """Comparisons with estimates and with published figures."""
    if part.accuracies:
        yield Drawing(
            name=f"estimate{suffix}",
            title="Estimate against result",
            draw=partial(parity_figure, part.section, part.accuracies),
        )
    if part.section.published:
        yield Drawing(
            name=f"published{suffix}",
            title="The published table and ours",
            draw=partial(published_figure, part.section),
        )


def _step(part: SectionReport, suffix: str) -> Iterable[Drawing]:
    if part.shapes:
        yield Drawing(
            name=f"step{suffix}",
            title="The shape of an optimizer step",
            draw=partial(step_figure, part.section, part.shapes),
        )
