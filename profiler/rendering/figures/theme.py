"""The look of every figure: fonts, colours, texts of others, and the bytes of its file.

Texts of others in a figure, shown as they are written: names of models, labels of trials, commands and paths.

matplotlib reads a text with two dollar signs as mathematics: ``$HOME/a $PATH`` cannot be parsed, and nothing is drawn.
"""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from textwrap import fill
from typing import Any, cast

from matplotlib import rc_context, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter
from PIL import Image

from profiler.domain.errors import shortened
from profiler.domain.memory import Category, Origin
from profiler.domain.text import plain
from profiler.rendering.document import STANDARD_KINDS, FigureKind, RenderedFigure

INK = "#222222"
SOFT_INK = "#5f5f5f"
GRID_LINE = "#e3e3e3"
NOT_FITTING = "#c8553d"
NO_ANSWER = "#ececec"

CATEGORY_COLOURS: Mapping[Category, str] = {
    # Paul Tol's "muted" scheme (personal.sric.nl/data/colourschemes), in an order that makes neighbours distinct.
    Category.WEIGHTS: "#332288",
    Category.REFERENCE: "#88CCEE",
    Category.ADAPTERS: "#AA4499",
    Category.GRADIENTS: "#117733",
    Category.OPTIMIZER_STATE: "#999933",
    Category.ACTIVATIONS: "#DDCC77",
    Category.LOGITS: "#CC6677",
    Category.KV_CACHE: "#882255",
    Category.INPUTS: "#44AA99",
    # Four of Tol's "bright" scheme, for what the nine of "muted" leave out.
    Category.REWARD_MODEL: "#AA3377",
    Category.CRITIC: "#66CCEE",
    Category.ENGINE: "#4477AA",
    Category.COMMUNICATION: "#EE6677",
    Category.WORKSPACE: "#BBBBBB",
    Category.OTHER: "#666666",
}

ORIGIN_COLOURS: Mapping[Origin, str] = {
    # The scheme of Okabe and Ito.
    Origin.MEASURED: "#000000",
    Origin.EMULATED: "#D55E00",
    Origin.SIMULATED: "#0072B2",
    Origin.COUNTED: "#CC79A7",
    Origin.ESTIMATED: "#E69F00",
    Origin.PUBLISHED: "#009E73",
}

LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The scheme of Okabe and Ito, for lines."""


_NO_LOOK = (
    "backend", "date.epoch", "docstring.", "figure.max_open_warning", "figure.raise_window", "interactive",
    "savefig.directory", "timezone", "tk.", "toolbar", "webagg.",
)  # fmt: skip
"""How settings of matplotlib begin that say where it draws, and not how."""

_DEFAULTS = {key: value for key, value in rcParamsDefault.items() if not key.startswith(_NO_LOOK)}
"""Matplotlib's own settings of everything that is part of the look."""


def in_theme() -> AbstractContextManager[None]:
    """Return a context manager that applies the theme's settings of matplotlib, whatever a `matplotlibrc` says.

    matplotlib reads that file from the current folder too, which can be a checkout of somebody else.
    """
    return rc_context(
        {
            **_DEFAULTS,
            "font.family": "DejaVu Sans",
            "font.size": 9.5,
            "text.color": INK,
            "axes.edgecolor": SOFT_INK,
            "axes.labelcolor": INK,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": GRID_LINE,
            "grid.linewidth": 0.8,
            "xtick.color": SOFT_INK,
            "ytick.color": SOFT_INK,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "legend.frameon": False,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "hatch.linewidth": 0.6,
            # Fixed, so that equal figures are equal files, those that are kept included.
            "svg.hashsalt": "grpo-vram-profiler",
            "svg.fonttype": "path",
            "pdf.fonttype": 42,
        }
    )


