"""The state of an allocator before the first entry of its history, reconstructed by undoing its entries.

Expandable segments at the beginning of a history that does not begin with an empty allocator.

Their entries tell which pages are mapped and unmapped, not where a segment's addresses begin and end, nor which pool a
page belongs to. Both are derived here. One segment per stream and pool is assumed: a second one begins only when the
addresses of the first, 9/8 of the card's memory, have no gap that is large enough.

The state of an allocator before the first entry of its history, reconstructed backwards from the last.

A history that was cut, or that began after the first allocation, does not say what was held at its beginning; its last
state does, once every entry is undone. Free blocks need no trace: between blocks in use everything is free, and free
neighbours are always one block.

Not always known is the size of a block that was allocated before the beginning and freed after it: a large block keeps
a rest of up to 1 MiB (`should_split`, c10/cuda/CUDACachingAllocator.cpp), and the entries give the request only. What
is allocated behind it, or lies there already, settles it in most cases; `FirstState.uncertain` names the others.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from profiler.allocator.histories.history import Action, Entry, RecordedHistory
from profiler.allocator.model.blocks import BlockState, HeldBlock, HeldSegment
from profiler.allocator.model.card_memory import UNLIMITED_ADDRESS_SPACE_BYTES
from profiler.allocator.settings import SMALL_BYTES, SMALL_SEGMENT_BYTES, block_bytes
from profiler.domain.memory import MIB

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


class ContradictionError(Exception):
    """The entries do not lead to the last state. The message names the impossible entry."""


@dataclass(frozen=True, kw_only=True)
class FirstState:
    """State of an allocator before an entry."""

    segments: tuple[HeldSegment, ...]
    """By address; an expandable segment includes the gaps between its pages and the addresses after them."""
    uncertain: frozenset[int]
    """Addresses of the blocks that may be up to 1 MiB larger than given; the following free block is then smaller."""

    @property
    def reserved_bytes(self) -> int:
        """Memory taken from the driver."""
        pieces = (block for segment in self.segments for block in segment.blocks)
        return sum(block.size_bytes for block in pieces if block.state is not BlockState.UNMAPPED)


def first_state(history: RecordedHistory, *, since: int, sizes_bytes: Mapping[int, int] | None = None) -> FirstState:
    """Return the state before entry number `since`.

    Args:
        history: With its last state.
        since: The entry that the history is taken to begin with.
        sizes_bytes: Sizes of uncertain blocks, by address, where they are known from elsewhere.

    Raises:
        ContradictionError: The entries do not lead to the last state.
    """
    walk = _Walk(history)
    for index in range(len(history.entries) - 1, since - 1, -1):
        walk.undo(index, history.entries[index])
    return walk.state(history.entries[since:], sizes_bytes or {})


@dataclass(kw_only=True, slots=True)
class _Live:
    """A block in use, during the backward walk."""

    requested_bytes: int
    size_bytes: int | None
    """None: not yet known."""


class _Walk:
    """The state during the backward walk."""

    def __init__(self, history: RecordedHistory) -> None:
        self._config = history.config
        self._evidence = PoolEvidence(history)
        self._live: dict[int, _Live] = {}
        self._plain: dict[int, tuple[int, int]] = {}
        """(bytes, stream) of each ordinary segment, by address."""
        self._mapped: dict[int, set[int]] = {}
        """Mapped units of the expandable segments, by stream."""
        for segment in history.segments:
            address = segment.blocks[0].address
            if segment.page_bytes is None:
                self._plain[address] = (sum(block.size_bytes for block in segment.blocks), segment.stream)
            else:
                self._mapped.setdefault(segment.stream, set()).update(held_units(segment))
            for block in segment.blocks:
                if block.state is BlockState.IN_USE:
                    self._live[block.address] = _Live(
                        requested_bytes=block.requested_bytes, size_bytes=block.size_bytes
                    )
        self._live_at = sorted(self._live)
        self._segments_at = sorted(self._plain)

    def undo(self, index: int, entry: Entry) -> None:
        """Undo an entry."""
        problem = ""
        match entry.action:
            case Action.ALLOC:
                problem = self._undo_alloc(entry.address)
            case Action.FREE_COMPLETED:
                problem = self._undo_free(entry)
            case Action.SEGMENT_ALLOC:
                problem = self._undo_segment_alloc(entry)
            case Action.SEGMENT_FREE:
                self._plain[entry.address] = (entry.size_bytes, entry.stream)
                insort(self._segments_at, entry.address)
            case Action.SEGMENT_MAP:
                problem = self._undo_segment_map(entry)
            case Action.SEGMENT_UNMAP:
                self._mapped.setdefault(entry.stream, set()).update(units(entry.address, entry.size_bytes))
        if problem:
            raise ContradictionError(f"entry {index}, {entry}: {problem}")

    def _undo_alloc(self, address: int) -> str:
        if self._live.pop(address, None) is None:
            return "no block is in use there afterwards"
        place = bisect_left(self._live_at, address)
        del self._live_at[place]
        before = self._live_at[place - 1] if place else None
        if before is not None and self._segment_of(before) == self._segment_of(address):
            # A block begins where the free block began that it was taken from: at the end of the preceding block.
            block = self._live[before]
            block.size_bytes = address - before if block.size_bytes is None else block.size_bytes
        return ""

    def _undo_free(self, entry: Entry) -> str:
        if entry.address in self._live:
            return "the block is in use afterwards"
        size = block_bytes(entry.size_bytes, self._config)
        is_exact = size <= SMALL_BYTES or self._config.expandable_segments
        self._live[entry.address] = _Live(requested_bytes=entry.size_bytes, size_bytes=size if is_exact else None)
        insort(self._live_at, entry.address)
        return ""

    def _undo_segment_alloc(self, entry: Entry) -> str:
        if self._plain.pop(entry.address, (0, 0))[0] != entry.size_bytes:
            return "no segment of this size is there afterwards"
        del self._segments_at[bisect_left(self._segments_at, entry.address)]
        return self._problem_of_new_memory(entry)

    def _undo_segment_map(self, entry: Entry) -> str:
        found = set(units(entry.address, entry.size_bytes))
        mapped = self._mapped.setdefault(entry.stream, set())
        if not found <= mapped:
            return "these pages are not mapped afterwards"
        mapped -= found
        return self._problem_of_new_memory(entry)

    def _problem_of_new_memory(self, entry: Entry) -> str:
        place = bisect_left(self._live_at, entry.address)
        is_used = place < len(self._live_at) and self._live_at[place] < entry.address + entry.size_bytes
        return "a block is in use there before" if is_used else ""

    def _segment_of(self, address: int) -> int:
        """Return the address of the ordinary segment that contains an address; -1: none."""
        place = bisect_right(self._segments_at, address)
        return self._segments_at[place - 1] if place else -1

    def state(self, entries: Sequence[Entry], sizes_bytes: Mapping[int, int]) -> FirstState:
        """Return the state before `entries`."""
        uncertain: set[int] = set()
        found = [
            HeldSegment(
                stream=stream,
                is_small=size == SMALL_SEGMENT_BYTES,
                page_bytes=None,
                blocks=tuple(self._pieces(address, address + size, sizes_bytes, uncertain)),
            )
            for address, (size, stream) in self._plain.items()
        ]
        for (stream, is_small), pages in by_pool(self._mapped, self._evidence).items():
            page_bytes = SMALL_SEGMENT_BYTES if is_small else self._config.large_segment_bytes
            blocks: list[HeldBlock] = []
            end = first_address(entries, pages, stream=stream, is_small=is_small)
            last = end_address(end, page_bytes)
            for start, stop in pages:
                blocks += [*_gap(end, start), *self._pieces(start, stop, sizes_bytes, uncertain)]
                end = stop
            blocks += _gap(end, last)
            found.append(HeldSegment(stream=stream, is_small=is_small, page_bytes=page_bytes, blocks=tuple(blocks)))
        placed = sum(block.state is BlockState.IN_USE for segment in found for block in segment.blocks)
        if placed < len(self._live):
            raise ContradictionError(f"blocks in use outside of any segment: {len(self._live) - placed}")
        found.sort(key=lambda segment: segment.blocks[0].address)
        _check_apart(found)
        return FirstState(segments=tuple(found), uncertain=frozenset(uncertain))

    def _pieces(self, start: int, end: int, sizes_bytes: Mapping[int, int], uncertain: set[int]) -> list[HeldBlock]:
        """Return the blocks of a mapped range, in use and free."""
        pieces: list[HeldBlock] = []
        addresses = self._live_at[bisect_left(self._live_at, start) : bisect_left(self._live_at, end)]
        for address, limit in pairwise([*addresses, end]):
            live = self._live[address]
            size = live.size_bytes
            if size is None:
                size, is_settled = self._size(live.requested_bytes, limit - address)
                if not is_settled:
                    uncertain.add(address)
                    size = sizes_bytes.get(address, size)
            if start > address or address + size > limit:
                raise ContradictionError(
                    f"the block at {address:#x} lies in another one, or reaches beyond its segment"
                )
            pieces += _free(start, address)
            pieces.append(
                HeldBlock(
                    address=address,
                    size_bytes=size,
                    requested_bytes=live.requested_bytes,
                    state=BlockState.IN_USE,
                )
            )
            start = address + size
        return [*pieces, *_free(start, end)]

    def _size(self, requested_bytes: int, available_bytes: int) -> tuple[int, bool]:
        """Return the bytes of a large block, given the space to the next block in use, and whether they are certain."""
        size = block_bytes(requested_bytes, self._config)
        limit = self._config.max_split_bytes
        if available_bytes < size:
            raise ContradictionError(f"a block of {size} bytes is in use where there are only {available_bytes}")
        if available_bytes - size <= SMALL_BYTES or (limit is not None and size >= limit):
            return available_bytes, True
        return size, False


def _check_apart(segments: Iterable[HeldSegment]) -> None:
    """Raise ContradictionError if two pieces have memory at the same address."""
    held = [block for segment in segments for block in segment.blocks if block.state is not BlockState.UNMAPPED]
    held.sort(key=lambda block: block.address)
    for left, right in pairwise(held):
        if left.address + left.size_bytes > right.address:
            raise ContradictionError(f"two segments lie at {right.address:#x} at once")


def _free(start: int, end: int) -> list[HeldBlock]:
    return _piece(start, end, BlockState.FREE)


def _gap(start: int, end: int) -> list[HeldBlock]:
    return _piece(start, end, BlockState.UNMAPPED)


def _piece(start: int, end: int, state: BlockState) -> list[HeldBlock]:
    """Return a piece that is not in use; nothing if it has no bytes."""
    if start == end:
        return []
    return [HeldBlock(address=start, size_bytes=end - start, requested_bytes=0, state=state)]
