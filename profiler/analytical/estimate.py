"""From a specification to its estimate: the largest of all instants."""

from profiler.analytical.instants import Instant, optimizer_instant, rollout_instants, score_instants
from profiler.analytical.rule import rule_of_thumb
from profiler.analytical.training_pass import training_instants
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Category
from profiler.domain.outcome import CategoryShare, Estimate
from profiler.domain.trial import TrialSpec


def instants(spec: TrialSpec, architecture: Architecture) -> tuple[Instant, ...]:
    """Every moment that is considered, in the order of a step."""
    return (
        *rollout_instants(spec, architecture),
        *score_instants(spec, architecture),
        *training_instants(spec, architecture),
        optimizer_instant(spec, architecture),
    )


def estimate(spec: TrialSpec, architecture: Architecture) -> Estimate:
    """The peak of allocated memory by closed form, with what it consists of.

    It holds for dense decoders of the Llama kind with gated MLPs, on one GPU, rolled out by transformers' `generate`.
    Left out: rounding to the allocator's blocks, the context, and scratch inside kernels other than cuBLAS.

    Raises:
        UsageError: The model is a mixture of experts, for which there is no closed form.
    """
    _refuse_experts(architecture)
    peak = max(instants(spec, architecture), key=lambda instant: instant.total_bytes)
    return Estimate(
        peak_allocated_bytes=peak.total_bytes,
        peak_reserved_bytes=None,
        peak_rule_bytes=rule_of_thumb(spec, architecture),
        peak_phase=peak.phase,
        breakdown=tuple(
            CategoryShare(category=category, size_bytes=peak.sizes[category])
            for category in Category
            if peak.sizes[category]
        ),
    )


def _refuse_experts(architecture: Architecture) -> None:
    if architecture.num_experts <= 1:
        return
    raise UsageError(
        [
            Fault(
                key="model",
                found=architecture.model_type,
                allowed=f"a mixture of {architecture.num_experts} experts has no closed-form estimate",
                way_out="`python -m profiler.sweep` simulates it.",
            )
        ]
    )
