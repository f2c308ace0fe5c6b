"""The least time of an optimizer step on a card: products at the card's peak, and decoded tokens at its bandwidth."""

from profiler.analytical.formulas.models.parameters import is_mixture, output_width, projections, query_width
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import Roofline
from profiler.domain.trials.trial import Dtype, Rollout, TrialSpec, Tuning

_BYTES = {True: 2.0, False: 4.0}
_FOUR_BIT_BYTES = 0.5


def least_step_s(spec: TrialSpec, architecture: Architecture, card: Roofline) -> float:
    """Return seconds below which no card of this kind can do one optimizer step of a trial.

    Counted are products with weights and of attention, and the weights that each decoded token reads. Left out, so that
    the real time is longer: all other operations, adapters, the optimizer, copies and communication, and Python.
    """
    half = spec.dtype is not Dtype.FLOAT32 or spec.bf16
    peak = card.half_flops_per_s if half else card.single_flops_per_s
    rows = spec.training_rows
    width = spec.longest + (spec.max_prompt_length if spec.recipe.facts.has_prompts else 0)
    # A head of one score is left out.
    scored = spec.longest if spec.recipe.facts.has_lm_head else 0
    forward = _forward_flops(architecture, rows=rows, width=width, scored=scored)
    has_pass = spec.recipe.facts.has_reference_pass and spec.beta and not spec.precompute_ref_log_probs
    reference = 1 if has_pass else 0
    recomputed = 1 if spec.gradient_checkpointing else 0
    backward = 2 if spec.tuning is Tuning.FULL else 1
    trained = (1 + backward + recomputed + reference) * forward / peak * spec.gradient_accumulation_steps
    if not spec.recipe.facts.has_rollout or spec.rollout is Rollout.SYNTHETIC:
        return trained
    rollouts = max(1, spec.gradient_accumulation_steps // spec.steps_per_generation)
    return trained + rollouts * _rollout_s(spec, architecture, card, half=half)


def _rollout_s(spec: TrialSpec, architecture: Architecture, card: Roofline, *, half: bool) -> float:
    """Return the least time to decode one generation batch, token by token."""
    each = _FOUR_BIT_BYTES if spec.tuning is Tuning.QLORA else _BYTES[half]
    peak = card.half_flops_per_s if half else card.single_flops_per_s
    weights = _layer_weights(architecture) + architecture.vocab_size * architecture.hidden_size
    flops = 2 * weights * spec.generation_batch_size
    per_token = max(flops / peak, weights * each / card.memory_bytes_per_s)
    # vLLM with tensor parallelism splits weights and products among its GPUs.
    return per_token * spec.max_completion_length / (spec.vllm_tensor_parallel_size or 1)


def _forward_flops(architecture: Architecture, *, rows: int, width: int, scored: int) -> float:
    """Return the operations of one forward pass: two per weight and token, and causal attention.

    Those of a delta rule are left out.
    """
    layers = 2 * _layer_weights(architecture) * rows * width
    head = 2 * architecture.vocab_size * architecture.hidden_size * rows * scored
    heads = int(query_width(architecture) + output_width(architecture))
    full = sum(int(kind.num_hidden_layers) for kind in layer_kinds(architecture) if kind.linear is None)
    attention = full * heads * rows * width**2
    return layers + head + attention


def _layer_weights(architecture: Architecture) -> int:
    """Return the elements of all matrices of the decoder layers that one token is multiplied with."""
    found = 0
    for kind in layer_kinds(architecture):
        dense = sum(int(part.weights) for part in projections(kind))
        experts = 3 * kind.experts_per_token * kind.hidden_size * kind.expert_width if is_mixture(kind) else 0
        found += int(kind.num_hidden_layers) * int(dense + experts)
    return found
