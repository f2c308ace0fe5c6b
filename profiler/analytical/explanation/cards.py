"""Whether a trial fits a card, by its estimate."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.estimate import estimate
from profiler.domain.architecture import Architecture
from profiler.domain.context import cuda_context_bytes
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.trial import Attention, TrialSpec

_FLASH_COMPUTE_CAPABILITY = (8, 0)


class Fit(StrEnum):
    """How a trial's memory compares with a card's."""

    FITS = "fits"
    """Reserved memory and the context are within it."""
    TIGHT = "tight"
    """Tensors and the context are within it, the allocator's cache is not: it has to give segments back."""
    TOO_LARGE = "does not fit"
    NO_KERNEL = "no kernel"
    """The attention kernel that is asked for does not run on the card."""


@dataclass(frozen=True, kw_only=True)
class CardVerdict:
    """One card's answer. Sizes are estimated, the context is assumed."""

    gpu: Gpu
    fit: Fit
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What the driver would show: reserved memory and the context."""
        return self.peak_reserved_bytes + self.context_bytes

    @property
    def left_bytes(self) -> int:
        """What is free at the peak; negative where it does not suffice."""
        return self.gpu.memory_bytes - self.needed_bytes


def card_verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu) -> CardVerdict:
    """Whether `spec` fits `gpu`, with the kernels and workspaces of that card.

    Raises:
        UsageError: As `estimate`.
    """
    found = estimate(replace(spec, gpu=gpu.name), architecture)
    reserved = found.peak_reserved_bytes or found.peak_allocated_bytes
    context = cuda_context_bytes(gpu.compute_capability)
    flash = spec.attn_implementation is Attention.FLASH_ATTENTION_2
    if flash and gpu.compute_capability < _FLASH_COMPUTE_CAPABILITY:
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
    """Every card's verdict, the smallest card first."""
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    return tuple(card_verdict(spec, architecture, gpu) for gpu in ordered)
