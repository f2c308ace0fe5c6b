"""Step-by-step replay of a recorded history."""

from collections.abc import Iterable
from itertools import islice

from profiler.allocator.histories.course import BEFORE, CourseBuilder, OutOfMemory
from profiler.allocator.histories.first_state import FirstState
from profiler.allocator.histories.history import GAINS, LOSSES, Action, Entry, RecordedHistory
from profiler.allocator.histories.recorded_card import DepartureError, RecordedCard
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.refusals.refusal import OutOfMemoryError
from profiler.allocator.settings.sizes import MIN_BLOCK_BYTES, SMALL_BYTES, block_bytes


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
