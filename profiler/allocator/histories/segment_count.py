"""Number of segments of an allocator, counted as in a memory snapshot."""

from profiler.allocator.model.card_memory import CardMemory


class SegmentCount:
    """Number of segments, updated by each event of the driver."""

    def __init__(self) -> None:
        self._ordinary = 0
        self._begins: set[int] = set()
        """Ends of contiguous mapped ranges."""
        self._ends: set[int] = set()

    @property
    def segments(self) -> int:
        """Number of ordinary segments and of contiguous ranges of expandable ones."""
        return self._ordinary + len(self._begins)

    def add_segments(self, number: int) -> None:
        """Add ordinary segments; a negative number removes them."""
        self._ordinary += number

    def add_pages(self, address: int, size_bytes: int) -> None:
        """Add mapped pages: a new range, or part of adjacent ranges."""
        _toggle(self._begins, self._ends, address)
        _toggle(self._ends, self._begins, address + size_bytes)

    def remove_pages(self, address: int, size_bytes: int) -> None:
        """Remove mapped pages; a range around them is split."""
        _toggle(self._ends, self._begins, address)
        _toggle(self._begins, self._ends, address + size_bytes)


def _toggle(one: set[int], other: set[int], address: int) -> None:
    """Remove an end that touches another range; otherwise add it."""
    if address in other:
        other.remove(address)
    else:
        one.add(address)


class CountedCard(CardMemory):
    """A driver that counts segments."""

    def __init__(self, *, capacity_bytes: int | None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self.count = SegmentCount()

    def take_segment(self, size_bytes: int) -> int | None:
        """Return the address of new memory, or None."""
        address = super().take_segment(size_bytes)
        self.count.add_segments(0 if address is None else 1)
        return address

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        """Release a segment."""
        super().give_segment_back(address, size_bytes)
        self.count.add_segments(-1)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """Return whether there was memory."""
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self.count.add_pages(address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        """Unmap pages."""
        super().unmap_pages(address, size_bytes)
        self.count.remove_pages(address, size_bytes)
