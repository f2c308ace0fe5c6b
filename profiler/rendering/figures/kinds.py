"""Formats of figures; matplotlib draws them in `figures/`."""

from enum import StrEnum


class FigureKind(StrEnum):
    """Format of a figure's file, as the suffix of its name."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


STANDARD_KINDS = (FigureKind.PNG, FigureKind.SVG)
"""Those of a report where the user names none."""
