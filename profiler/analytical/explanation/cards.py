"""Whether a trial fits a card, according to its estimate."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.estimate import estimate
from profiler.domain.architecture import Architecture
from profiler.domain.context import cuda_context_bytes
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.trial import Attention, TrialSpec


class Fit(StrEnum):
    """The memory of a trial compared with that of a card."""

    FITS = "fits"
    """Reserved memory and the CUDA context fit."""
    TIGHT = "tight"
    """Allocated memory and the CUDA context fit, reserved memory does not: the allocator has to release segments."""
    TOO_LARGE = "does not fit"
    NO_KERNEL = "no kernel"
    """The card does not support the requested attention kernel."""


@dataclass(frozen=True, kw_only=True)
class CardVerdict:
    """The verdict for one card. Sizes are estimated, the CUDA context is assumed."""

    gpu: Gpu
    fit: Fit
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Reserved memory and the CUDA context: the memory that the driver would report."""
        return self.peak_reserved_bytes + self.context_bytes

    @property
    def left_bytes(self) -> int:
        """Free memory at the peak; negative if the card is too small."""
        return self.gpu.memory_bytes - self.needed_bytes


def card_verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu) -> CardVerdict:
    """Return whether `spec` fits `gpu`, with the kernels and workspaces of that card.

    Raises:
        UsageError: As in `estimate`.
    """
    found = estimate(replace(spec, gpu=gpu.name), architecture)
    reserved = found.peak_reserved_bytes or found.peak_allocated_bytes
    context = cuda_context_bytes(gpu.compute_capability)
    flash = spec.attn_implementation is Attention.FLASH_ATTENTION_2
    if flash and not gpu.chip.has_flash_attention:
        fit = Fit.NO_KERNEL
    elif reserved + context <= gpu.memory_bytes:
        fit = Fit.FITS
    elif found.peak_allocated_bytes + context <= gpu.memory_bytes:
        fit = Fit.TIGHT
    else:
        fit = Fit.TOO_LARGE
    return CardVerdict(
        gpu=gpu,
        fit=fit,
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=context,
    )


def all_cards(
    spec: TrialSpec, architecture: Architecture, cards: Iterable[Gpu] = KNOWN_GPUS.values()
) -> tuple[CardVerdict, ...]:
    """Return the verdict for each card, the smallest card first."""
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    return tuple(card_verdict(spec, architecture, gpu) for gpu in ordered)
