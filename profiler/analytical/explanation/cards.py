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
    return CardVerdict(
        gpu=gpu,
        fit=fit_of(spec.attn_implementation, gpu, allocated_bytes=found.peak_allocated_bytes, reserved_bytes=reserved),
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=cuda_context_bytes(gpu.compute_capability),
    )


def fit_of(attention: Attention, gpu: Gpu, *, allocated_bytes: int, reserved_bytes: int) -> Fit:
    """Return whether a trial with these peaks fits `gpu`."""
    available = gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
    if attention is Attention.FLASH_ATTENTION_2 and not gpu.chip.has_flash_attention:
        return Fit.NO_KERNEL
    if reserved_bytes <= available:
        return Fit.FITS
    return Fit.TIGHT if allocated_bytes <= available else Fit.TOO_LARGE


def all_cards(
    spec: TrialSpec, architecture: Architecture, cards: Iterable[Gpu] = KNOWN_GPUS.values()
) -> tuple[CardVerdict, ...]:
    """Return the verdict for each card, the smallest card first."""
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    return tuple(card_verdict(spec, architecture, gpu) for gpu in ordered)
