"""The instants outside of forward and backward: load, rollout, score, reward, and the optimizer's step."""

from profiler.analytical.formulas.batch import Batch, micro_batch, one_row, unpadded
from profiler.analytical.formulas.decoder_layer import layer_without_gradient_bytes
from profiler.analytical.formulas.eager_attention import repeated_cache_bytes
from profiler.analytical.formulas.head import score_scratch
from profiler.analytical.formulas.quantities import Count, Truth, both, either, larger, where
from profiler.analytical.formulas.rollout import (
    growth_copy_bytes,
    kv_cache_bytes,
    kv_element_bytes,
    last_logits_bytes,
    sampling_bytes,
)
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.trained import (
    FLOAT32_BYTES,
    element_bytes,
    gradient_bytes,
    trained_element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.weights import autocast_cache_bytes, autocast_scoring_bytes, head_cast_bytes
from profiler.analytical.optimizers.optimizer_state import optimizer_scratch_bytes
from profiler.analytical.timeline.instants import Bytes, Instant, Moment, added, head_categories
from profiler.analytical.timeline.persistent import models, state_bytes, unfinished_gradient_bytes, untied_head_bytes
from profiler.analytical.timeline.training_pass import attention_mask_bytes
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Logprobs


def load_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """The models being made: with the head that is tied at the end, or with the adapters that come last.

    peft makes adapters in float32, whatever they become.
    """
    made = dict(models(spec, architecture))
    adapters = made.pop(Category.ADAPTERS)
    as_made = adapters // element_bytes(spec).adapter * FLOAT32_BYTES
    last = larger(as_made, untied_head_bytes(spec, architecture))
    made[Category.WORKSPACE] = last - adapters
    made[Category.ADAPTERS] = adapters
    return (Instant(phase=Phase.LOAD, moment=Moment.LOADED, sizes=made),)


def rollout_instants(spec: TrialKeys, architecture: DecoderShape, held: Bytes) -> tuple[Instant, ...]:
    """Prefill, the last growth of the cache, the last step's attention and draw; `held` is what stands."""
    rows, element, block = spec.generation_batch_size, kv_element_bytes(spec), block_of(spec)
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    held = added(held, {Category.GRADIENTS: unfinished_gradient_bytes(spec, architecture)})
    casts, head_cast, passing_cast = _generation_casts(spec, architecture)
    full = kv_cache_bytes(architecture, sequences=rows, tokens=tokens, element=element, block=block)
    growth = growth_copy_bytes(architecture, sequences=rows, tokens=tokens, element=element, block=block)
    prompts = Batch(
        rows=rows, prompt_tokens=spec.max_prompt_length, completion_tokens=0, scored_tokens=0, has_mask=False
    )
    prefilled = kv_cache_bytes(
        architecture, sequences=rows, tokens=spec.max_prompt_length, element=element, block=block
    )
    layer = layer_without_gradient_bytes(spec, architecture, prompts, adapted=True, autocast=False)
    moments: dict[Moment, Bytes] = {
        Moment.PREFILL: {
            Category.KV_CACHE: prefilled,
            Category.ACTIVATIONS: casts + layer,
            Category.INPUTS: attention_mask_bytes(spec, prompts),
        },
        Moment.GROWTH: {Category.KV_CACHE: full + growth, Category.ACTIVATIONS: casts},
        Moment.DECODING: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: casts + repeated_cache_bytes(spec, architecture, tokens=tokens),
        },
        Moment.SAMPLING: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: casts + head_cast,
            Category.LOGITS: sampling_bytes(spec, architecture),
        },
        Moment.LAST_LOGITS: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: passing_cast,
            Category.LOGITS: last_logits_bytes(spec, architecture),
        },
    }
    return tuple(
        Instant(
            phase=Phase.ROLLOUT,
            moment=moment,
            sizes=added(held, more),
            happens=passing_cast > 0 if moment is Moment.LAST_LOGITS else True,
        )
        for moment, more in moments.items()
    )


def _generation_casts(spec: TrialKeys, architecture: DecoderShape) -> tuple[Count, Count, Count]:
    """Copies of weights that autocast makes in a forward of generation.

    Those it keeps: of the layers and, at the end, of the head, of float32 weights. And that of the head which goes with
    its product, of float16 weights. With adapters there are none: `generate` goes around the forward that autocast
    wraps.
    """
    if not trains_everything(spec):
        return 0, 0, 0
    caches, head = element_bytes(spec).autocast_caches, head_cast_bytes(spec, architecture)
    return (
        where(caches, autocast_cache_bytes(spec, architecture), 0),
        where(caches, head, 0),
        where(caches, 0, head),
    )


def score_instants(spec: TrialKeys, architecture: DecoderShape, held: Bytes) -> tuple[Instant, ...]:
    """Log-probabilities without gradient: of the reference, or of the policy when trl keeps the old ones.

    trl keeps them when generations and optimizer steps are not aligned.
    """
    old_policy = spec.gradient_accumulation_steps % spec.steps_per_generation != 0
    happens = either(spec.beta != 0.0, old_policy)
    if happens is False:
        return ()
    batch = micro_batch(spec)
    alone = batch.rows == 1
    if spec.logprobs is Logprobs.SLICED:
        batch, alone = one_row(batch), True
    # A reference model's weights require gradients, though it is never trained: autocast keeps their copies too.
    casts = where(either(old_policy, trains_everything(spec)), autocast_scoring_bytes(spec, architecture), 0)
    gradients = unfinished_gradient_bytes(spec, architecture)
    held = added(held, {Category.GRADIENTS: gradients, Category.ACTIVATIONS: casts})

    def layer(rows: Batch) -> Bytes:
        passing = layer_without_gradient_bytes(spec, architecture, rows, adapted=old_policy, autocast=spec.bf16)
        return {Category.ACTIVATIONS: passing, Category.INPUTS: attention_mask_bytes(spec, rows)}

    head = head_categories(score_scratch(spec, architecture, batch))
    # A row that is alone is padded in one micro-batch and the longest in another.
    moments: tuple[tuple[Moment, Bytes, Truth], ...] = (
        (Moment.SCORE_LAYER, layer(batch), happens),
        (Moment.SCORE_LAYER, layer(unpadded(batch)), both(happens, alone)),
        (Moment.SCORE_HEAD, head, happens),
    )
    return tuple(
        Instant(phase=Phase.SCORE, moment=moment, sizes=added(held, more), happens=is_there)
        for moment, more, is_there in moments
    )


def reward_instant(spec: TrialKeys, architecture: DecoderShape, held: Bytes) -> Instant:
    """Rewards and advantages: a few numbers a row beside what stands, left out."""
    unfinished: Bytes = {Category.GRADIENTS: unfinished_gradient_bytes(spec, architecture)}
    return Instant(phase=Phase.REWARD, moment=Moment.REWARD, sizes=added(held, unfinished))


def optimizer_instant(spec: TrialKeys, architecture: DecoderShape, held: Bytes) -> Instant:
    """`step()` at its highest: gradients, states and scratch together."""
    tensors, element = trained_tensors(spec, architecture), trained_element_bytes(spec)
    step: Bytes = {
        Category.GRADIENTS: gradient_bytes(spec, architecture),
        Category.WORKSPACE: optimizer_scratch_bytes(spec.optim, tensors, element, block_of(spec)),
    }
    state: Bytes = {**held, Category.OPTIMIZER_STATE: state_bytes(spec, architecture)}
    return Instant(phase=Phase.OPTIMIZER, moment=Moment.STEP, sizes=added(state, step))
