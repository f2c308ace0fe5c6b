"""Instants of GRPO."""

from profiler.analytical.formulas.batch import generated_micro_batch
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.persistent import input_bytes, persistent_at_rollout, persistent_memory
from profiler.analytical.timeline.step_instants import (
    load_instants,
    optimizer_instant,
    reward_instant,
    rollout_instants,
    score_instants,
)
from profiler.analytical.timeline.training_pass import training_instants


def grpo_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of GRPO, in the order of a step."""
    persistent = persistent_memory(spec, architecture, inputs=input_bytes(spec))
    at_rollout = persistent_at_rollout(spec, persistent)
    return (
        *load_instants(spec, architecture),
        *rollout_instants(spec, architecture, at_rollout),
        *score_instants(spec, architecture, at_rollout),
        reward_instant(spec, architecture, at_rollout),
        *training_instants(spec, architecture, persistent, generated_micro_batch(spec)),
        optimizer_instant(spec, architecture, persistent),
    )
