"""How a section is laid out as a table: methods down and models across, or of one model two keys against each other."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.analysis.axes import surfaces
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Rows and columns of a table, in order."""

    rows: tuple[str, ...]
    """Methods, with the keys that tell them apart and stand not across."""
    columns: tuple[str, ...]
    """Models, or values of `key`."""
    key: str | None
    """The key that stands across; None where models do."""
    cells: Mapping[tuple[str, str], Cell]
    """By (row, column); not every place need have one."""


def matrix(section: Section) -> Matrix:
    """The table of a section: where methods of a single model differ in two keys, both numbers, one stands across."""
    found = surfaces(section) if len(section.models) == 1 else ()
    keys = {surface.keys[1] for surface in found}
    if len(keys) != 1 or sum(len(surface.cells) for surface in found) != len(section.cells):
        return Matrix(rows=section.rows, columns=section.models, key=None, cells=section.cells)
    (key,) = keys
    cells = {
        (f"{surface.method}, {surface.keys[0]}={one:g}", f"{other:g}"): cell
        for surface in found
        for (one, other), cell in surface.cells.items()
    }
    values = sorted({other for surface in found for other in surface.values[1]})
    return Matrix(
        rows=tuple(dict.fromkeys(row for row, _ in cells)),
        columns=tuple(f"{value:g}" for value in values),
        key=key,
        cells=cells,
    )
