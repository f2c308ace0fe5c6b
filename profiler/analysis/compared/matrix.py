"""The layout of a section as a table: methods down and models across, or, of one model, one key across."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.analysis.compared.axes import Surface
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.trials.labels import value_text
from profiler.domain.trials.trial import PLACE_KEYS


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Rows and columns of a table, in order."""

    rows: tuple[str, ...]
    """Labels, without the key across."""
    columns: tuple[str, ...]
    """Models, or values of `key`."""
    key: str | None
    """The key across; None if models are."""
    cells: Mapping[tuple[str, str], Cell]
    """By (row, column); a place can be empty."""


def matrix(section: Section, surfaces: Sequence[Surface]) -> Matrix:
    """Return the table of a section. The second key of `surfaces` is across if they hold every trial of one model."""
    keys = {surface.keys[1] for surface in surfaces}
    covered = sum(len(surface.cells) for surface in surfaces) == len(section.cells)
    if len(section.models) != 1 or len(keys) != 1 or not covered:
        return Matrix(rows=section.rows, columns=section.models, key=None, cells=section.cells)
    (key,) = keys
    cells = {
        (section.naming.label(cell.keys, without=(*PLACE_KEYS, key)), value_text(other)): cell
        for surface in surfaces
        for (_, other), cell in surface.cells.items()
    }
    values = sorted({other for surface in surfaces for other in surface.values[1]})
    return Matrix(
        rows=tuple(dict.fromkeys(row for row, _ in cells)),
        columns=tuple(value_text(value) for value in values),
        key=key,
        cells=cells,
    )
