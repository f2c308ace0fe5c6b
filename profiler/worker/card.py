"""The card of a measured trial: as it is, or its allocator capped so that it holds what a smaller card would."""

from collections.abc import Callable
from dataclasses import dataclass

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.units import GIB, MIB, gib_text
from profiler.measurement.cuda import CudaDevice

_MARGIN_BYTES = 64 * MIB
"""How far beyond the cap the check asks: above the rounding of the fraction and of the allocator's blocks."""


class CapError(Exception):
    """The card cannot be capped as asked."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a measured row says of its card."""

    title: str
    memory_bytes: int
    """Its memory as torch reports it; of a capped card, the smaller card's."""
    allocator_limit_bytes: int | None
    """What the allocator may hold on a capped card."""


def prepare_card(cuda: CudaDevice, gpu: str | None, context_bytes: Callable[[tuple[int, int]], int]) -> Card:
    """Cap the card to the known card `gpu`, if one is named, and make sure that the cap holds.

    The cap is the smaller card's memory less what CUDA itself would take there. It binds the caching allocator only;
    the kernels stay the host card's, so the row is never the smaller card's own.

    Raises:
        CapError: The card is not bigger than that, or the allocator went beyond the cap.
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
            f"gpu={gpu}: {name} gave more than the cap of {gib_text(limit, 2)}, so the cap does not hold. "
            "backend=simulated can pretend any card."
        )
    size = f"{target.memory_bytes / GIB:.0f} GiB"
    return Card(title=f"{name} capped to {size}", memory_bytes=target.memory_bytes, allocator_limit_bytes=limit)
