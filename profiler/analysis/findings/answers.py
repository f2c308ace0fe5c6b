"""What a section says first: how much methods save, how far they reach, and what a key costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from profiler.analysis.compared.axes import Curve, Surface, numeric_keys
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.compared.matrix import Matrix
from profiler.analysis.findings.cards import headroom_bytes
from profiler.analysis.findings.limits import Limit, limits_along, limits_over
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.labels import value_text
from profiler.domain.trials.trial import PLACE_KEYS


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How much less memory a method needs than the first of the section, over the models where both are known."""

    method: str
    against: str
    least_ratio: float
    most_ratio: float


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a method goes on the card."""

    method: str
    fits: Cell | None
    """The largest model that fits; None if none does."""
    fails: Cell | None
    """The smallest model above it that ran out of memory; None if none did."""

    @property
    def headroom_bytes(self) -> int | None:
        """Memory of the card that is left with `fits`."""
        return None if self.fits is None else headroom_bytes(self.fits)


@dataclass(frozen=True, kw_only=True)
class Span:
    """The least and the most memory of one method and model along one key."""

    method: str
    model: str
    key: str
    least: tuple[str, int]
    """The key's value, and the result in bytes."""
    most: tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Everything that a section says first."""

    savings: tuple[Saving, ...]
    reaches: tuple[Reach, ...]
    spans: tuple[Span, ...]
    limits: tuple[Limit, ...]


def answers(section: Section, *, table: Matrix, curves: Sequence[Curve], surfaces: Sequence[Surface]) -> Answers:
    """Return the answers of a section.

    Args:
        section: The trials.
        table: Its layout.
        curves: Its curves.
        surfaces: Its surfaces.
    """
    return Answers(
        savings=savings(section),
        reaches=reaches(section),
        spans=spans(section),
        limits=_limits(section, table, curves, surfaces),
    )


def savings(section: Section) -> tuple[Saving, ...]:
    """Return what each method saves against the first; nothing if all rows are methods with a key."""
    if not section.rows or _rows_with_key(section):
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
            found.append(Saving(method=method, against=baseline, least_ratio=min(ratios), most_ratio=max(ratios)))
    return tuple(found)


def reaches(section: Section) -> tuple[Reach, ...]:
    """Return how far each method goes, if there are several models and the card's memory is known."""
    if len(section.models) < 2 or section.setting.memory_bytes is None:
        return ()
    return tuple(_reach(section, method) for method in section.rows)


def spans(section: Section) -> tuple[Span, ...]:
    """Return the least and the most of every method and model along the last key that labels name."""
    found = []
    for (method, key), members in groupby(_rows_with_key(section), key=lambda row: (row.method, row.key)):
        rows = list(members)
        for model in section.models:
            known = [(row.value, size) for row in rows if (size := _result(section, row.label, model))]
            if len(known) > 1:
                least, most = min(known, key=_size), max(known, key=_size)
                if least[1] < most[1]:
                    found.append(Span(method=method, model=model, key=key, least=least, most=most))
    return tuple(found)


def _limits(section: Section, table: Matrix, curves: Sequence[Curve], surfaces: Sequence[Surface]) -> tuple[Limit, ...]:
    """How far keys go: two of them if they fill the table, else the only numeric one."""
    if section.setting.memory_bytes is None:
        return ()
    if table.key is not None:
        return limits_over(surfaces)
    return limits_along(curves) if len(numeric_keys(section)) == 1 else ()


@dataclass(frozen=True, kw_only=True)
class _RowWithKey:
    method: str
    key: str
    value: str
    label: str


def _rows_with_key(section: Section) -> Sequence[_RowWithKey]:
    """Each row as a method and the last key that its label names; nothing if a label names none."""
    first = {cell.label: cell for cell in reversed(list(section.in_order()))}
    found = []
    for label in section.rows:
        cell = first[label]
        keys = [key for key in section.naming.keys_of(cell.keys) if key not in PLACE_KEYS]
        if not keys:
            return ()
        method = section.naming.label(cell.keys, without=(*PLACE_KEYS, keys[-1]))
        found.append(_RowWithKey(method=method, key=keys[-1], value=value_text(cell.keys[keys[-1]]), label=label))
    return found


def _size(point: tuple[str, int]) -> int:
    return point[1]


def _result(section: Section, label: str, model: str) -> int | None:
    cell = section.cells.get((label, model))
    return None if cell is None else cell.result_bytes


def _reach(section: Section, method: str) -> Reach:
    cells = [cell for model in section.models if (cell := section.cells.get((method, model)))]
    fits = next((cell for cell in reversed(cells) if cell.status is Status.OK), None)
    larger = cells[cells.index(fits) + 1 :] if fits else cells
    fails = next((cell for cell in larger if cell.status is Status.OOM), None)
    return Reach(method=method, fits=fits, fails=fails)
