"""Trials along an axis, and the layout of a section as a table of methods and models."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import cast

from profiler.analysis.compared.cells import Cell, Number, is_numeric
from profiler.analysis.compared.comparison import Section
from profiler.domain.trials.labels import Naming, naming, value_text
from profiler.domain.trials.trial import PLACE_KEYS


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method and model along one key."""

    method: str
    """The label without the key."""
    model: str
    key: str
    points: tuple[tuple[Number, Cell], ...]
    """Value of the key and trial, ascending."""

    @property
    def known(self) -> tuple[tuple[Number, Cell], ...]:
        """The points whose result is known."""
        return tuple(point for point in self.points if point[1].result_bytes is not None)


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One method and model along two keys."""

    method: str
    """The label without the keys."""
    model: str
    keys: tuple[str, str]
    values: tuple[tuple[Number, ...], tuple[Number, ...]]
    """Of each key, ascending."""
    cells: Mapping[tuple[Number, Number], Cell]


def numeric_keys(section: Section) -> tuple[str, ...]:
    """Return the keys in which trials differ and whose values are numbers."""
    return tuple(key for key in section.naming.keys if is_numeric(key))


def curves(section: Section, keys: Iterable[str] | None = None) -> tuple[Curve, ...]:
    """Return the curves of a section, of at least two points each.

    Args:
        section: The trials.
        keys: Numeric keys, of which each gets its curves; by default those that labels name.
    """
    wanted = numeric_keys(section) if keys is None else tuple(keys)
    return tuple(curve for key in wanted for curve in _along(section, key))


def surfaces(section: Section, pairs: Iterable[tuple[str, str]] | None = None) -> tuple[Surface, ...]:
    """Return the surfaces of a section, of at least two values of each key, with trials that share values of both.

    Args:
        section: The trials.
        pairs: Pairs of numeric keys; by default every pair of those that labels name.
    """
    wanted = combinations(numeric_keys(section), 2) if pairs is None else pairs
    return tuple(surface for pair in wanted for surface in _over(section, pair))


def _along(section: Section, key: str) -> Iterator[Curve]:
    named = _naming(section, (key,))
    found: dict[tuple[str, str], dict[Number, Cell]] = {}
    for cell in section.in_order():
        if _names(named, cell, (key,)):
            name = named.label(cell.keys, without=(*PLACE_KEYS, key))
            found.setdefault((name, cell.model), {})[_number(cell, key)] = cell
    for (name, model), points in found.items():
        if len(points) > 1:
            yield Curve(method=name, model=model, key=key, points=tuple(sorted(points.items(), key=_value)))


def _over(section: Section, keys: tuple[str, str]) -> Iterator[Surface]:
    named = _naming(section, keys)
    found: dict[tuple[str, str], dict[tuple[Number, Number], Cell]] = {}
    for cell in section.in_order():
        if _names(named, cell, keys):
            name = named.label(cell.keys, without=(*PLACE_KEYS, *keys))
            found.setdefault((name, cell.model), {})[_number(cell, keys[0]), _number(cell, keys[1])] = cell
    for (name, model), cells in found.items():
        values = tuple(sorted({one for one, _ in cells})), tuple(sorted({other for _, other in cells}))
        # Trials of which no two share a value of either key are points, not a surface.
        if min(map(len, values)) > 1 and len(cells) > max(map(len, values)):
            yield Surface(method=name, model=model, keys=keys, values=values, cells=cells)


def _naming(section: Section, keys: tuple[str, ...]) -> Naming:
    """Return the section's naming, or one that names `keys` where other keys stand for them."""
    if set(keys) <= set(section.naming.keys):
        return section.naming
    return naming([cell.keys for cell in section.in_order()], first=keys)


def _names(named: Naming, cell: Cell, keys: Sequence[str]) -> bool:
    """Whether the label of a trial names all of `keys`, with numbers."""
    return set(keys) <= set(named.keys_of(cell.keys)) and all(cell.keys[key] is not None for key in keys)


def _number(cell: Cell, key: str) -> Number:
    return cast("Number", cell.keys[key])


def _value(point: tuple[Number, Cell]) -> Number:
    return point[0]


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
