"""Instants outside forward and backward: load, rollout, score, rewards, and the optimizer step.

Rewards are of functions on the host, or of models on the GPU: trl loads one with a head of one value, in the type of
the policy, and runs it over all completions of a generation batch at once (`GRPOTrainer.__init__` and
`_calculate_rewards` in trl 1.16). It is on the GPU from the start.
"""

from dataclasses import replace
from functools import partial

from profiler.analytical.formulas.head import score_scratch
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes, repeated_cache_bytes
from profiler.analytical.formulas.layers.experts import decoding_bytes
from profiler.analytical.formulas.layers.layer_without_gradient import (
    expanded_cache_bytes,
    layer_without_gradient_bytes,
)
from profiler.analytical.formulas.layers.linear_attention import decoded_state_bytes
from profiler.analytical.formulas.models.parameters import is_mixture
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    all_gradients,
    element_bytes,
    stream_bytes,
    trained_element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import (
    autocast_cache_bytes,
    autocast_scoring_bytes,
    ends_autocast,
    head_cast_bytes,
    keeps_reference_model,
    reward_models,
)
from profiler.analytical.formulas.rollout import growth_copy, kv_cache, kv_element_bytes, last_logits, sampling
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    Terms,
    added,
    both,
    chosen,
    either,
    everywhere,
    holds,
    larger,
    where,
)
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    by_end,
    generated_micro_batch,
    is_padded,
    layer_kinds,
    one_row,
    unpadded,
    with_keys,
)
from profiler.analytical.formulas.vllm_memory import awake_engine, engine, is_served, sent_weights
from profiler.analytical.optimizers import optimizer_scratch
from profiler.analytical.timeline.instants import (
    Instant,
    InstantName,
    both_states,
    head_categories,
    models,
    state,
    unfinished_gradients,
    untied_head,
    workspace_in_step,
)
from profiler.analytical.timeline.tower_instants import (
    held_in_forward,
    inputs_held,
    inputs_without_gradient,
    of_prefill,
    without_gradient,
)
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs, Rollout, Tuning


def load_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instant at which the models are built.

    It includes the LM head that is tied at the end, or the adapters and their copy, which come last: the larger of
    both. peft creates adapters in float32, whatever type they get later.
    """
    made = dict(models(spec, architecture))
    adapters, head = made[Category.ADAPTERS], untied_head(spec, architecture)
    if spec.ref_adapter:  # which is among the models already
        head = Term(larger(head.size - made[Category.REFERENCE].size, 0), head.words)
    as_made = adapters.size // element_bytes(spec).adapter * FLOAT32_BYTES
    last = larger(as_made, head.size)
    # A critic is made after the policy and before the reference, and has no LM head.
    last = where(keeps_reference_model(spec), last, larger(last - made[Category.CRITIC].size, 0))
    wider = Term(last - adapters.size, lambda: "adapters in float32, as they are made")
    made[Category.WORKSPACE] = chosen(head.size >= as_made, Term(wider.size, head.words), wider)
    loaded: tuple[Instant, ...] = (Instant(phase=Phase.LOAD, name=InstantName.LOADED, terms=made),)
    if architecture.reward_models:
        all_models = {**models(spec, architecture), Category.REWARD_MODEL: reward_models(spec, architecture)}
        loaded += (Instant(phase=Phase.LOAD, name=InstantName.REWARD_LOADED, terms=all_models),)
    if not spec.use_vllm:
        return loaded
    # After the model is on the GPU, and awake (`VLLMGeneration._init_vllm` in trl 1.16), without its profile run.
    started = {**models(spec, architecture), Category.ENGINE: awake_engine(spec, architecture)}
    return (*loaded, Instant(phase=Phase.LOAD, name=InstantName.ENGINE_START, terms=started))


def engine_rollout_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants of a rollout by vLLM: the trainer's persistent memory, with what it sends or the engine.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout the rollout.
    """
    present = added(persistent, {Category.GRADIENTS: unfinished_gradients(spec, architecture)})
    sent, there = sent_weights(spec, architecture), engine(spec, architecture)
    sending: Terms = added(present, {Category.WORKSPACE: sent})
    return (
        Instant(phase=Phase.ROLLOUT, name=InstantName.SENDING, terms=sending, happens=is_served(spec)),
        Instant(phase=Phase.ROLLOUT, name=InstantName.ENGINE, terms=added(present, {Category.ENGINE: there})),
    )


