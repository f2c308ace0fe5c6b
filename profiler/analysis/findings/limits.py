"""How far a numeric key goes before a trial runs out of memory, and which trials fit which card."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, TypeAlias

from numpy.typing import NDArray

from profiler.analysis.compared.axes import Curve, Surface
from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.analysis.compared.keys import Number
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.runs.outcome import Status

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
