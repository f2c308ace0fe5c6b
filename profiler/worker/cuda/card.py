"""The card of a measured trial: whole, or with its allocator capped to the memory of a smaller card."""

from collections.abc import Callable
from dataclasses import dataclass

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.units import GIB, MIB, gib_text
from profiler.measurement.counters.cuda import CudaDevice

_MARGIN_BYTES = 64 * MIB
"""Bytes beyond the cap that the check requests: more than the rounding of the fraction and of blocks."""


class CapError(Exception):
    """The card cannot be capped as asked."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Name and memory of the card in a measured row."""

    title: str
    memory_bytes: int
    """As torch reports it; the smaller card's if capped."""
    allocator_limit_bytes: int | None
    """Most memory of the allocator on a capped card; None if not capped."""


def prepare_card(cuda: CudaDevice, gpu: str | None, context_bytes: Callable[[tuple[int, int]], int]) -> Card:
    """Cap the card to the known card `gpu`, if one is named, and check that the cap works.

    The cap is the smaller card's memory less its CUDA context. It limits the caching allocator only: the kernels are
    still the host card's, so the row is not a measurement of the smaller card.

    Raises:
        CapError: The card has too little free memory for the cap, or the allocator exceeds the cap.
    """
    name, total = cuda.name(), cuda.total_bytes()
    if gpu is None:
        return Card(title=name, memory_bytes=total, allocator_limit_bytes=None)
    target = KNOWN_GPUS[gpu]
    if target.is_called(name, total):
        return Card(title=name, memory_bytes=total, allocator_limit_bytes=None)
    limit = target.memory_bytes - context_bytes(target.compute_capability)
    if limit + _MARGIN_BYTES > cuda.free_bytes():
        raise CapError(
            f"gpu={gpu}: {name} has {gib_text(cuda.free_bytes(), 2)} free, so it cannot be capped to "
            f"{gib_text(limit, 2)}. Leave gpu out to measure the whole card."
        )
    cuda.limit_allocator(limit)
    if cuda.can_allocate(limit + _MARGIN_BYTES):
        raise CapError(
            f"gpu={gpu}: {name} allocated more than the cap of {gib_text(limit, 2)}, so the cap does not work. "
            "Use backend=simulated for any card."
        )
    size = f"{target.memory_bytes / GIB:.0f} GiB"
    return Card(title=f"{name} capped to {size}", memory_bytes=target.memory_bytes, allocator_limit_bytes=limit)
