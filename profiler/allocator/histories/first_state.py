"""The state of an allocator before the first entry of its history, reconstructed backwards from the last.

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

from profiler.allocator.histories.first_mappings import (
    PoolEvidence,
    by_pool,
    end_address,
    first_address,
    held_units,
    units,
)
from profiler.allocator.histories.history import Action, Entry, RecordedHistory
from profiler.allocator.model.held import BlockState, HeldBlock, HeldSegment
from profiler.allocator.settings.sizes import SMALL_BYTES, SMALL_SEGMENT_BYTES, block_bytes


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
