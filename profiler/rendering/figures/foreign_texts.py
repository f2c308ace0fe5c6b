"""Texts of others in a figure, shown as they are written: names of models, labels of trials, commands and paths.

matplotlib reads a text with two dollar signs as mathematics: ``$HOME/a $PATH`` cannot be parsed, and nothing is drawn.
"""

from collections.abc import Callable

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FuncFormatter

from profiler.domain.errors import shortened
from profiler.domain.text.plain_text import plain

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
