"""Figures as bytes of files; the same figure gives the same bytes."""

import io

from matplotlib.figure import Figure

from profiler.rendering.figure_kinds import FigureKind
from profiler.rendering.figures.theme import in_theme

_DOTS_PER_INCH = 150


def as_kind(figure: Figure, kind: FigureKind) -> bytes:
    """Return the figure in a format."""
    return {FigureKind.PNG: as_png, FigureKind.SVG: as_svg, FigureKind.PDF: as_pdf}[kind](figure)


def as_png(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    return _saved(figure, "png", {"Software": None})


def as_svg(figure: Figure) -> bytes:
    """Return the figure as SVG. Letters are outlines, so that the fonts of the viewer do not matter."""
    return _saved(figure, "svg", {"Date": None, "Creator": None})


def as_pdf(figure: Figure) -> bytes:
    """Return the figure as PDF, with its letters as text."""
    return _saved(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    sink = io.BytesIO()
    with in_theme():
        figure.savefig(sink, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return sink.getvalue()
