"""A driver that repeats the recorded answers."""

from collections import deque
from collections.abc import Iterable
from itertools import chain

from profiler.allocator.histories.history import LOSSES, Action, Entry
from profiler.allocator.histories.segment_count import SegmentCount
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.card_memory import CardMemory
from profiler.allocator.settings.sizes import SMALL_SEGMENT_BYTES


class DepartureError(Exception):
    """The model differs from the recording."""

    def __init__(self, problem: str, *, chosen: Block | None = None) -> None:
        super().__init__(problem)
        self.chosen = chosen
        """The block that the model took instead, if it took one."""


class RecordedCard(CardMemory):
    """Memory without a limit: refusals and addresses of segments come from the history."""

    def __init__(self, *, by_age: bool) -> None:
        """`by_age`: of two free blocks of equal size the one of the older segment is taken first."""
        super().__init__(capacity_bytes=None)
        self._by_age = by_age
        self._segments = 0
        self.coming: deque[Entry] = deque()
        """Segment events up to the next request or free."""
        self._pool = (0, False)
        self._later: Iterable[Entry] = ()
        self.count = SegmentCount()

    def serve(self, stream: int, *, is_small: bool, later: Iterable[Entry]) -> None:
        """Prepare for a request: its stream, its pool and the entries that follow it."""
        self._pool = (stream, is_small)
        self._later = later

    def take_segment(self, size_bytes: int) -> int | None:
        """Return the recorded address, or None if the driver refused."""
        event = self._answer(Action.SEGMENT_ALLOC, size_bytes)
        if event is None:
            return None
        self._take(size_bytes)
        self.count.add_segments(1)
        return event.address

    def order_of_new_segment(self) -> int:
        """Count segments if their age decides. Segments of the first state are the oldest, by address."""
        self._segments += self._by_age
        return self._segments

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        """Compare with the recorded release."""
        self._expect(Action.SEGMENT_FREE, address, size_bytes)
        self.count.add_segments(-1)
        super().give_segment_back(address, size_bytes)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """Return whether the driver had memory."""
        event = self._answer(Action.SEGMENT_MAP, size_bytes)
        if event is None:
            return False
        if event.address != address:
            raise DepartureError(f"pages mapped at {event.address:#x}, the model's at {address:#x}")
        self.count.add_pages(address, size_bytes)
        return self._take(size_bytes)

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        """Compare with the recorded unmapping."""
        self._expect(Action.SEGMENT_UNMAP, address, size_bytes)
        self.count.remove_pages(address, size_bytes)
        super().unmap_pages(address, size_bytes)

    def reserve_addresses(self, size_bytes: int) -> int:
        """Return the address of the new expandable segment: that of the first page mapped into it.

        It follows in this request, or in a later one of the same stream and pool if the driver refuses this one.
        """
        for event in chain(self.coming, self._later):
            pool = (event.stream, event.size_bytes == SMALL_SEGMENT_BYTES)
            if event.action is Action.SEGMENT_MAP and pool == self._pool:
                return event.address
        return super().reserve_addresses(size_bytes)

    def _answer(self, action: Action, size_bytes: int) -> Entry | None:
        """Return the event that grants a request; None if it was refused, which shows in the next event."""
        if not self.coming or self.coming[0].action in LOSSES:
            return None
        event = self.coming.popleft()
        if (event.action, event.size_bytes) != (action, size_bytes):
            raise DepartureError(f"{event} recorded, the model asked for {action} of {size_bytes}")
        return event

    def _expect(self, action: Action, address: int, size_bytes: int) -> None:
        event = self.coming.popleft() if self.coming else None
        if event is None or (event.action, event.address, event.size_bytes) != (action, address, size_bytes):
            recorded = "nothing" if event is None else str(event)
            raise DepartureError(f"{recorded} recorded, the model does {action} of {size_bytes} at {address:#x}")
