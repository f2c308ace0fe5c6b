"""How many segments an allocator holds, as a memory snapshot counts them."""

from profiler.allocator.card_memory import CardMemory


class SegmentCount:
    """How many segments there are, kept up to date by each event of the driver."""

    def __init__(self) -> None:
        self._ordinary = 0
        self._begins: set[int] = set()
        """Of stretches of pages with memory."""
        self._ends: set[int] = set()

    @property
    def segments(self) -> int:
        """Ordinary segments and stretches of expandable ones."""
        return self._ordinary + len(self._begins)

    def add_segments(self, number: int) -> None:
        """Count ordinary segments; a negative number takes them off."""
        self._ordinary += number

    def add_pages(self, address: int, size_bytes: int) -> None:
        """Pages have memory now: a stretch of their own, or part of those that they touch."""
        _toggle(self._begins, self._ends, address)
        _toggle(self._ends, self._begins, address + size_bytes)

    def remove_pages(self, address: int, size_bytes: int) -> None:
        """Pages have no memory any more; a stretch around them falls in two."""
        _toggle(self._ends, self._begins, address)
        _toggle(self._begins, self._ends, address + size_bytes)


def _toggle(one: set[int], other: set[int], address: int) -> None:
    """Where a stretch of the other side touches, both borders vanish; else there is a border."""
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
        """Take a segment back."""
        super().give_segment_back(address, size_bytes)
        self.count.add_segments(-1)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """Return whether there was memory."""
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self.count.add_pages(address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        """Take pages back."""
        super().unmap_pages(address, size_bytes)
        self.count.remove_pages(address, size_bytes)
