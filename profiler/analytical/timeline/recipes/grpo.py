"""Instants of GRPO."""

from profiler.analytical.formulas.sizes.quantities import Term, Terms, added
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, generated_micro_batch
from profiler.analytical.formulas.vllm_memory import resident_engine
from profiler.analytical.timeline.instants import (
    Instant,
    generated_inputs,
    persistent_at_rollout,
    persistent_memory,
    unfinished_gradients,
)
from profiler.analytical.timeline.optional_instants import (
    critic_instants,
    evaluation_instants,
    value_instants,
    with_critic_state,
)
from profiler.analytical.timeline.step_instants import (
    engine_rollout_instants,
    load_instants,
    optimizer_instant,
    reward_instants,
    rollout_instants,
    score_instants,
)
from profiler.analytical.timeline.tower_instants import image_input_bytes, joined_images, next_images
from profiler.analytical.timeline.training_pass import training_instants
from profiler.domain.memory import Category


def grpo_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of GRPO, in the order of a step."""
    inputs = generated_inputs(spec).plus(Term(image_input_bytes(spec, architecture)))
    persistent = with_critic_state(spec, architecture, persistent_memory(spec, architecture, inputs=inputs))
    at_rollout = added(persistent_at_rollout(spec, persistent), next_images(spec, architecture))
    rollout = engine_rollout_instants if spec.use_vllm else rollout_instants
    engine: Terms = {Category.ENGINE: resident_engine(spec, architecture)}
    scoring, training = added(at_rollout, engine), added(persistent, engine)
    batch = generated_micro_batch(spec)
    unfinished: Terms = {Category.GRADIENTS: unfinished_gradients(spec, architecture)}
    rewarded = added(scoring, unfinished, joined_images(spec, architecture))
    return (
        *load_instants(spec, architecture),
        *rollout(spec, architecture, at_rollout),
        *score_instants(spec, architecture, scoring),
        *value_instants(spec, architecture, scoring, batch),
        *reward_instants(spec, architecture, rewarded),
        *critic_instants(spec, architecture, training, batch),
        *training_instants(spec, architecture, training, batch),
        optimizer_instant(spec, architecture, training),
        *evaluation_instants(spec, architecture, persistent),
    )
