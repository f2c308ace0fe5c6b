"""The stream of allocations and frees of one trial, in order, with what each block is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiler.domain.memory import Category, Phase


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trial's allocations. Blocks are numbered in the order of their allocation, from 0.

    `events` holds ``block + 1`` where a block is allocated and ``-(block + 1)`` where it is freed. `phase_starts` holds
    pairs (index of the first event, phase), ascending; an event belongs to the last phase that began at or before it.
    """

    sizes_bytes: Sequence[int]
    """Requested bytes of each block, before rounding."""
    categories: Sequence[Category]
    events: Sequence[int]
    phase_starts: Sequence[tuple[int, Phase]]


@dataclass
class TraceBuilder:
    """Collects a trace while a trial runs."""

    sizes_bytes: list[int] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    phase_starts: list[tuple[int, Phase]] = field(default_factory=list)

    @property
    def phase(self) -> Phase:
        """The phase that the trial is in."""
        return self.phase_starts[-1][1] if self.phase_starts else Phase.LOAD

    def enter(self, phase: Phase) -> None:
        """`phase` begins."""
        if not self.phase_starts or self.phase_starts[-1][1] is not phase:
            self.phase_starts.append((len(self.events), phase))

    def allocate(self, size_bytes: int, category: Category) -> int:
        """A block of `size_bytes` is allocated now; its number."""
        block = len(self.sizes_bytes)
        self.sizes_bytes.append(size_bytes)
        self.categories.append(category)
        self.events.append(block + 1)
        return block

    def free(self, block: int) -> None:
        """A block is freed now."""
        self.events.append(-(block + 1))

    def attribute(self, block: int, category: Category) -> None:
        """A block turns out to be of `category`, and always was."""
        self.categories[block] = category

    def finished(self) -> Trace:
        """The trace so far."""
        return Trace(
            sizes_bytes=tuple(self.sizes_bytes),
            categories=tuple(self.categories),
            events=tuple(self.events),
            phase_starts=tuple(self.phase_starts),
        )