def rollout_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants of a rollout: prefill, the last growth of the cache, the last attention, sampling.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout the rollout.
    """
    rows, element, block = spec.generation_batch_size, kv_element_bytes(spec), block_of(spec)
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    persistent = added(persistent, {Category.GRADIENTS: unfinished_gradients(spec, architecture)})
    casts, head_cast, transient_cast = generation_casts(spec, architecture)
    full = kv_cache(architecture, sequences=rows, tokens=tokens, element=element, block=block, slides=True)
    growth = growth_copy(architecture, sequences=rows, tokens=tokens, element=element, block=block)
    prompts = Batch(
        rows=rows, prompt_tokens=spec.max_prompt_length, completion_tokens=0, scored_tokens=0, has_mask=False
    )

    def prefill(up_to: DecoderShape) -> Terms:
        """Return what there is in the last layer of a model."""
        layer = Term(
            layer_without_gradient_bytes(spec, up_to, of_prefill(up_to, prompts), adapted=True, autocast=False),
            lambda: f"one layer of {rows} prompts",
        )
        return {
            Category.KV_CACHE: kv_cache(
                up_to, sequences=rows, tokens=spec.max_prompt_length, element=element, block=block
            ),
            Category.ACTIVATIONS: layer.including(casts),
            Category.INPUTS: Term(attention_mask_bytes(spec, architecture, prompts)),
        }

    held = inputs_held(spec, architecture, prompts, autocast=False, has_cache=True)
    *others, whole = (prefill(up_to) for up_to in by_end(architecture))
    instants: dict[InstantName, Terms] = {
        **without_gradient(spec, architecture, prompts, InstantName.PREFILL_TOWER, adapted=True, autocast=False),
        **inputs_without_gradient(
            spec, architecture, prompts, InstantName.PREFILL_INPUTS, adapted=True, autocast=False
        ),
        InstantName.PREFILL: added(whole, held_in_forward(spec, architecture, prompts), held),
        InstantName.GROWTH: {Category.KV_CACHE: full.plus(growth), Category.ACTIVATIONS: casts},
        InstantName.DECODING: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: decoding(spec, architecture, tokens).including(casts),
        },
        InstantName.SAMPLING: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: casts.including(head_cast),
            Category.LOGITS: sampling(spec, architecture),
        },
        InstantName.LAST_LOGITS: {
            Category.KV_CACHE: full,
            Category.ACTIVATIONS: transient_cast,
            Category.LOGITS: last_logits(spec, architecture),
        },
    }
    named = (*((InstantName.PREFILL, added(more, held)) for more in others), *instants.items())
    return tuple(
        Instant(
            phase=Phase.ROLLOUT,
            name=name,
            terms=added(persistent, more),
            happens=transient_cast.size > 0 if name is InstantName.LAST_LOGITS else True,
        )
        for name, more in named
    )


def decoding(spec: TrialKeys, architecture: DecoderShape, tokens: Count) -> Term:
    """Return what one layer needs to decode a token: repeated keys and values, or copies of its experts' weights."""
    made = expanded_cache_bytes(spec, architecture, tokens=tokens)
    if architecture.latent is None:
        made = repeated_cache_bytes(spec, architecture, tokens=tokens)
    repeated = Term(made, lambda: "a layer's keys and values for every head")
    rows = spec.generation_batch_size
    decodes = holds(spec.rollout, lambda rollout: rollout is Rollout.GENERATE)
    if (linear := layer_kinds(architecture)[0].linear) is not None:
        states = Term(decoded_state_bytes(spec, linear), lambda: f"3 states of {rows} rows").only_if(decodes)
        repeated = chosen(states.size > repeated.size, states, repeated)
    if not is_mixture(architecture):
        return repeated
    copies = Term(
        decoding_bytes(spec, architecture, rows),
        lambda: f"weights of the experts of {rows * architecture.experts_per_token} pairs",
    ).only_if(decodes)
    return chosen(copies.size > repeated.size, copies, repeated)


