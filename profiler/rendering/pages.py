"""The rendered figures of a sweep, for both pages."""

from collections.abc import Sequence
from dataclasses import dataclass

FIGURES = "figures"
"""The folder of figures, in the folder of the pages."""


@dataclass(frozen=True, kw_only=True)
class RenderedFigure:
    """A figure, as the bytes of its two files."""

    name: str
    """Of its files, without the suffix."""
    title: str
    png: bytes
    svg: bytes


@dataclass(frozen=True, kw_only=True)
class SectionFigures:
    """The figures of one section."""

    figures: Sequence[RenderedFigure] = ()
    left_out: Sequence[str] = ()
    """One sentence per figure that would be too large to read."""
    broken: Sequence[str] = ()
    """One sentence per figure that could not be drawn."""
