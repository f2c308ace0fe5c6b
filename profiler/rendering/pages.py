"""What the pages of a sweep show of one section: the same for GitHub's page and for the one that opens from disk."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analysis.comparison import Section
from profiler.analysis.peaks import LargestRow, PhaseRow, Stack

FIGURES = "figures"
"""The folder of figures, beside the pages."""


@dataclass(frozen=True, kw_only=True)
class RenderedFigure:
    """A figure, as the bytes of its two files."""

    name: str
    """Of its files, without the ending."""
    title: str
    png: bytes
    svg: bytes


@dataclass(frozen=True, kw_only=True)
class SectionPage:
    """What a page shows of one section."""

    section: Section
    phases: Sequence[PhaseRow]
    stacks: Sequence[Stack] = ()
    largest: Sequence[LargestRow] = ()
    figures: Sequence[RenderedFigure] = ()
    left_out: Sequence[str] = ()
    """A sentence for each figure that would be too large to read."""
    broken: Sequence[str] = ()
    """A sentence for each figure that could not be drawn."""
