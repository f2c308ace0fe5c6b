"""Instants of a critic: values without gradient while completions are scored, and its update before the policy's."""

from collections.abc import Mapping

from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.models.value_models import critic_gradient_bytes, critic_tensors
from profiler.analytical.formulas.models.weights import autocast_cache_bytes, autocast_forward_bytes
from profiler.analytical.formulas.sizes.batch import Batch
from profiler.analytical.formulas.sizes.quantities import Count, both, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers.optimizer_state import optimizer_scratch_bytes
from profiler.analytical.timeline.instants import Bytes, Instant, InstantName, added
from profiler.analytical.timeline.persistent import critic_state_bytes
from profiler.analytical.timeline.training_pass import (
    attention_mask_bytes,
    layer_backward_bytes,
    layer_forward_bytes,
    stack_saved_bytes,
)
from profiler.domain.memory import Category, Phase


def value_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Bytes, batch: Batch) -> tuple[Instant, ...]:
    """Return the instant at which the critic computes the values of a micro-batch, in a layer; none without a critic.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present while completions are scored.
        batch: A micro-batch.
    """
    if not spec.critic:
        return ()
    casts = where(element_bytes(spec).autocast_caches, autocast_cache_bytes(spec, architecture), 0)
    layer = layer_without_gradient_bytes(spec, architecture, batch, adapted=True, autocast=spec.bf16)
    more: Bytes = {Category.ACTIVATIONS: casts + layer, Category.INPUTS: attention_mask_bytes(spec, batch)}
    return (Instant(phase=Phase.SCORE, name=InstantName.VALUES, sizes=added(persistent, more)),)


def critic_instants(
    spec: TrialKeys, architecture: DecoderShape, persistent: Bytes, batch: Batch
) -> tuple[Instant, ...]:
    """Return the instants of the critic's update: as the policy's, without an LM head; none without a critic.

    The head of one value and what the final norm saves are left out: a few values per token.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout, with the state of both optimizers.
        batch: A micro-batch.
    """
    if not spec.critic:
        return ()
    gradients = critic_gradient_bytes(spec, architecture)
    accumulated = where(spec.gradient_accumulation_steps > 1, gradients, 0)
    casts, stack = autocast_forward_bytes(spec, architecture), stack_saved_bytes(spec, architecture, batch)
    before_a_step = {Category.OPTIMIZER_STATE: -_state_of_the_first_step(spec, architecture)}
    earlier = added(persistent, before_a_step)
    layers = added(earlier, {Category.INPUTS: attention_mask_bytes(spec, batch)})
    backward = layer_backward_bytes(spec, architecture, batch)
    embedding = block_of(spec)(architecture.vocab_size * architecture.hidden_size * element_bytes(spec).weight)
    one_layer = (gradients - embedding) // architecture.num_hidden_layers

    def activations(more: Count, kept: Count = 0) -> Bytes:
        return added(layers, {Category.ACTIVATIONS: casts + kept + more})

    sizes: Mapping[InstantName, Bytes] = {
        InstantName.FORWARD_LAYER: added(
            activations(layer_forward_bytes(spec, architecture, batch), stack), {Category.GRADIENTS: accumulated}
        ),
        InstantName.BACKWARD_LAYER: added(activations(backward, stack), {Category.GRADIENTS: accumulated}),
        InstantName.BACKWARD_FIRST_LAYER: added(
            activations(backward, stack // architecture.num_hidden_layers),
            {Category.GRADIENTS: larger(accumulated, gradients - embedding - one_layer)},
        ),
        InstantName.BACKWARD_END: added(
            earlier, {Category.GRADIENTS: gradients + where(accumulated > 0, embedding, 0)}
        ),
        InstantName.STEP: added(
            persistent, {Category.GRADIENTS: gradients, Category.WORKSPACE: _scratch_bytes(spec, architecture)}
        ),
    }
    return tuple(Instant(phase=Phase.CRITIC, name=name, sizes=found) for name, found in sizes.items())


def with_critic_state(spec: TrialKeys, architecture: DecoderShape, persistent: Bytes) -> Bytes:
    """Return `persistent` with the state of the critic's optimizer, which steps before the policy's backward."""
    return added(persistent, {Category.OPTIMIZER_STATE: critic_state_bytes(spec, architecture)})


def _state_of_the_first_step(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the critic's state where the trial ends after the step that makes it, so that no backward has it."""
    only = both(spec.steps <= 1, spec.steps_per_generation <= spec.gradient_accumulation_steps)
    return where(only, critic_state_bytes(spec, architecture), 0)


def _scratch_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    element = element_bytes(spec).weight
    return optimizer_scratch_bytes(spec.optim, critic_tensors(architecture), element, block_of(spec))
