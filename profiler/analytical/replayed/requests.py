"""Groups of blocks that are requested and freed together, and what an allocator takes for them."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import neg

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.model.card_memory import AllocatorStats
from profiler.allocator.settings import MIN_BLOCK_BYTES, SMALL_BYTES
from profiler.allocator.traces.smallest_fit import counters_of
from profiler.allocator.traces.trace import Piece
from profiler.analytical.formulas.sizes.quantities import Blocks, Count, largest_blocks, stage_blocks
from profiler.domain.memory import Phase

Stages = Sequence[Blocks]
"""Blocks that exist together, one stage after the other."""

NO_BLOCKS: Blocks = {}


def plus(*parts: Blocks) -> dict[int, int]:
    """Return the blocks of all parts."""
    found: dict[int, int] = {}
    for part in parts:
        for size, count in part.items():
            found[size] = found.get(size, 0) + count
    return found


def times(blocks: Blocks, factor: int) -> dict[int, int]:
    """Return the blocks `factor` times."""
    return {size: count * factor for size, count in blocks.items()} if factor else {}


def minus(blocks: Blocks, others: Blocks) -> dict[int, int]:
    """Return the blocks without `others`."""
    return {size: count - others.get(size, 0) for size, count in blocks.items() if count > others.get(size, 0)}


def union(first: Blocks, second: Blocks) -> dict[int, int]:
    """Return the blocks of both, of which those of one size are the same ones."""
    return {**first, **{size: max(count, first.get(size, 0)) for size, count in second.items()}}


def per_layer(blocks: Blocks, layers: int) -> dict[int, int]:
    """Return the blocks that each of `layers` layers has."""
    return {size: count // layers for size, count in blocks.items() if count >= layers}


def others(blocks: Blocks, layers: int) -> dict[int, int]:
    """Return the blocks that not every one of `layers` layers has."""
    return minus(blocks, times(per_layer(blocks, layers), layers))


def packed(blocks: Blocks) -> dict[int, int]:
    """Return the blocks with small ones joined to such of 1 MiB and one rest.

    They share segments of 2 MiB of their own, and blocks of one group come and go together. By hand, 3 blocks of
    0.5 MiB and one of 4 MiB: 1 MiB, 0.5 MiB and 4 MiB.
    """
    small = sum(
        -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES * count for size, count in blocks.items() if size <= SMALL_BYTES
    )
    found = {size: count for size, count in blocks.items() if size > SMALL_BYTES}
    return plus(found, {SMALL_BYTES: small // SMALL_BYTES} if small >= SMALL_BYTES else {}, _rest(small % SMALL_BYTES))


def _rest(size: int) -> dict[int, int]:
    return {size: 1} if size else {}


def blocks(size: Count) -> dict[int, int]:
    """Return the packed blocks of a number at its largest stage."""
    return packed(largest_blocks(size))


def stages(size: Count) -> list[dict[int, int]]:
    """Return the packed blocks of each stage of a number."""
    return [packed(stage) for stage in stage_blocks(size)]


@dataclass(frozen=True)
class Repeatable:
    """Requests and frees that can be repeated."""

    events: Sequence[int]
    sizes_bytes: Sequence[int]
    before: int
    """Blocks that had been requested before."""


class Requests:
    """The requests and frees of a program, and the groups of blocks that are in use.

    They are replayed when their peaks are asked for. A block is known by its number, counted from 1.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._sizes_bytes: list[int] = []
        self._events: list[int] = []
        self._cache_emptied: list[int] = []
        self._groups: dict[Hashable, dict[int, list[int]]] = {}

    def piece(self) -> Piece:
        """Return all of them; they have no phases."""
        events, sizes, emptied = self._events, self._sizes_bytes, self._cache_emptied
        return Piece(events=events, first_block=0, sizes_bytes=sizes, phases=[(0, Phase.LOAD)], cache_emptied=emptied)

    def counters(self, alloc_conf: str) -> AllocatorStats:
        """Return torch's counters on a card of unlimited memory; the settings are `PYTORCH_CUDA_ALLOC_CONF`."""
        return counters_of(self.piece(), parse_alloc_conf(alloc_conf))

    def has(self, group: Hashable) -> bool:
        """Return whether a group has blocks."""
        return group in self._groups

    def sizes(self, group: Hashable) -> dict[int, int]:
        """Return the blocks of a group."""
        return {size: len(found) for size, found in self._groups.get(group, {}).items()}

    def allocate(self, size: int, count: int = 1) -> range:
        """Request blocks of one size; return their numbers."""
        made = range(len(self._sizes_bytes) + 1, len(self._sizes_bytes) + 1 + count)
        self._sizes_bytes.extend([size] * count)
        self._events.extend(made)
        return made

    def free(self, made: Iterable[int]) -> None:
        """Free blocks, in this order."""
        self._events.extend(map(neg, made))

    def set(self, group: Hashable, wanted: Blocks) -> None:
        """Free the blocks of a group that are not wanted, the latest first; then request those that are missing."""
        have = self._groups.setdefault(group, {})
        for size in list(have):
            found, left = have[size], wanted.get(size, 0)
            if len(found) > left:
                self.free(reversed(found[left:]))
                del found[left:]
            if not found:
                del have[size]
        for size, count in wanted.items():
            missing = count - len(have.get(size, ()))
            if missing > 0:
                have.setdefault(size, []).extend(self.allocate(size, missing))
        if not have:
            del self._groups[group]

    def pass_through(self, group: Hashable, wanted: Iterable[Blocks]) -> None:
        """Set a group to one stage after the other."""
        for each in wanted:
            self.set(group, each)

    def drop(self, *groups: Hashable) -> None:
        """Free the blocks of groups."""
        for group in groups:
            self.set(group, NO_BLOCKS)

    def replace(self, group: Hashable, wanted: Blocks) -> None:
        """Request other blocks for a group, and only then free those that it had."""
        before = self._groups.pop(group, {})
        self.set(group, wanted)
        for found in before.values():
            self.free(found)

    def adopt(self, group: Hashable, size: int, block: int) -> None:
        """Let a block that was requested alone be of a group."""
        self._groups.setdefault(group, {}).setdefault(size, []).append(block)

    def rename(self, group: Hashable, to: Hashable) -> None:
        """Let the blocks of a group be those of another one, which has none."""
        if group in self._groups:
            self._groups[to] = self._groups.pop(group)

    def position(self) -> "tuple[int, int]":
        """Return how many events and how many blocks there are."""
        return len(self._events), len(self._sizes_bytes)

    def since(self, position: "tuple[int, int]") -> "Repeatable":
        """Return what was requested and freed since a `position`."""
        events, made = position
        return Repeatable(self._events[events:], self._sizes_bytes[made:], made)

    def repeat(self, known: "Repeatable", outer: Mapping[int, int]) -> int:
        """Request and free the same again; return by how much the numbers of its blocks are higher.

        Args:
            known: What was requested and freed.
            outer: The number of each block that it only used or freed, and that of the one in its place.
        """
        shift, made = len(self._sizes_bytes) - known.before, known.before
        in_place = {sign * old: sign * new for old, new in outer.items() for sign in (1, -1)}
        self._events.extend(
            [
                event + shift if event > made else event - shift if event < -made else in_place[event]
                for event in known.events
            ]
        )
        self._sizes_bytes.extend(known.sizes_bytes)
        return shift

    def empty_cache(self) -> None:
        """Give back all segments without blocks in use."""
        self._cache_emptied.append(len(self._events))


def counted(sizes: Iterable[int]) -> Mapping[int, int]:
    """Return blocks of these bytes."""
    return plus(*({size: 1} for size in sizes))
