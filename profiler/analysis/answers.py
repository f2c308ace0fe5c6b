"""What a section says first: how much methods save, how far they reach, and what an axis costs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from profiler.analysis.axes import Surface, surfaces
from profiler.analysis.cards import headroom_bytes
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import matrix
from profiler.domain.outcome import Status

_ONE_KEY = re.compile(r"(?P<method>.+?), (?P<key>\w+)=(?P<value>[^,]+)")


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What a method takes less than the first of the section, over the models where both are known. Ratios."""

    method: str
    against: str
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a method goes on the card."""

    method: str
    fits: Cell | None
    """Of the models that fit, the largest; None if none does."""
    fails: Cell | None
    """Of the models larger than that, the smallest that ran out of memory; None if none did."""

    @property
    def headroom_bytes(self) -> int | None:
        """What the card has to spare with `fits`."""
        return None if self.fits is None else headroom_bytes(self.fits)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One method and model, and how its result changes with one key."""

    method: str
    model: str
    key: str
    least: tuple[str, int]
    """The key's value, and the result in bytes."""
    most: tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How far one key goes on the card, at some values of another."""

    method: str
    keys: tuple[str, str]
    values: tuple[str, ...]
    """Of the first key, those that go as far, in order."""
    fits: str | None
    """The highest value of the second up to which every trial fits; None if the lowest does not."""
    reaches_end: bool
    """Whether that is the highest there is."""


def savings(section: Section) -> tuple[Saving, ...]:
    """What each method saves against the first; nothing where methods are one method with other keys."""
    if not section.rows or _one_key_rows(section):
        return ()
    baseline, *others = section.rows
    found = []
    for method in others:
        ratios = [
            1 - changed / first
            for model in section.models
            if (first := _result(section, baseline, model)) and (changed := _result(section, method, model))
        ]
        if ratios:
            found.append(Saving(method=method, against=baseline, least=min(ratios), most=max(ratios)))
    return tuple(found)


def reaches(section: Section) -> tuple[Reach, ...]:
    """How far each method goes, where there is more than one model and memory is known."""
    if len(section.models) < 2 or section.setting.memory_bytes is None:
        return ()
    return tuple(_reach(section, method) for method in section.rows)


def spans(section: Section) -> tuple[Span, ...]:
    """The least and the most of every method and model along the one key in which its rows differ."""
    found = []
    rows = _one_key_rows(section)
    for (method, key), members in groupby(rows, key=lambda row: row[:2]):
        values = [(value, label) for _, _, value, label in members]
        for model in section.models:
            known = [(value, size) for value, label in values if (size := _result(section, label, model))]
            if len(known) > 1:
                least, most = min(known, key=_size), max(known, key=_size)
                if least[1] < most[1]:
                    found.append(Span(method=method, model=model, key=key, least=least, most=most))
    return tuple(found)


def limits(section: Section) -> tuple[Limit, ...]:
    """How far methods go, where two keys stand against each other and the card's memory is known."""
    if matrix(section).key is None or section.setting.memory_bytes is None:
        return ()
    found: list[Limit] = []
    for surface in surfaces(section):
        reached = [_reached(surface, value) for value in surface.values[0]]
        for fitting, members in groupby(zip(reached, surface.values[0], strict=True), key=lambda pair: pair[0]):
            others = surface.values[1]
            found.append(
                Limit(
                    method=surface.method,
                    keys=surface.keys,
                    values=tuple(f"{value:g}" for _, value in members),
                    fits=f"{others[fitting - 1]:g}" if fitting else None,
                    reaches_end=fitting == len(others),
                )
            )
    return tuple(found)


def _reached(surface: Surface, value: float) -> int:
    """At one value of the first key, up to how many values of the second every trial fits."""
    cells = [surface.cells.get((value, other)) for other in surface.values[1]]
    return len(list(takewhile(lambda cell: cell is not None and cell.status is Status.OK, cells)))


def _size(point: tuple[str, int]) -> int:
    return point[1]


def _one_key_rows(section: Section) -> Sequence[tuple[str, str, str, str]]:
    """(method, key, value, label) of each row, if each is a method with one key; else nothing."""
    matched = [(_ONE_KEY.fullmatch(label), label) for label in section.rows]
    rows = [(found["method"], found["key"], found["value"], label) for found, label in matched if found]
    return rows if len(rows) == len(matched) else ()


def _result(section: Section, label: str, model: str) -> int | None:
    cell = section.cells.get((label, model))
    return None if cell is None else cell.result_bytes


def _reach(section: Section, method: str) -> Reach:
    cells = [cell for model in section.models if (cell := section.cells.get((method, model)))]
    fits = next((cell for cell in reversed(cells) if cell.status is Status.OK), None)
    larger = cells[cells.index(fits) + 1 :] if fits else cells
    fails = next((cell for cell in larger if cell.status is Status.OOM), None)
    return Reach(method=method, fits=fits, fails=fails)
