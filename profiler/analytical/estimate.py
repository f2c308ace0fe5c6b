"""From a specification to its estimate: the largest of all instants."""

from profiler.analytical.baselines.rule import rule_of_thumb
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.persistent import standing, standing_at_rollout
from profiler.analytical.timeline.reserved import peak_reserved_bytes
from profiler.analytical.timeline.step_instants import (
    load_instants,
    optimizer_instant,
    reward_instant,
    rollout_instants,
    score_instants,
)
from profiler.analytical.timeline.training_pass import training_instants
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.outcome import CategoryShare, Estimate
from profiler.domain.trial import TrialSpec


def instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Every moment that is considered, in the order of a step."""
    held = standing(spec, architecture)
    at_rollout = standing_at_rollout(spec, held)
    return (
        *load_instants(spec, architecture),
        *rollout_instants(spec, architecture, at_rollout),
        *score_instants(spec, architecture, at_rollout),
        reward_instant(spec, architecture, at_rollout),
        *training_instants(spec, architecture, held),
        optimizer_instant(spec, architecture, held),
    )


def phase_instants(spec: TrialSpec, architecture: Architecture) -> dict[Phase, Instant]:
    """The largest instant of each phase that the trial has, in the order of a step."""
    found: dict[Phase, Instant] = {}
    for instant in instants(spec, architecture):
        best = found.get(instant.phase)
        if best is None or instant.total_bytes > best.total_bytes:
            found[instant.phase] = instant
    return found


def estimate(spec: TrialSpec, architecture: Architecture) -> Estimate:
    """The peaks of allocated and reserved memory by closed form, with what the first consists of.

    It holds for dense decoders of the Llama kind with gated MLPs, on one GPU, rolled out by transformers' `generate`.
    Left out: rounding to multiples of 512 bytes and remainders that the allocator does not split off, by which a card's
    own counter is 0.2 to 3 % higher (`roundup_power2_divisions` is not left out); the context; and scratch inside
    kernels other than cuBLAS and attention by products.

    Raises:
        UsageError: The model is a mixture of experts, for which there is no closed form.
    """
    refuse_experts(architecture)
    moments = instants(spec, architecture)
    peak = max(moments, key=lambda instant: int(instant.total_bytes))
    return Estimate(
        peak_allocated_bytes=int(peak.total_bytes),
        peak_reserved_bytes=int(peak_reserved_bytes(spec, architecture, moments)),
        peak_rule_bytes=int(rule_of_thumb(spec, architecture)),
        peak_phase=peak.phase,
        breakdown=tuple(
            CategoryShare(category=category, size_bytes=int(peak.sizes.get(category, 0)))
            for category in Category
            if peak.sizes.get(category, 0)
        ),
    )


def refuse_experts(architecture: Architecture) -> None:
    """Raise what `estimate` raises where there is no closed form."""
    if architecture.num_experts <= 1:
        return
    raise UsageError(
        [
            Fault(
                key="model",
                found=architecture.model_type,
                problem=f"a mixture of {architecture.num_experts} experts has no closed-form estimate",
                hint="`python -m profiler.sweep` simulates it.",
            )
        ]
    )
