"""The figure: errors of each predictor over the rows that it covers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from profiler.rendering.figures.theme import INK, LINE_COLOURS, SOFT_INK, in_theme, new_figure, title

_LIMIT = 1.0
"""Errors beyond 100 % are shown at the edge."""
_HEIGHT_IN = 0.42


def errors_figure(errors: Mapping[str, Sequence[float]], *, ours: Sequence[str]) -> Figure:
    """Draw one line of points per predictor, the first on top, with a mark at the median of the signed errors.

    Args:
        errors: Signed errors by the title of the predictor; those without any are left out.
        ours: Titles that are found in the colour of this project.
    """
    found = {name: values for name, values in errors.items() if values}
    with in_theme():
        figure, axes = new_figure(7.4, 1.6 + _HEIGHT_IN * len(found))
        for place, (name, values) in enumerate(found.items()):
            shown = np.clip(np.asarray(values, dtype=float), -_LIMIT, _LIMIT)
            # A fixed pattern, so that the figure is the same each time.
            heights = -place + 0.28 * np.sin(np.arange(len(shown)) * 2.399)
            colour = LINE_COLOURS[0] if name in ours else LINE_COLOURS[1]
            axes.scatter(shown * 100, heights, s=7, color=colour, alpha=0.35, linewidths=0)
            axes.plot([np.median(shown) * 100], [-place], marker="|", markersize=15, color=INK, markeredgewidth=1.8)
        axes.axvline(0, color=SOFT_INK, linewidth=0.8)
        axes.set_yticks([-place for place in range(len(found))], [f"{name} ({len(found[name])})" for name in found])
        axes.set_xlim(-104, 104)
        axes.set_xlabel("error of the prediction, % (beyond 100 % at the edge); left is too low")
        title(
            axes, "Errors over the rows that each predictor covers", "in brackets their number; the bar is the median"
        )
    return figure
