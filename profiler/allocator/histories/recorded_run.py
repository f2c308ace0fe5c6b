"""Step-by-step replay of a recorded history, on a driver that repeats the recorded answers."""

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice

from profiler.allocator.histories.course import BEFORE, CourseBuilder, OutOfMemory, SegmentCount
from profiler.allocator.histories.first_state import FirstState
from profiler.allocator.histories.history import GAINS, LOSSES, Action, Entry, RecordedHistory
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import CardMemory, OutOfMemoryError
from profiler.allocator.settings import MIN_BLOCK_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES, block_bytes


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


class RecordedRun:
    """A replay that compares each step with the recording, from entry number `since` on.

    Of two free blocks of one size torch takes the one at the lower address, and since 2.13 the one of the older segment
    (`by_age`; pytorch/pytorch#183591). The age of segments in the first state is unknown: their addresses decide.
    """

    def __init__(self, history: RecordedHistory, first: FirstState, *, since: int, by_age: bool) -> None:
        self.first = first
        self.since = since
        self.index = since
        self.is_first_request = True
        """Start before the first request or free."""
        self.emptied: list[int] = []
        self.refused_bytes: int | None = None
        """Smallest reserved memory that the driver refused, over all flushes; None: none."""
        self.recorded_peak_bytes = _peak_of(history.entries[since:], first.reserved_bytes)
        self._history = history
        self._card = RecordedCard(by_age=by_age)
        self.allocator = CachingAllocator(capacity_bytes=None, config=history.config, card=self._card)
        self._at: dict[int, Block] = {}
        for segment in first.segments:
            self._at |= {block.address: block for block in self.allocator.hold(segment)}
        self.allocator.reset_peaks()
        self.begins_inside = self._begins_inside()
        self._count_segments()
        self._uncertain = {self._at[address] for address in first.uncertain}
        self._departure: DepartureError | None = None
        self.course = CourseBuilder(allocator=self.allocator, count=self._card.count)
        self.course.note(BEFORE)
        for index in range(since):
            self.course.note(index)

    def _begins_inside(self) -> bool:
        """Return whether the first entry may be the second half of a request, which cannot be replayed alone.

        So it is where memory is lost first, of which a part may be missing, or where the first block begins a free
        segment, which may have been made for it.
        """
        first = next((entry for entry in self._history.entries[self.since :] if entry.action is not Action.OTHER), None)
        if first is None or not self.first.segments:
            return False
        pieces = [address for address, _ in self.allocator.releasable()]
        return first.action in LOSSES or (first.action is Action.ALLOC and first.address in pieces)

    def _count_segments(self) -> None:
        for blocks in self.allocator.segments():
            if blocks[0].expandable is None:
                self._card.count.add_segments(1)
            else:
                self._card.count.add_pages(blocks[0].address, sum(block.size_bytes for block in blocks))

    def feed(self) -> str:
        """Return the first departure, or an empty text."""
        entries = self._history.entries
        # Releases before the end of the history end with it.
        end = Entry(action=Action.OTHER, address=0, size_bytes=0, stream=0)
        for index in range(self.since, len(entries) + 1):
            self.index = index
            entry = entries[index] if index < len(entries) else end
            try:
                self._entry(entry)
            except DepartureError as departure:
                self._departure = departure
                return f"entry {index}, {entry}: {departure}"
            if index < len(entries):
                self.course.note(index)
        self.course.note_end()
        return ""

    def _entry(self, entry: Entry) -> None:
        if entry.action in GAINS or entry.action in LOSSES:
            self._card.coming.append(entry)
            return
        if self._is_emptied(entry):
            self.allocator.empty_cache()
            self.emptied.append(self.index)
        block = None
        if entry.action in (Action.ALLOC, Action.OOM):
            block = self._request(entry)
        elif entry.action is Action.FREE_COMPLETED:
            # A block is free only now: a stream may still use it after `free_requested`.
            self._uncertain.discard(self._at[entry.address])
            self.allocator.free(self._at.pop(entry.address))
        if self._card.coming:
            raise DepartureError(f"{self._card.coming[0]} recorded, the model did not need it", chosen=block)
        self.is_first_request = self.is_first_request and entry.action is Action.OTHER

    def _is_emptied(self, entry: Entry) -> bool:
        """Return whether segments released before an entry were released by `empty_cache()`.

        Otherwise the request itself made the allocator give them back, because the card was full. Of one that needed
        new memory both look alike. Then it counts as a call where the history holds more at another time: so much was
        there to be had.
        """
        coming = self._card.coming
        if not coming or coming[0].action not in LOSSES:
            return False
        if entry.action not in (Action.ALLOC, Action.OOM):
            return True
        if self.allocator.serves_from_cache(entry.size_bytes, entry.stream):
            return True
        losses = [(event.address, event.size_bytes) for event in coming if event.action in LOSSES]
        if entry.action is Action.OOM or losses != self.allocator.releasable():
            return False
        gained = sum(event.size_bytes for event in coming if event.action in GAINS)
        needed = self.allocator.reserved_bytes + gained
        return needed <= self.recorded_peak_bytes or self._history.config.max_split_bytes is not None

    def _request(self, entry: Entry) -> Block | None:
        later = islice(self._history.entries, self.index, None)
        self._card.serve(entry.stream, is_small=self._is_small(entry), later=later)
        self._note_flush()
        try:
            block = self.allocator.allocate(entry.size_bytes, entry.stream)
        except OutOfMemoryError:
            if entry.action is Action.ALLOC:
                raise DepartureError("the model ran out of memory") from None
            self._note_refusal(entry)
            return None
        if entry.action is Action.OOM:
            raise DepartureError("the model had memory", chosen=block)
        if block.address != entry.address:
            raise DepartureError(f"the model's block is at {block.address:#x}", chosen=block)
        self._at[block.address] = block
        return block

    def _note_flush(self) -> None:
        """Note a request that released memory before it got new memory: the driver refused it first."""
        gained = sum(event.size_bytes for event in self._card.coming if event.action in GAINS)
        if gained and self._card.coming[0].action in LOSSES:
            refused = self.allocator.reserved_bytes + gained
            self.refused_bytes = refused if self.refused_bytes is None else min(refused, self.refused_bytes)

    def _note_refusal(self, entry: Entry) -> None:
        self.course.refusals.append(
            OutOfMemory(
                entry=self.index,
                requested_bytes=entry.size_bytes,
                driver_free_bytes=entry.device_free_bytes,
                allocated_bytes=self.allocator.allocated_bytes,
                reserved_bytes=self.allocator.reserved_bytes,
                largest_free_bytes=self.allocator.largest_free_bytes(
                    is_small=self._is_small(entry), stream=entry.stream
                ),
            )
        )

    def _is_small(self, entry: Entry) -> bool:
        return block_bytes(entry.size_bytes, self._history.config) <= SMALL_BYTES

    def widened(self) -> dict[int, int]:
        """Return the size, by address, of an uncertain block that avoids the departure; empty if none.

        The model took the free block behind it, which the real allocator passed over: it was too small.
        """
        chosen = self._departure.chosen if self._departure else None
        before = chosen.before if chosen is not None else None
        if chosen is None or before not in self._uncertain:
            return {}
        rest = chosen.after
        available = chosen.size_bytes + (rest.size_bytes if rest is not None and not rest.allocated else 0)
        too_small = block_bytes(chosen.requested_bytes, self._history.config) - MIN_BLOCK_BYTES
        size = before.size_bytes + available - too_small
        least = block_bytes(before.requested_bytes, self._history.config)
        return {before.address: size} if size - least <= SMALL_BYTES else {}


def _peak_of(entries: Iterable[Entry], held_bytes: int) -> int:
    """Return the highest sum of the recorded segments, including those at the beginning."""
    peak = held_bytes
    for entry in entries:
        if entry.action in GAINS:
            held_bytes += entry.size_bytes
        elif entry.action in LOSSES:
            held_bytes -= entry.size_bytes
        peak = max(peak, held_bytes)
    return peak
