"""Expandable segments at the beginning of a history that does not begin with an empty allocator.

Their entries tell which pages are mapped and unmapped, not where a segment's addresses begin and end, nor which pool a
page belongs to. Both are derived here. One segment per stream and pool is assumed: a second one begins only when the
addresses of the first, 9/8 of the card's memory, have no gap that is large enough.
"""

from collections.abc import Iterable, Mapping

from profiler.allocator.histories.history import Action, Entry, RecordedHistory
from profiler.allocator.model.card_memory import UNLIMITED_ADDRESS_SPACE_BYTES
from profiler.allocator.model.held import HeldSegment
from profiler.allocator.settings.sizes import SMALL_BYTES, SMALL_SEGMENT_BYTES, block_bytes
from profiler.domain.units import MIB

UNIT_BYTES = MIB
"""Pages of both pools are multiples of this."""

Stretch = tuple[int, int]
"""First address and end of contiguous mapped pages."""


def units(address: int, size_bytes: int) -> range:
    """Return the address of each unit of a range."""
    return range(address, address + size_bytes, UNIT_BYTES)


def held_units(segment: HeldSegment) -> range:
    """Return the units of a segment whose blocks all have memory."""
    return units(segment.blocks[0].address, sum(block.size_bytes for block in segment.blocks))


class PoolEvidence:
    """The pool of the pages at an address, inferred from everything that a history contains about nearby addresses."""

    def __init__(self, history: RecordedHistory) -> None:
        self._large_page_bytes = history.config.large_segment_bytes
        self._is_small: dict[int, bool] = {}
        for segment in history.segments:
            if segment.page_bytes is not None:
                self._is_small.update(dict.fromkeys(map(_unit, held_units(segment)), segment.is_small))
        for entry in history.entries if self._has_pages(history) else ():
            if entry.action in (Action.ALLOC, Action.FREE_COMPLETED):
                size = block_bytes(entry.size_bytes, history.config)
                self._is_small[_unit(entry.address)] = size <= SMALL_BYTES

    def _has_pages(self, history: RecordedHistory) -> bool:
        return bool(self._is_small) or any(entry.action is Action.SEGMENT_UNMAP for entry in history.entries)

    def is_small(self, stretch: Stretch) -> bool:
        """Return whether the range is of the small pool; without evidence, whether its pages cannot be large ones."""
        start, end = stretch
        found = (self._is_small.get(_unit(address)) for address in units(start, end - start))
        return next((kind for kind in found if kind is not None), (end - start) % self._large_page_bytes != 0)


def stretches(mapped: Iterable[int]) -> list[Stretch]:
    """Return contiguous units, by address."""
    found: list[Stretch] = []
    for address in sorted(mapped):
        if found and found[-1][1] == address:
            found[-1] = (found[-1][0], address + UNIT_BYTES)
        else:
            found.append((address, address + UNIT_BYTES))
    return found


def first_address(entries: Iterable[Entry], found: Iterable[Stretch], *, stream: int, is_small: bool) -> int:
    """Return the first address of a segment: the lowest page that is ever mapped into it.

    As long as it has a page: without one the segment is dropped, and the next one lies elsewhere.
    """
    mapped = {address for start, end in found for address in units(start, end - start)}
    lowest = min(mapped)
    for entry in entries:
        if entry.action is Action.SEGMENT_MAP and entry.stream == stream:
            if (entry.size_bytes == SMALL_SEGMENT_BYTES) == is_small:
                mapped.update(units(entry.address, entry.size_bytes))
                lowest = min(lowest, entry.address)
        elif entry.action is Action.SEGMENT_UNMAP:
            mapped.difference_update(units(entry.address, entry.size_bytes))
            if not mapped:
                break
    return lowest


def end_address(base: int, page_bytes: int) -> int:
    """Return the end of a segment's addresses for a card of unknown memory: beyond any page."""
    return base + -(-UNLIMITED_ADDRESS_SPACE_BYTES // page_bytes) * page_bytes


def by_pool(mapped: Mapping[int, Iterable[int]], evidence: PoolEvidence) -> dict[tuple[int, bool], list[Stretch]]:
    """Return contiguous ranges by (stream, whether of the small pool), from the units of each stream."""
    found: dict[tuple[int, bool], list[Stretch]] = {}
    for stream, addresses in mapped.items():
        for stretch in stretches(addresses):
            found.setdefault((stream, evidence.is_small(stretch)), []).append(stretch)
    return found


def _unit(address: int) -> int:
    return address // UNIT_BYTES
