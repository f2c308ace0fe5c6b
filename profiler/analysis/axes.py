"""Trials along an axis: the same method and model with one key, or two, at several numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section

_PART = re.compile(r"(?P<key>\w+)=(?P<value>\d+(\.\d+)?)")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method and model along one key."""

    method: str
    model: str
    key: str
    points: tuple[tuple[float, Cell], ...]
    """Value of the key and trial, ascending; only trials whose result is known."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One method and model along two keys."""

    method: str
    model: str
    keys: tuple[str, str]
    values: tuple[tuple[float, ...], tuple[float, ...]]
    """Of each key, ascending."""
    cells: Mapping[tuple[float, float], Cell]


def curves(section: Section) -> tuple[Curve, ...]:
    """The curves of a section: two points or more each."""
    found: dict[tuple[str, str, str], list[tuple[float, Cell]]] = {}
    for cell in section.in_order():
        method, numbers = _split(cell.label)
        if len(numbers) == 1 and cell.result_bytes is not None:
            ((key, value),) = numbers
            found.setdefault((method, cell.model, key), []).append((value, cell))
    return tuple(
        Curve(method=method, model=model, key=key, points=tuple(sorted(points, key=_value)))
        for (method, model, key), points in found.items()
        if len(points) > 1
    )


def surfaces(section: Section) -> tuple[Surface, ...]:
    """The surfaces of a section: two values or more of each key."""
    found: dict[tuple[str, str, tuple[str, str]], dict[tuple[float, float], Cell]] = {}
    for cell in section.in_order():
        method, numbers = _split(cell.label)
        if len(numbers) == 2:
            (first, one), (second, other) = numbers
            found.setdefault((method, cell.model, (first, second)), {})[one, other] = cell
    made = (
        Surface(
            method=method,
            model=model,
            keys=keys,
            values=(_sorted(one for one, _ in cells), _sorted(other for _, other in cells)),
            cells=cells,
        )
        for (method, model, keys), cells in found.items()
    )
    return tuple(surface for surface in made if min(map(len, surface.values)) > 1)


def _split(label: str) -> tuple[str, Sequence[tuple[str, float]]]:
    """A label's method, and its keys with numbers; other keys stay with the method."""
    method, *parts = label.split(", ")
    numbers = []
    for part in parts:
        matched = _PART.fullmatch(part)
        if matched:
            numbers.append((matched["key"], float(matched["value"])))
        else:
            method += f", {part}"
    return method, numbers


def _sorted(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted(set(values)))


def _value(point: tuple[float, Cell]) -> float:
    return point[0]
