"""Instants of rewards: those of functions on the host, and those of models on the GPU.

trl loads a reward model with a head of one value, in the type of the policy, and runs it over all completions of a
generation batch at once (`GRPOTrainer.__init__` and `_calculate_rewards` in trl 1.16). It is on the GPU from the start.
"""

from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes
from profiler.analytical.formulas.models.trained import INT64_BYTES, element_bytes, stream_bytes
from profiler.analytical.formulas.models.weights import autocast_cache_bytes
from profiler.analytical.formulas.rollout import kv_cache
from profiler.analytical.formulas.sizes.batch import Batch, is_padded
from profiler.analytical.formulas.sizes.quantities import where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.term import Term, Terms, added
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, with_keys
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.training_pass import attention_mask_bytes
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Tuning

_INPUTS = 2
"""Ids and attention mask."""


def reward_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants of rewards and advantages. The size of these, a few numbers per row, is left out.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout the rewards.
    """
    on_the_host = Instant(phase=Phase.REWARD, name=InstantName.REWARD, terms=persistent)
    return (on_the_host, *(_scored_by(spec, model, persistent) for model in architecture.reward_models))


def _scored_by(spec: TrialKeys, model: DecoderShape, persistent: Terms) -> Instant:
    """Return the largest instant of a reward model: in the last layer's MLP, with keys and values of all layers.

    transformers caches them, because nothing says that nothing is generated. Prompts and completions are taken to have
    as many tokens as for the policy.
    """
    # trl gives its quantisation and its adapters to the policy only.
    whole = with_keys(spec, tuning=Tuning.FULL, lora_rank=None, lora_target_modules=None)
    rows, longest = spec.generation_batch_size, spec.max_completion_length
    batch = Batch(
        rows=rows,
        prompt_tokens=spec.max_prompt_length,
        completion_tokens=longest,
        scored_tokens=0,
        has_mask=is_padded(spec, rows=rows, longest=longest),
    )
    layer = layer_without_gradient_bytes(whole, model, batch, adapted=False, autocast=spec.bf16)
    casts = where(element_bytes(whole).autocast_caches, autocast_cache_bytes(whole, model), 0)
    block, element = block_of(spec), stream_bytes(whole, autocast=spec.bf16)
    inputs = _INPUTS * block(batch.positions * INT64_BYTES) + attention_mask_bytes(spec, batch)
    cache = kv_cache(model, sequences=rows, tokens=batch.width, element=element, block=block)
    more: Terms = {
        Category.KV_CACHE: Term(cache.size, lambda: f"all layers, {rows} x {batch.width} tokens"),
        Category.ACTIVATIONS: Term(casts + layer, lambda: f"one layer of {rows} completions"),
        Category.INPUTS: Term(inputs),
    }
    return Instant(phase=Phase.REWARD, name=InstantName.REWARD_MODEL, terms=added(persistent, more))
