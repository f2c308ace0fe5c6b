"""Which lines of code hold the memory at the instant that decides: where it ran out, or else at the peak."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from profiler.allocator.code_lines import CodeLine
from profiler.allocator.histories.course import BEFORE
from profiler.allocator.histories.history import Action, RecordedHistory
from profiler.allocator.histories.recorded import RecordedComparison
from profiler.allocator.model.held import BlockState
from profiler.allocator.settings.sizes import block_bytes

SHARE = 0.8
"""Share of the allocated memory that the named lines hold together."""


@dataclass(frozen=True, kw_only=True)
class LineHolding:
    """What the requests of one line hold."""

    line: CodeLine | None
    """None: requests without a stack, such as those from before the recording."""
    size_bytes: int
    """Sum of their blocks, each rounded as the allocator rounds."""
    blocks: int


@dataclass(frozen=True, kw_only=True)
class HeldLines:
    """Who holds the allocated memory at one instant of a recorded history."""

    entry: int
    """The entry after which it is counted; `BEFORE`: the beginning."""
    refused: LineHolding | None
    """The request that was refused at that entry; None: the instant is the peak of allocated memory."""
    allocated_bytes: int
    lines: tuple[LineHolding, ...]
    """Largest first. Their sum is `allocated_bytes` without the rests of blocks that were too small to be split off."""

    @property
    def has_stacks(self) -> bool:
        """Whether any block is known by its line."""
        return any(each.line is not None for each in self.lines)

    @property
    def largest(self) -> tuple[LineHolding, ...]:
        """The fewest lines that hold `SHARE` of the allocated memory together, or all."""
        found, held_bytes = [], 0
        for each in self.lines:
            if held_bytes >= SHARE * self.allocated_bytes:
                break
            found.append(each)
            held_bytes += each.size_bytes
        return tuple(found)


def held_lines(history: RecordedHistory, comparison: RecordedComparison) -> HeldLines:
    """Return the lines of code that hold the memory where a history ran out first, or else at its peak.

    Args:
        history: As recorded.
        comparison: Its replay, `is_consistent`. Of a replay that departs, only the part before is searched.
    """
    course = comparison.course
    refusal = course.refusals[0] if course.refusals else None
    if refusal is not None:
        entry, allocated_bytes = refusal.entry, refusal.allocated_bytes
        asked = history.entries[entry]
        refused = LineHolding(line=asked.line, size_bytes=refusal.requested_bytes, blocks=1)
    else:
        levels, refused = course.allocated_bytes, None
        allocated_bytes = max(levels)
        entry = next(place for place, level in enumerate(levels) if level == allocated_bytes) - 1
    live = _live(history, comparison, entry)
    return HeldLines(entry=entry, refused=refused, allocated_bytes=allocated_bytes, lines=_grouped(live.values()))


_Held = tuple[CodeLine | None, int]
"""The line and the bytes of a block in use."""


def _live(history: RecordedHistory, comparison: RecordedComparison, until: int) -> Mapping[int, _Held]:
    """Return the blocks in use after entry number `until`, by address."""
    since = comparison.unverified_entries
    live = dict(_first(history, comparison, since))
    for entry in history.entries[since : until + 1] if until != BEFORE else ():
        if entry.action is Action.ALLOC:
            live[entry.address] = entry.line, block_bytes(entry.size_bytes, history.config)
        elif entry.action is Action.FREE_COMPLETED:
            live.pop(entry.address, None)
    return live


def _first(history: RecordedHistory, comparison: RecordedComparison, since: int) -> Iterator[tuple[int, _Held]]:
    """Yield the blocks in use before entry `since`, whose line is known if they were never freed."""
    freed = {entry.address for entry in history.entries[since:] if entry.action is Action.FREE_COMPLETED}
    for segment in comparison.first.segments:
        for block in segment.blocks:
            if block.state is BlockState.IN_USE:
                line = None if block.address in freed else history.lines_at_end.get(block.address)
                yield block.address, (line, block.size_bytes)


def _grouped(blocks: Iterable[_Held]) -> tuple[LineHolding, ...]:
    sizes: Counter[CodeLine | None] = Counter()
    counts: Counter[CodeLine | None] = Counter()
    for line, size_bytes in blocks:
        sizes[line] += size_bytes
        counts[line] += 1
    found = (LineHolding(line=line, size_bytes=size, blocks=counts[line]) for line, size in sizes.items())
    return tuple(sorted(found, key=lambda each: (-each.size_bytes, each.line is None, str(each.line))))
