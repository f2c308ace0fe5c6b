"""Whether a trial fits a card, according to its estimate."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.estimate import estimate
from profiler.analytical.explanation.engine_start import engine_start_text
from profiler.analytical.formulas.sizes.fragments import unreleasable_bytes
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.context import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.kernels import MissingKernel, missing_kernel
from profiler.domain.trials.trial import TrialSpec


class Fit(StrEnum):
    """The memory of a trial compared with that of a card."""

    FITS = "fits"
    """What a full card cannot return and the CUDA context fit, with the largest share of fragments."""
    TIGHT = "tight"
    """Allocated memory and the CUDA context fit; whether the fragments do is within the error of the method."""
    TOO_LARGE = "does not fit"
    """Allocated memory and the CUDA context do not fit."""
    NO_ENGINE = "vLLM does not start"
    """vLLM refuses to start with the part of the card that it may use."""
    NO_KERNEL = "no kernel"
    """A kernel that the trial needs does not run on the card."""


class Unanswered(StrEnum):
    """Verdicts that memory does not decide; a job of verl can have them."""

    NOT_POSSIBLE = "not possible"
    """verl does not run the job as it is described."""
    UNDECIDED = "not decided"
    """Something that changes memory has no formula."""


@dataclass(frozen=True, kw_only=True)
class CardVerdict:
    """The verdict for one card. Sizes are estimated, the CUDA context is assumed."""

    gpu: Gpu
    fit: Fit
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int
    missing: MissingKernel | None
    """The kernel that the trial needs and the card does not have."""
    no_engine: str = ""
    """Why vLLM refuses to start on the card, and what to change. Empty if it starts or runs elsewhere."""

    @property
    def starts(self) -> bool:
        """Whether the job comes to its first step: the card has its kernels, and vLLM starts."""
        return self.missing is None and not self.no_engine

    @property
    def refusal_text(self) -> str:
        """Why the job does not come to its first step. Empty if it does, or if memory alone decides."""
        return f"No kernel: {self.no_kernel_text}" if self.missing is not None else self.no_engine

    @property
    def needed_bytes(self) -> int:
        """What a full card cannot return, at most, and the CUDA context."""
        return unreleasable_bytes(self.peak_allocated_bytes, self.peak_reserved_bytes) + self.context_bytes

    @property
    def no_kernel_text(self) -> str:
        """The kernel that the card does not have, and what to change. Empty if it has all."""
        return f"{self.missing.name} does not run on {self.gpu.name}. {self.missing.hint}" if self.missing else ""

    @property
    def least_bytes(self) -> int:
        """Allocated memory and the CUDA context: less is never enough."""
        return self.peak_allocated_bytes + self.context_bytes

    @property
    def left_bytes(self) -> int:
        """Free memory at the peak; negative if the card may be too small."""
        return self.gpu.memory_bytes - self.needed_bytes


def card_verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu) -> CardVerdict:
    """Return whether `spec` fits `gpu`, with the kernels and workspaces of that card.

    Raises:
        UsageError: As in `estimate`.
    """
    return _verdict(spec, architecture, gpu, estimate(replace(spec, gpu=gpu.name), architecture))


def _verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu, found: Estimate) -> CardVerdict:
    """Return the verdict from the estimate for that card."""
    on_card = replace(spec, gpu=gpu.name)
    no_engine = engine_start_text(on_card, architecture)
    reserved = found.peak_reserved_bytes or found.peak_allocated_bytes
    return CardVerdict(
        gpu=gpu,
        fit=fit_of(
            spec,
            gpu,
            allocated_bytes=found.peak_allocated_bytes,
            reserved_bytes=reserved,
            engine_starts=not no_engine,
        ),
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=cuda_context_bytes(gpu.compute_capability),
        missing=missing_kernel(spec, gpu.chip),
        no_engine=no_engine,
    )


def fit_of(spec: TrialSpec, gpu: Gpu, *, allocated_bytes: int, reserved_bytes: int, engine_starts: bool = True) -> Fit:
    """Return whether a trial with these peaks fits `gpu`, and whether it comes so far."""
    if missing_kernel(spec, gpu.chip) is not None:
        return Fit.NO_KERNEL
    if not engine_starts:
        return Fit.NO_ENGINE
    return fit_of_memory(gpu, allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)


def fit_of_memory(gpu: Gpu, *, allocated_bytes: int, reserved_bytes: int) -> Fit:
    """Return whether the memory of a job fits `gpu`."""
    available = gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
    if unreleasable_bytes(allocated_bytes, reserved_bytes) <= available:
        return Fit.FITS
    return Fit.TIGHT if allocated_bytes <= available else Fit.TOO_LARGE


def all_cards(
    spec: TrialSpec, architecture: Architecture, cards: Iterable[Gpu] = KNOWN_GPUS.values()
) -> tuple[CardVerdict, ...]:
    """Return the verdict for each card, the smallest card first.

    Raises:
        UsageError: As in `estimate`.
    """
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    alike = {_what_counts(spec, gpu): gpu for gpu in reversed(ordered)}
    estimates = {each: estimate(replace(spec, gpu=gpu.name), architecture) for each, gpu in alike.items()}
    return tuple(_verdict(spec, architecture, gpu, estimates[_what_counts(spec, gpu)]) for gpu in ordered)


def _what_counts(spec: TrialSpec, gpu: Gpu) -> Hashable:
    """Return what the closed form reads of a card: cards with equal values have one estimate.

    Kernels and workspaces follow from the compute capability. vLLM takes a part of the memory.
    """
    return gpu if spec.use_vllm else gpu.compute_capability
