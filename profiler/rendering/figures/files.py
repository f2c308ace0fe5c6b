"""Figures as bytes of files; the same figure gives the same bytes."""

import io
import warnings
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from profiler.rendering.document import RenderedFigure
from profiler.rendering.figures.foreign_texts import show_as_written
from profiler.rendering.figures.kinds import STANDARD_KINDS, FigureKind
from profiler.rendering.figures.theme import in_theme

_DOTS_PER_INCH = 150


def rendered(
    name: str, title: str, draw: Callable[[], Figure], *, note: str = "", kinds: Sequence[FigureKind] = STANDARD_KINDS
) -> tuple[RenderedFigure, dict[FigureKind, bytes]] | str:
    """Draw a figure for pages and files, or return a sentence that says why it cannot be drawn.

    A figure that fails, for whatever reason, must not cost the others, the tables or the exit code of a command.

    Args:
        name: Of its files, without the suffix.
        title: For the page.
        draw: Makes it.
        note: Which trials it does not show.
        kinds: The formats of its files.
    """
    try:
        figure = draw()
        png = as_png(figure)
        figure.set_layout_engine("none")  # the other formats have the places that it has found
        svg = as_svg(figure)
        files = {FigureKind.PNG: png, FigureKind.SVG: svg}
        if FigureKind.PDF in kinds:
            files[FigureKind.PDF] = as_pdf(figure)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return f"The figure '{name}' could not be drawn ({type(error).__name__}: {lines[0]})."
    found = RenderedFigure(name=name, title=title, png=png, svg=svg, note=note, suffixes=tuple(kinds))
    return found, {kind: files[kind] for kind in kinds}


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
    with in_theme(), warnings.catch_warnings():
        # A frame stands for a letter that no font here has; a warning on the terminal would not tell more.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        show_as_written(figure)
        figure.savefig(sink, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return sink.getvalue()
