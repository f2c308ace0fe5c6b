"""Which figures a section has, and the name of each one's file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from profiler.analysis.accuracy import Accuracy
from profiler.analysis.answers import savings
from profiler.analysis.axes import curves, surfaces
from profiler.analysis.comparison import Section
from profiler.analysis.peaks import Stack
from profiler.analysis.shapes import Shape
from profiler.rendering.figures.categories import categories_figure, pages
from profiler.rendering.figures.comparison import comparison_figure
from profiler.rendering.figures.growth import growth_figure
from profiler.rendering.figures.heat import heat_figure
from profiler.rendering.figures.parity import parity_figure
from profiler.rendering.figures.published import published_figure
from profiler.rendering.figures.slopes import slope_figure
from profiler.rendering.figures.step_shape import step_figure

MOST_ROWS = 60
"""A table of more rows is read better as a table."""
MOST_PAGES = 6
"""Of stacked bars; nobody turns more of them."""
MOST_LINES = 14
"""In one figure, and steps of a slope."""
MOST_SURFACES = 6


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure that can be drawn."""

    name: str
    """Of its files, without the ending."""
    title: str
    draw: Callable[[], Figure]


def drawings(
    section: Section,
    *,
    stacks: Sequence[Stack],
    found: Sequence[Accuracy],
    number: int,
    shapes: Sequence[Shape] = (),
) -> tuple[Drawing, ...]:
    """The figures of a section that its results allow. `number` tells sections of one page apart, from 1."""
    suffix = "" if number == 1 else f"-{number}"
    return (*_drawings(section, stacks, found, suffix), *_step(section, shapes, suffix))


def _step(section: Section, shapes: Sequence[Shape], suffix: str) -> Iterable[Drawing]:
    if shapes:
        yield Drawing(
            name=f"step{suffix}", title="The shape of an optimizer step", draw=partial(step_figure, section, shapes)
        )


def too_much(section: Section, *, stacks: Sequence[Stack]) -> tuple[str, ...]:
    """A sentence for each figure that is left out because it would be too large to read."""
    left_out = []
    if len(section.rows) > MOST_ROWS:
        left_out.append(f"The comparison has {len(section.rows)} rows, too many to draw: the table has them all.")
    if len(pages(stacks)) > MOST_PAGES:
        left_out.append(f"The categories of {len(stacks)} trials are too many to draw: breakdown.parquet has them all.")
    return tuple(left_out)


def _drawings(section: Section, stacks: Sequence[Stack], found: Sequence[Accuracy], suffix: str) -> Iterable[Drawing]:
    if len(section.rows) <= MOST_ROWS:
        yield Drawing(
            name=f"comparison{suffix}",
            title="Peak memory of every method and model",
            draw=partial(comparison_figure, section),
        )
    portions = pages(stacks)
    for page, portion in enumerate(portions, start=1) if len(portions) <= MOST_PAGES else ():
        yield Drawing(
            name=f"categories{suffix}" + (f"-page-{page}" if page > 1 else ""),
            title="What the peak is made of" + (f", page {page} of {len(portions)}" if len(portions) > 1 else ""),
            draw=partial(categories_figure, section, portion),
        )
    yield from _along_keys(section, suffix)
    if found:
        yield Drawing(
            name=f"estimate{suffix}", title="Estimate against result", draw=partial(parity_figure, section, found)
        )
    if section.published:
        yield Drawing(
            name=f"published{suffix}", title="The published table beside ours", draw=partial(published_figure, section)
        )


def _along_keys(section: Section, suffix: str) -> Iterable[Drawing]:
    """What methods save, and how peaks grow along one key or two."""
    lines = curves(section)
    for key in dict.fromkeys(curve.key for curve in lines):
        along = [curve for curve in lines if curve.key == key]
        if len(along) <= MOST_LINES and all(len(curve.points) <= MOST_ROWS for curve in along):
            yield Drawing(
                name=f"growth-{key}{suffix}",
                title=f"How the peak grows with {key}",
                draw=partial(growth_figure, section, along),
            )
    if savings(section) and len(section.rows) <= MOST_LINES and len(section.models) <= MOST_LINES:
        yield Drawing(name=f"savings{suffix}", title="What each method saves", draw=partial(slope_figure, section))
    for number, surface in enumerate(surfaces(section)[:MOST_SURFACES], start=1):
        yield Drawing(
            name=f"heat{suffix}-{number}",
            title=f"{surface.method}, {surface.model}: {surface.keys[0]} and {surface.keys[1]}",
            draw=partial(heat_figure, section, surface),
        )
