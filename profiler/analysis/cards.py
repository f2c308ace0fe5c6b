"""The headroom of several cards with the same trials."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.domain.outcome import Status

Place = tuple[str, str]
"""Label of the method, and model."""


@dataclass(frozen=True, kw_only=True)
class CardTable:
    """Trials down, cards across."""

    cards: tuple[str, ...]
    """The vendors' names, in ascending order of memory."""
    places: tuple[Place, ...]
    cells: Mapping[tuple[Place, str], Cell]
    """By place and card; a place can be empty."""


def by_card(sections: Iterable[Section]) -> CardTable | None:
    """Return the trials of all measured or simulated cards in one table; None unless there are two cards.

    If a card is in several sections (measured and simulated, several versions), the first section counts.
    """
    memory: dict[str, int] = {}
    cells: dict[tuple[Place, str], Cell] = {}
    for section in sections:
        card, size = section.setting.card, section.setting.memory_bytes
        if section.setting.origin is None or card is None or size is None:
            continue
        memory.setdefault(card, size)
        for cell in section.in_order():
            cells.setdefault(((cell.label, cell.model), card), cell)
    if len(memory) < 2:
        return None
    places = dict.fromkeys(place for place, _ in cells)
    return CardTable(cards=tuple(sorted(memory, key=lambda card: memory[card])), places=tuple(places), cells=cells)


def headroom_bytes(cell: Cell) -> int | None:
    """Return the memory of the card that is left, or, negative, that is missing; None if unknown.

    Used memory is the CUDA context and what torch's allocator cannot release. Of measured trials the latter can be
    unknown; then it is everything that was in use.
    """
    memory = cell.setting.memory_bytes
    used = [size for size in (cell.required_device_bytes, cell.peak_device_bytes) if size is not None]
    if cell.status is Status.OK and used and memory is not None:
        return memory - min(used)
    missing = cell.missing_bytes
    return None if missing is None else -missing