def generation_casts(spec: TrialKeys, architecture: DecoderShape) -> tuple[Term, Term, Term]:
    """Return the copies of weights that autocast makes in a forward of generation.

    The first two are kept: the copies of float32 weights of the layers, and that of the head, made at the end. The
    third, of a head in float16, is freed after its product. With adapters there are no copies: `generate` does not call
    the forward that autocast wraps.
    """
    if not trains_everything(spec):
        return NOTHING, NOTHING, NOTHING
    caches, head = element_bytes(spec).autocast_caches, head_cast_bytes(spec, architecture)
    kept = Term(autocast_cache_bytes(spec, architecture), lambda: "copies that autocast keeps")
    return (
        kept.only_if(caches),
        Term(where(caches, head, 0)),
        Term(where(caches, 0, head), lambda: "the LM head's copy under autocast"),
    )


def score_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants at which log-probabilities are computed without gradient.

    They are those of the reference, or the old ones of the policy. trl computes these if generations and optimizer
    steps are not aligned, or if vLLM generates (`vllm_importance_sampling_correction`, on by default); and
    `RLOOTrainer` always.
    """
    unaligned = spec.gradient_accumulation_steps % spec.steps_per_generation != 0
    old_policy: Flag = True if spec.recipe is Recipe.RLOO else either(spec.use_vllm, unaligned)
    happens = either(spec.beta != 0.0, old_policy)
    if happens is False:
        return ()
    gradients: Terms = {Category.GRADIENTS: unfinished_gradients(spec, architecture)}
    return scored_without_gradient(
        spec,
        architecture,
        added(persistent, gradients),
        generated_micro_batch(spec),
        adapted=either(old_policy, spec.ref_adapter),
        # A reference model's weights require gradients, though it is never trained.
        keeps_casts=trains_everything(spec),
        happens=happens,
    )


def scored_without_gradient(
    spec: TrialKeys,
    architecture: DecoderShape,
    persistent: Terms,
    batch: Batch,
    *,
    adapted: Flag = True,
    keeps_casts: Flag = True,
    happens: Flag = True,
) -> tuple[Instant, ...]:
    """Return the instants of log-probabilities of one micro-batch without gradient.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout.
        batch: The micro-batch.
        adapted: Whether adapters are used.
        keeps_casts: Whether autocast keeps its copies of the weights, as it does of adapters.
        happens: Whether there are such instants.
    """
    alone = batch.rows == 1
    if spec.logprobs is Logprobs.SLICED:
        batch, alone = one_row(batch), True
    casts = where(either(adapted, keeps_casts), autocast_scoring_bytes(spec, architecture), 0)
    is_over = ends_autocast(spec) or spec.logprobs.label_loss is not None
    under = added(persistent, {Category.ACTIVATIONS: Term(casts)})

    def layer(rows: Batch) -> Terms:
        more: Terms = {
            Category.ACTIVATIONS: layer_without_gradient(spec, architecture, rows, adapted=adapted),
            Category.INPUTS: Term(attention_mask_bytes(spec, architecture, rows)),
        }
        held = inputs_held(spec, architecture, rows, autocast=spec.mixed_precision)
        return added(more, held_in_forward(spec, architecture, rows), held)

    head, in_model = (
        head_categories(score_scratch(spec, architecture, batch, in_model=inside)) for inside in (False, True)
    )
    tower = without_gradient(
        spec, architecture, batch, InstantName.SCORE_TOWER, adapted=adapted, autocast=spec.mixed_precision
    )
    tower |= inputs_without_gradient(
        spec, architecture, batch, InstantName.SCORE_INPUTS, adapted=adapted, autocast=spec.mixed_precision
    )
    # A micro-batch of one row has a padded row at one time and the longest row at another.
    instants: tuple[tuple[InstantName, Terms, Flag], ...] = (
        *((name, more, happens) for name, more in tower.items()),
        (InstantName.SCORE_LAYER, layer(batch), happens),
        (InstantName.SCORE_LAYER, layer(unpadded(batch)), both(happens, alone)),
        (InstantName.SCORE_HEAD, in_model if is_over or spec.logprobs.pair_loss else head, happens),
        *(((InstantName.SCORE_LOSS, head, happens),) if spec.logprobs.pair_loss else ()),
    )
    found = tuple(
        Instant(phase=Phase.SCORE, name=name, terms=added(under, more), happens=is_there)
        for name, more, is_there in instants
    )
    return (*found, replace(found[-1], terms=added(persistent, head))) if is_over else found


def layer_without_gradient(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, adapted: Flag) -> Term:
    """Return the largest peak of a layer that saves nothing, under autocast where the trial has it."""
    sizes = (
        layer_without_gradient_bytes(spec, kind, batch, adapted=adapted, autocast=spec.mixed_precision)
        for kind in layer_kinds(architecture)
    )
    size = larger(0, *sizes)
    return Term(size, lambda: "one layer: 4 x T x H and the MLP")


def optimizer_instant(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> Instant:
    """Return the peak of `step()`: gradients, state and scratch together."""
    terms: Terms = {
        **persistent,
        Category.OPTIMIZER_STATE: both_states(spec, architecture, state(spec, architecture)),
        Category.GRADIENTS: all_gradients(spec, architecture),
        Category.WORKSPACE: workspace_in_step(persistent[Category.WORKSPACE], step_scratch(spec, architecture)),
    }
    return Instant(phase=Phase.OPTIMIZER, name=InstantName.STEP, terms=terms)


def step_scratch(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the peak of what exists only during `step()`. torch updates tensors of each type after one another."""
    tensors, sizes = trained_tensors(spec, architecture), element_bytes(spec)
    scratch = partial(optimizer_scratch, spec.optim, block=block_of(spec), weight_decay=spec.weight_decay)
    whole = scratch(tensors, trained_element_bytes(spec))
    if not trains_everything(spec) or everywhere(sizes.outer == sizes.weight):
        return whole
    wide = scratch([group for group in tensors if group.is_outer], sizes.outer).size
    narrow = scratch([group for group in tensors if not group.is_outer], sizes.weight).size
    return Term(where(sizes.outer == sizes.weight, whole.size, larger(wide, narrow)), whole.words)


_INPUTS = 2
"""Ids and attention mask."""


def reward_instants(spec: TrialKeys, architecture: DecoderShape, persistent: Terms) -> tuple[Instant, ...]:
    """Return the instants of rewards and advantages next to `persistent`.

    The size of these, a few numbers per row, is left out.
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
    layer = layer_without_gradient(whole, model, batch, adapted=False).size
    casts = where(element_bytes(whole).autocast_caches, autocast_cache_bytes(whole, model), 0)
    block, element = block_of(spec), stream_bytes(whole, autocast=spec.mixed_precision)
    inputs = _INPUTS * block(batch.positions * INT64_BYTES) + attention_mask_bytes(spec, model, batch)
    cache = kv_cache(model, sequences=rows, tokens=batch.width, element=element, block=block)
    more: Terms = {
        Category.KV_CACHE: Term(cache.size, lambda: f"all layers, {rows} x {batch.width} tokens"),
        Category.ACTIVATIONS: Term(casts + layer, lambda: f"one layer of {rows} completions"),
        Category.INPUTS: Term(inputs),
    }
    return Instant(phase=Phase.REWARD, name=InstantName.REWARD_MODEL, terms=added(persistent, more))
