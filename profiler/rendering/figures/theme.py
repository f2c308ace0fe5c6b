"""The look of every figure: fonts, colours that colour-blind readers can distinguish, and the first axes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from textwrap import fill
from typing import cast

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.domain.memory import Category, Origin

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
