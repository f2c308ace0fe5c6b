"""What a section says first: how much methods save, how far a numeric key goes, and the headroom of cards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, TypeAlias

from numpy.typing import NDArray

from profiler.analysis.compared.axes import Curve, Matrix, Surface, numeric_keys
from profiler.analysis.compared.cells import Cell, Number
from profiler.analysis.compared.comparison import Section
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.labels import value_text
from profiler.domain.trials.trial import PLACE_KEYS

LIMIT_CARDS = tuple(
    KNOWN_GPUS[name] for name in ("rtx-4080-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")
)
"""The cards whose limits a surface has, one of each size. They have every kernel that a trial needs."""

Field = tuple[Number, Number]
"""A value of each key of a surface."""


MOST_SURFACES = 6
"""Surfaces of a section that are drawn, and of which the limits of cards are known."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How far one key goes on the section's card."""

    method: str
    model: str
    key: str
    fits: Number | None
    """The highest value up to which every trial fits; None if the lowest does not."""
    reaches_end: bool
    """Whether that is the highest value there is."""
    other_key: str | None = None
    """Of a surface, the key that is fixed."""
    other_values: tuple[Number, ...] = ()
    """Its values with this limit, in order."""


@dataclass(frozen=True, kw_only=True)
class CardLimit:
    """Which fields of a surface fit one card."""

    gpu: Gpu
    is_own: bool
    """Whether the trials ran on this card, so that the verdicts are theirs."""
    fits: Mapping[Field, bool]
    """Without the fields of which it is unknown."""


@dataclass(frozen=True, kw_only=True)
class EstimatedLimit:
    """Free memory of one card over two keys, according to the closed form; the limit is where it is 0."""

    gpu: Gpu
    values: tuple[NDArray[Any], NDArray[Any]]
    """The values of each key, ascending."""
    left_bytes: NDArray[Any]
    """By index of the first and the second key; negative where a trial may not fit."""

    @property
    def has_line(self) -> bool:
        """Whether some trials fit and others do not."""
        return bool(self.left_bytes.min() < 0 <= self.left_bytes.max())


EstimateLimits: TypeAlias = Callable[[Surface], tuple[EstimatedLimit, ...]]
"""Returns the estimated limits of cards over the keys of a surface; none where the closed form has no answer."""


def limits_along(curves: Iterable[Curve]) -> tuple[Limit, ...]:
    """Return how far each curve goes."""
    return tuple(
        _limit(curve.method, curve.model, curve.key, [value for value, _ in curve.points], _fitting(_cells(curve)))
        for curve in curves
    )


def limits_over(surfaces: Iterable[Surface]) -> tuple[Limit, ...]:
    """Return how far the second key of each surface goes; neighbouring values of the first with one limit together."""
    found = []
    for surface in surfaces:
        (first, second), (ones, others) = surface.keys, surface.values
        reached = [(_fitting([surface.cells.get((one, other)) for other in others]), one) for one in ones]
        for fitting, members in groupby(reached, key=lambda pair: pair[0]):
            values = tuple(one for _, one in members)
            found.append(_limit(surface.method, surface.model, second, others, fitting, first, values))
    return tuple(found)


def card_limits(section: Section, surface: Surface) -> tuple[CardLimit, ...]:
    """Return which fields of a surface fit each of `LIMIT_CARDS`.

    The section's own card has the verdicts of its trials. Of another card, trials need the CUDA context and the
    segments that the allocator of an unlimited card cannot release. That is slightly more than a full card keeps, so
    a field beyond the line can fit in a simulation of that card. The card may also run other kernels.
    """
    return tuple(
        CardLimit(gpu=gpu, is_own=_is_own(section, gpu), fits=_fits(surface, gpu, own=_is_own(section, gpu)))
        for gpu in LIMIT_CARDS
    )


def _cells(curve: Curve) -> list[Cell]:
    return [cell for _, cell in curve.points]


def _fitting(cells: Sequence[Cell | None]) -> int:
    """Return how many cells fit, counted from the first until one does not."""
    return len(list(takewhile(lambda cell: cell is not None and cell.status is Status.OK, cells)))


def _limit(
    method: str,
    model: str,
    key: str,
    values: Sequence[Number],
    fitting: int,
    other_key: str | None = None,
    other_values: tuple[Number, ...] = (),
) -> Limit:
    return Limit(
        method=method,
        model=model,
        key=key,
        fits=values[fitting - 1] if fitting else None,
        reaches_end=fitting == len(values),
        other_key=other_key,
        other_values=other_values,
    )


def _is_own(section: Section, card: Gpu) -> bool:
    return section.setting.card == card.title and section.setting.memory_bytes == card.memory_bytes


def _fits(surface: Surface, card: Gpu, *, own: bool) -> Mapping[Field, bool]:
    found: dict[Field, bool] = {}
    for field, cell in surface.cells.items():
        needed = cell.required_device_bytes or cell.peak_device_bytes or cell.result_bytes
        if own and cell.status in (Status.OK, Status.OOM):
            found[field] = cell.status is Status.OK
        elif needed is not None:
            found[field] = needed <= card.memory_bytes
    return found


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


Place = tuple[str, str]
"""Label of the method, and model."""


@dataclass(frozen=True, kw_only=True)
class CardColumn:
    """One card, with figures of one origin."""

    card: str
    """The vendor's name."""
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class CardTable:
    """Trials down, cards across."""

    columns: tuple[CardColumn, ...]
    """In ascending order of memory."""
    places: tuple[Place, ...]
    cells: Mapping[tuple[Place, CardColumn], Cell]
    """By place and column; a place can be empty."""


def by_card(sections: Iterable[Section]) -> CardTable | None:
    """Return the trials of all cards in one table, a column per card and origin; None unless there are two cards.

    If a column has several sections (several versions), the first section counts.
    """
    memory: dict[CardColumn, int] = {}
    cells: dict[tuple[Place, CardColumn], Cell] = {}
    for section in sections:
        card, origin, size = section.setting.card, section.setting.origin, section.setting.memory_bytes
        if origin is None or card is None or size is None:
            continue
        column = CardColumn(card=card, origin=origin)
        memory.setdefault(column, size)
        for cell in section.in_order():
            cells.setdefault(((cell.label, cell.model), column), cell)
    if len({column.card for column in memory}) < 2:
        return None
    places = dict.fromkeys(place for place, _ in cells)
    return CardTable(columns=tuple(sorted(memory, key=memory.__getitem__)), places=tuple(places), cells=cells)


def headroom_bytes(cell: Cell) -> int | None:
    """Return the memory of the card that is left, or, negative, that is missing; None if unknown.

    Used memory is the CUDA context and what torch's allocator cannot release. Of measured and emulated trials the
    latter is unknown; then it is everything that was in use.
    """
    memory = cell.setting.memory_bytes
    used = [size for size in (cell.required_device_bytes, cell.peak_device_bytes) if size is not None]
    if cell.status is Status.OK and used and memory is not None:
        return memory - min(used)
    missing = cell.missing_bytes
    return None if missing is None else -missing
