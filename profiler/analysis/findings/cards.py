"""The headroom of several cards with the same trials."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status

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