def new_figure(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes; without pyplot, which keeps state and needs a display."""
    with in_theme():
        figure = Figure(figsize=(width_in, height_in))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
        return figure, figure.add_subplot()


def legend_below(figure: Figure, *, ncols: int = 1, handles: Sequence[Artist] | None = None, **look: float) -> None:
    """Draw the legend below the axes, in as many columns as fit into the figure, `ncols` at most.

    Args:
        figure: The figure, whose axes have labels where no handles are given.
        ncols: Most columns.
        handles: What the legend names; by default all labels of the axes.
        look: Further lengths of matplotlib's legend, in font sizes.
    """
    given = {} if handles is None else {"handles": list(handles)}
    for columns in range(ncols, 0, -1):
        legend = figure.legend(**given, loc="outside lower center", ncols=columns, fontsize=8.5, **look)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def add_note(figure: Figure, note: str) -> None:
    """Write a note below the heading of a figure of several panels, otherwise below its only axes."""
    if not note:
        return
    lines = fill(note, int(figure.get_figwidth() * _NOTE_CHARACTERS_PER_INCH))
    heading = next((text for text in figure.texts if text.get_text() == figure.get_suptitle() != ""), None)
    if heading is not None:
        heading.set_text(f"{heading.get_text()}\n{lines}")
        return
    label = figure.axes[0].get_xlabel()
    figure.axes[0].set_xlabel(f"{label}\n{lines}" if label else lines)


_TITLE_CHARACTERS_PER_INCH = 9
_NOTE_CHARACTERS_PER_INCH = 10


def title(axes: Axes, first: str, second: str) -> None:
    """Write a bold title, in lines that the figure has room for, and below it the origin of the numbers."""
    width = int(cast("Figure", axes.get_figure(root=True)).get_figwidth() * _TITLE_CHARACTERS_PER_INCH)
    axes.annotate(
        fill(first, width),
        (0, 1),
        xytext=(0, 22),
        xycoords="axes fraction",
        textcoords="offset points",
        weight="bold",
        size=11.5,
    )
    axes.annotate(
        second, (0, 1), xytext=(0, 8), xycoords="axes fraction", textcoords="offset points", color=SOFT_INK, size=9
    )


_MOST_CHARACTERS = 160
"""Longest line; the titles and names of our own grids have at most 120 characters."""

_MOST_LINES = 12


def show_as_written(figure: Figure) -> None:
    """Make every text of a figure one that is drawn as it is. Doing it again changes nothing.

    Labels of ticks that matplotlib makes of numbers stay as they are: the powers of a logarithmic axis are mathematics.
    """
    of_numbers = set()
    for axis in (each for axes in figure.axes for each in (axes.xaxis, axes.yaxis)):
        formatter = axis.get_major_formatter()
        # The axis writes what they return into its ticks whenever it is drawn. `set_xticks` makes the second kind too.
        if isinstance(formatter, FixedFormatter):
            formatter.seq = [as_written(str(text)) for text in formatter.seq]
        elif isinstance(formatter, FuncFormatter):
            formatter.func = _returning_as_written(formatter.func)
        labels = axis.get_ticklabels(which="both")  # makes the ticks that are still missing
        if not isinstance(formatter, FixedFormatter | FuncFormatter):
            of_numbers |= {id(text) for text in labels}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in of_numbers:
            text.set_parse_math(False)
            text.set_usetex(False)
            text.set_text(as_written(text.get_text()))


def _returning_as_written(func: Callable[..., object]) -> Callable[..., str]:
    return lambda *position: as_written(str(func(*position)))


def as_written(text: str) -> str:
    """Return a text without characters that are not drawn, in lines that a figure has room for."""
    lines = plain(text).replace("\t", " ").split("\n")[:_MOST_LINES]
    return "\n".join(shortened(line, _MOST_CHARACTERS) if _is_too_long(line) else line for line in lines)


def _is_too_long(line: str) -> bool:
    """Return whether a line has to be shortened; one that has been is a little longer than the limit."""
    return len(line) > _MOST_CHARACTERS + len("... (1,000,000 characters)")


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
        with _as_saved(figure):
            _lay_out(figure)
            files = {kind: _saved(figure, kind) for kind in (FigureKind.PNG, FigureKind.SVG)}
            if FigureKind.PDF in kinds:
                files[FigureKind.PDF] = _saved(figure, FigureKind.PDF)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return f"The figure '{name}' could not be drawn ({type(error).__name__}: {lines[0]})."
    png, svg = files[FigureKind.PNG], files[FigureKind.SVG]
    found = RenderedFigure(name=name, title=title, png=png, svg=svg, note=note, suffixes=tuple(kinds))
    return found, {kind: files[kind] for kind in kinds}


def as_kind(figure: Figure, kind: FigureKind) -> bytes:
    """Return the figure in a format."""
    with _as_saved(figure):
        return _saved(figure, kind)


def as_png(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    return as_kind(figure, FigureKind.PNG)


def as_svg(figure: Figure) -> bytes:
    """Return the figure as SVG. Letters are outlines, so that the fonts of the viewer do not matter."""
    return as_kind(figure, FigureKind.SVG)


def as_pdf(figure: Figure) -> bytes:
    """Return the figure as PDF, with its letters as text."""
    return as_kind(figure, FigureKind.PDF)


@contextmanager
def _as_saved(figure: Figure) -> Iterator[None]:
    """A context in which a figure has the theme, and its texts are as they are written."""
    with in_theme(), warnings.catch_warnings():
        # A frame stands for a letter that no font here has; a warning on the terminal would not tell more.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        show_as_written(figure)
        yield


def _lay_out(figure: Figure) -> None:
    """Find the places of everything in a figure once, for all formats.

    `savefig` draws a figure that has a layout engine once more before it saves it.
    """
    figure.set_dpi(_DOTS_PER_INCH)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)


_METADATA: Mapping[FigureKind, Mapping[str, None]] = {
    FigureKind.PNG: {"Software": None},
    FigureKind.SVG: {"Date": None, "Creator": None},
    FigureKind.PDF: {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What matplotlib would write into files of a format beyond the figure."""


def _saved(figure: Figure, kind: FigureKind) -> bytes:
    sink = io.BytesIO()
    # Hardly packed, as an image is read again for its palette.
    packing: dict[str, Any] = {"pil_kwargs": {"compress_level": 1}} if kind is FigureKind.PNG else {}
    figure.savefig(sink, format=kind.value, dpi=_DOTS_PER_INCH, metadata=dict(_METADATA[kind]), **packing)
    return _with_few_colors(sink.getvalue()) if kind is FigureKind.PNG else sink.getvalue()


_KMEANS = 3
"""Rounds that move the colors of a palette to the middle of those that they stand for."""


def _with_few_colors(png: bytes) -> bytes:
    """Return an opaque image with a palette of 256 colors: a third of the bytes, and no color changes visibly."""
    sink = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        method, dither = Image.Quantize.MEDIANCUT, Image.Dither.NONE
        image.convert("RGB").quantize(256, method=method, kmeans=_KMEANS, dither=dither).save(sink, "PNG")
    return sink.getvalue()
