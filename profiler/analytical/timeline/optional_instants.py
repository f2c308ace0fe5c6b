"""Instants that only some trials have: those of a critic, and of an evaluation.

An evaluation computes the loss of whole batches, without gradients, dropout and checkpointing; of completions that are
generated and rewarded before. The rows or completions of the last step of training are still there.

Source: `prediction_step` of trl's trainers, 1.16, `evaluation_loop` and `_run_epoch` (`batch_samples`) of transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.models.weights import (
    autocast_cache_bytes,
    autocast_more_bytes,
    critic_gradients,
    critic_tensors,
)
from profiler.analytical.formulas.sizes.quantities import Count, Term, Terms, added, both, chosen, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    generated_micro_batch,
    with_keys,
)
from profiler.analytical.formulas.vllm_memory import resident_engine
from profiler.analytical.optimizers import optimizer_scratch
from profiler.analytical.timeline.instants import (
    Instant,
    InstantName,
    both_states,
    critic_state,
    generated_inputs,
    inputs_text,
    state,
    workspace_in_step,
)
from profiler.analytical.timeline.step_instants import (
    engine_rollout_instants,
    layer_without_gradient,
    reward_instants,
    rollout_instants,
    scored_without_gradient,
)
from profiler.analytical.timeline.tower_instants import image_input_bytes
from profiler.analytical.timeline.training_pass import (
    layer_backward,
    layer_forward,
    stack,
)
from profiler.domain.memory import Category, Phase


def value_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms, batch: Batch) -> tuple[Instant, ...]:
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
    layer = layer_without_gradient(spec, architecture, batch, adapted=True)
    more: Terms = {
        Category.ACTIVATIONS: layer.including(Term(casts)),
        Category.INPUTS: Term(attention_mask_bytes(spec, architecture, batch)),
    }
    return (Instant(phase=Phase.SCORE, name=InstantName.VALUES, terms=added(persistent, more)),)


def critic_instants(
    spec: TrialKeys, architecture: DecoderShape, persistent: Terms, batch: Batch
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
    gradients = critic_gradients(spec, architecture)
    accumulated = gradients.only_if(spec.gradient_accumulation_steps > 1)
    casts, inputs = Term(autocast_more_bytes(spec, architecture, in_layer=True)), stack(spec, architecture, batch)
    earlier = _before_a_step(spec, architecture, persistent)
    layers = added(earlier, {Category.INPUTS: Term(attention_mask_bytes(spec, architecture, batch))})
    backward = layer_backward(spec, architecture, batch)
    embedding = block_of(spec)(architecture.vocab_size * architecture.hidden_size * element_bytes(spec).weight)
    one_layer = (gradients.size - embedding) // architecture.num_hidden_layers
    others = Term(gradients.size - embedding - one_layer, lambda: "all layers but one")
    fresh = Term(where(accumulated.size > 0, embedding, 0), lambda: "the embedding's")
    first = Term(inputs.size // architecture.num_hidden_layers, lambda: "one layer")

    def terms(activations: Term, more: Term) -> Terms:
        return added(layers, {Category.ACTIVATIONS: activations, Category.GRADIENTS: more})

    found: Mapping[InstantName, Terms] = {
        InstantName.FORWARD_LAYER: terms(
            inputs.plus(casts).plus(layer_forward(spec, architecture, batch)), accumulated
        ),
        InstantName.BACKWARD_LAYER: terms(inputs.plus(backward), accumulated),
        InstantName.BACKWARD_FIRST_LAYER: terms(
            first.plus(backward),
            chosen(accumulated.size > 0, accumulated, others),
        ),
        InstantName.BACKWARD_END: added(earlier, {Category.GRADIENTS: gradients.plus(fresh)}),
        InstantName.STEP: {
            **persistent,
            Category.GRADIENTS: gradients,
            Category.WORKSPACE: workspace_in_step(persistent[Category.WORKSPACE], _scratch(spec, architecture)),
        },
    }
    return tuple(Instant(phase=Phase.CRITIC, name=name, terms=each) for name, each in found.items())


def with_critic_state(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> Terms:
    """Return `persistent` with the state of the critic's optimizer, which steps before the policy's backward."""
    policy = persistent[Category.OPTIMIZER_STATE]
    return {**persistent, Category.OPTIMIZER_STATE: both_states(spec, architecture, policy)}


def _before_a_step(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> Terms:
    """Return `persistent` before the critic's step.

    Where the trial ends after the step that makes the critic's state, no backward of the critic has it.
    """
    only = both(spec.steps <= 1, spec.steps_per_generation <= spec.gradient_accumulation_steps)
    states, critics = persistent[Category.OPTIMIZER_STATE], critic_state(spec, architecture)
    return {**persistent, Category.OPTIMIZER_STATE: Term(states.size - where(only, critics.size, 0), states.words)}


def _scratch(spec: TrialKeys, architecture: DecoderShape) -> Term:
    tensors, element = critic_tensors(architecture), element_bytes(spec).weight
    return optimizer_scratch(spec.optim, tensors, element, block_of(spec), weight_decay=spec.weight_decay)


_NAMES = {
    Phase.ROLLOUT: InstantName.EVALUATION_ROLLOUT,
    Phase.SCORE: InstantName.EVALUATION_LOSS,
    Phase.REWARD: InstantName.EVALUATION_REWARD,
}


def evaluation_instants(
    spec: TrialKeys,
    architecture: DecoderShape,
    persistent: Terms,
    rows_of: Callable[[TrialKeys], tuple[Batch, Count]] | None = None,
) -> tuple[Instant, ...]:
    """Return the instants of an evaluation between two optimizer steps; none if the trial has no evaluation.

    A reference, an earlier policy, or the KL term of KTO needs at most as much as the loss.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present after the first optimizer step.
        rows_of: Returns a micro-batch of rows of data, and the bytes of its inputs; None if completions are generated.
    """
    if spec.per_device_eval_batch_size is None:
        return ()
    evaluated, shape = as_evaluated(spec), without_dropout(architecture)
    state_of_all = both_states(spec, architecture, state(spec, architecture))
    present: Terms = {**persistent, Category.OPTIMIZER_STATE: state_of_all}
    before: tuple[Instant, ...] = ()
    if rows_of is not None:
        batch, own = rows_of(evaluated)
        both_batches = Term(persistent[Category.INPUTS].size + own, lambda: "rows of both batches, as int64")
        scoring: Terms = {**present, Category.INPUTS: both_batches}
    else:
        size = generated_inputs(evaluated).size + image_input_bytes(evaluated, architecture)
        rows = spec.generation_batch_size + evaluated.generation_batch_size
        inputs = Term(persistent[Category.INPUTS].size + size, lambda: inputs_text(rows))
        present = {**present, Category.INPUTS: inputs}
        batch = generated_micro_batch(evaluated)
        scoring = added(present, {Category.ENGINE: resident_engine(spec, architecture)})
        rollout = engine_rollout_instants if spec.use_vllm else rollout_instants
        before = (*rollout(evaluated, shape, present), *reward_instants(evaluated, shape, scoring))
    instants = (*before, *scored_without_gradient(evaluated, shape, scoring, batch))
    return tuple(replace(each, phase=Phase.EVALUATION, name=_NAMES[each.phase]) for each in instants)


def as_evaluated(spec: TrialKeys) -> TrialKeys:
    """Return a trial whose batch is that of an evaluation, generated at once."""
    return with_keys(
        spec,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        per_device_train_batch_size=spec.per_device_eval_batch_size,
        generation_batch_size=spec.per_device_eval_batch_size,
        lora_dropout=0.0,
    )


def without_dropout(architecture: DecoderShape) -> DecoderShape:
    """Return a model whose attention drops nothing."""
    kinds = tuple(map(without_dropout, architecture.first_layers))
    return cast("DecoderShape", replace(cast("Any", architecture), attention_dropout=0.0, first_layers=kinds))
