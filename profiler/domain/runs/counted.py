"""The work of one optimizer step as it is counted: floating-point operations and bytes moved, by phase."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.cards.card import Roofline
from profiler.domain.memory import Phase


@dataclass(frozen=True)
class Cost:
    """One operation of the card."""

    flops: int
    moved_bytes: int
    """Its arguments and results, each read or written once."""
    is_half: bool
    """Whether its products are of 16-bit numbers."""

    def seconds(self, card: Roofline) -> float:
        """Return the least time in which `card` can do it."""
        peak = card.half_flops_per_s if self.is_half else card.single_flops_per_s
        return max(self.flops / peak, self.moved_bytes / card.memory_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """The work of one phase in one optimizer step."""

    phase: Phase
    operations: Mapping[Cost, int]
    """How often each cost occurs."""
    to_host_bytes: int = 0
    from_host_bytes: int = 0
    has_own_stream: bool = False
    """Whether copies between host and card run next to the computation, and not in turn with it."""

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return sum(cost.flops * times for cost, times in self.operations.items())

    @property
    def moved_bytes(self) -> int:
        """All bytes that operations read and write in the card's memory."""
        return sum(cost.moved_bytes * times for cost, times in self.operations.items())

    def seconds(self, card: Roofline) -> float:
        """Return a lower bound of its time on `card`: no operation is faster, and each direction of the link is used.

        Caches of the card, which are left out, can serve small operations faster.
        """
        computed = sum(cost.seconds(card) * times for cost, times in self.operations.items())
        copied = max(self.to_host_bytes, self.from_host_bytes) / card.link_bytes_per_s
        return max(computed, copied) if self.has_own_stream else computed + copied
