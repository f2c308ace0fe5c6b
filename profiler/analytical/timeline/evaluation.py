"""Instants of an evaluation: trl generates, scores and computes the loss of one batch at a time, without gradients.

Source: `prediction_step` and `_prepare_inputs` of `GRPOTrainer` in trl 1.16. A batch of an evaluation is generated and
passed through the model whole. The completions of the last training batch are still there.
"""

from dataclasses import replace

from profiler.analytical.formulas.sizes.quantities import Count
from profiler.analytical.formulas.sizes.term import Term, Terms, added
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, with_keys
from profiler.analytical.formulas.vllm_memory import resident_engine
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.persistent import both_states, generated_inputs, inputs_text, state
from profiler.analytical.timeline.reward_instants import reward_instants
from profiler.analytical.timeline.step_instants import (
    engine_rollout_instants,
    rollout_instants,
    scored_without_gradient,
)
from profiler.analytical.timeline.tower_instants import image_input_bytes
from profiler.domain.memory import Category, Phase

_NAMES = {
    Phase.ROLLOUT: InstantName.EVALUATION_ROLLOUT,
    Phase.SCORE: InstantName.EVALUATION_LOSS,
    Phase.REWARD: InstantName.EVALUATION_REWARD,
}


def evaluation_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants of an evaluation between two optimizer steps; none if the trial has no evaluation.

    Log-probabilities of a reference or of an earlier policy need as much as the loss.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present after the first optimizer step.
    """
    if spec.per_device_eval_batch_size is None:
        return ()
    evaluated = _evaluated(spec, spec.per_device_eval_batch_size)
    present = {
        **persistent,
        Category.OPTIMIZER_STATE: both_states(spec, architecture, state(spec, architecture)),
        Category.INPUTS: _both_inputs(spec, evaluated, architecture, persistent[Category.INPUTS].size),
    }
    scoring = added(present, {Category.ENGINE: resident_engine(spec, architecture)})
    rollout = engine_rollout_instants if spec.use_vllm else rollout_instants
    instants = (
        *rollout(evaluated, architecture, present),
        *reward_instants(evaluated, architecture, scoring),
        *scored_without_gradient(evaluated, architecture, scoring),
    )
    return tuple(replace(each, phase=Phase.EVALUATION, name=_NAMES[each.phase]) for each in instants)


def _both_inputs(spec: TrialKeys, evaluated: TrialKeys, architecture: DecoderShape, of_training: Count) -> Term:
    """Return the inputs of the last generation batch of training and of a batch of the evaluation."""
    size = of_training + generated_inputs(evaluated).size + image_input_bytes(evaluated, architecture)
    rows = spec.generation_batch_size + evaluated.generation_batch_size
    return Term(size, lambda: inputs_text(rows))


def _evaluated(spec: TrialKeys, rows: Count) -> TrialKeys:
    """Return a trial whose batch is that of an evaluation, generated at once."""
    return with_keys(
        spec,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        per_device_train_batch_size=rows,
        generation_batch_size=rows,
    )
