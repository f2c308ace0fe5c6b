"""Instants of a trial with DeepSpeed: those of one GPU, with ZeRO's shards, buckets and gathered weights.

Gradients are copied into a bucket as backward makes them; a full bucket is reduced, for which it is copied once more.
"""

from dataclasses import replace

from profiler.analytical.formulas.quantities import (
    Count,
    Flag,
    both,
    either,
    larger,
    negated,
    smaller,
    where,
    whole_units,
)
from profiler.analytical.formulas.trained import BFLOAT16_BYTES, FLOAT32_BYTES, gradient_bytes, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.zero import (
    BUCKET,
    BUCKET_BYTES,
    adapter_weight_bytes,
    base_weight_bytes,
    embedding,
    gathered_bytes,
    is_offloaded,
    kept_gradient_bytes,
    master_bytes,
    offload_buffer_bytes,
    own,
    trained,
    whole,
)
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.step_instants import step_scratch_bytes
from profiler.analytical.timeline.zero_step import state_bytes, step_gradient_bytes
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import OffloadDevice

_FROM_THE_LAYERS = (
    InstantName.BACKWARD_NORM,
    InstantName.BACKWARD_LAYER,
    InstantName.REDUCTION,
    InstantName.BACKWARD_FIRST_LAYER,
    InstantName.BACKWARD_END,
)
"""Instants at which the first gradient of a backward has been made, in order."""


def partitioned(spec: TrialKeys, architecture: DecoderShape, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """Return the instants of one of the GPUs.

    Args:
        spec: The trial.
        architecture: Its model.
        instants: Those of one GPU alone.
    """
    found: list[Instant] = []
    last_layer: Instant | None = None
    for each in instants:
        if each.name is InstantName.LOADED:
            found += [] if spec.zero_stage == 3 else [each]
            found.append(_sharding(spec, architecture, each))
            continue
        if each.name is InstantName.ENGINE_START:
            found.append(_engine_start(spec, architecture, each))
            continue
        if each.name is InstantName.PREFILL and spec.offload_param_device is OffloadDevice.CPU:
            found.append(_gathering(spec, architecture, each))
        if each.name is InstantName.BACKWARD_LAYER:
            last_layer = each
        if each.name is InstantName.BACKWARD_FIRST_LAYER and last_layer is not None:
            found.append(_changed(spec, architecture, _reduction(spec, architecture, last_layer, each)))
        found.append(_changed(spec, architecture, each))
    return tuple(found)


def _sharding(spec: TrialKeys, architecture: DecoderShape, loaded: Instant) -> Instant:
    """Return the instant at which DeepSpeed takes the model over.

    Stage 0 makes states and gradients at once. Stages 1 and 2 copy the trained weights into one tensor, and then
    allocate the gradients of this GPU's part once. So does stage 3, before it allocates its buffers; it has sharded the
    model while it was made.
    """
    values = own(spec, architecture)
    sizes: dict[Category, Count] = {
        Category.WEIGHTS: base_weight_bytes(spec, architecture),
        Category.ADAPTERS: adapter_weight_bytes(spec, architecture),
        Category.REFERENCE: _reference(spec, loaded),
    }
    if spec.zero_stage == 0:
        sizes[Category.OPTIMIZER_STATE] = state_bytes(spec, architecture)
        sizes[Category.GRADIENTS] = (BFLOAT16_BYTES + FLOAT32_BYTES) * values
    elif spec.zero_stage == 3:
        sizes[Category.OPTIMIZER_STATE] = master_bytes(spec, architecture)
        buffers = BUCKET_BYTES + _kept(spec, architecture)
        sizes[Category.COMMUNICATION] = larger(buffers, master_bytes(spec, architecture))
    else:
        parts = 2 * master_bytes(spec, architecture)
        sizes[Category.COMMUNICATION] = larger(BFLOAT16_BYTES * trained(spec, architecture), parts)
    return Instant(phase=Phase.LOAD, name=InstantName.SHARDING, sizes=sizes)


def _engine_start(spec: TrialKeys, architecture: DecoderShape, alone: Instant) -> Instant:
    """Return the instant at which vLLM starts: before DeepSpeed takes the model over, so that the host has it.

    Stage 3 has sharded it while it was made.
    """
    sizes: dict[Category, Count] = {Category.ENGINE: alone.sizes[Category.ENGINE]}
    if spec.zero_stage == 3:
        sizes[Category.WEIGHTS] = base_weight_bytes(spec, architecture)
    return replace(alone, sizes=sizes)


def _gathering(spec: TrialKeys, architecture: DecoderShape, prefill: Instant) -> Instant:
    """Return the instant at which trl gathers all weights to generate, with a copy of this GPU's part from the host.

    By hand, qwen2.5-0.5b full on 4 GPUs: 494,032,768 x 2 B, and a quarter of it once more.

    Source: `GatheredParameters` in trl's `models/utils.py`, and `_allgather_params_coalesced` in DeepSpeed's
    `partition_parameters.py`: the copies live until the last weight is gathered.
    """
    there = (Category.INPUTS, Category.WORKSPACE)
    sizes = {category: size for category, size in prefill.sizes.items() if category in there}
    gathered = _changed(spec, architecture, replace(prefill, name=InstantName.GATHERING, sizes=sizes))
    own_part = BFLOAT16_BYTES * whole_units(whole(spec, architecture), spec.num_processes)
    more = {Category.COMMUNICATION: gathered.sizes[Category.COMMUNICATION] + own_part}
    return replace(gathered, sizes={**gathered.sizes, **more, Category.REFERENCE: _reference(spec, prefill)})


def _reduction(spec: TrialKeys, architecture: DecoderShape, last: Instant, first: Instant) -> Instant:
    """Return the first reduction of a full bucket, after the backward of as many layers as fill it.

    Activations are between those of the last layer's backward and of the first's, which comes last.
    """
    layers = architecture.num_hidden_layers
    done = _layers_of_a_bucket(spec, architecture)
    high, low = last.sizes.get(Category.ACTIVATIONS, 0), first.sizes.get(Category.ACTIVATIONS, 0)
    sizes = {**last.sizes, Category.ACTIVATIONS: high - (high - low) * smaller(done, layers) // layers}
    happens = both(done < layers, last.happens)
    return replace(last, name=InstantName.REDUCTION, sizes=sizes, happens=happens)


def _layers_of_a_bucket(spec: TrialKeys, architecture: DecoderShape) -> Count:
    layer = (trained(spec, architecture) - _outside_of_layers(spec, architecture)) // architecture.num_hidden_layers
    return (BUCKET - _head_in_bucket(spec, architecture)) // larger(layer, 1)


def _outside_of_layers(spec: TrialKeys, architecture: DecoderShape) -> Count:
    if not trains_everything(spec):
        return 0
    table = embedding(architecture)
    return table + where(architecture.tie_word_embeddings, 0, table)


def _head_in_bucket(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the parameters of an own LM head, the first to enter a bucket; 0 if it is larger than one."""
    if not trains_everything(spec):
        return 0
    table = embedding(architecture)
    return where(architecture.tie_word_embeddings, 0, where(table <= BUCKET, table, 0))


def _changed(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Instant:
    sizes: dict[Category, Count] = {
        **instant.sizes,
        Category.WEIGHTS: base_weight_bytes(spec, architecture),
        Category.ADAPTERS: adapter_weight_bytes(spec, architecture),
        Category.REFERENCE: _reference(spec, instant),
        Category.OPTIMIZER_STATE: state_bytes(spec, architecture),
        Category.GRADIENTS: _gradients(spec, architecture, instant),
        Category.COMMUNICATION: _communication(spec, architecture, instant),
    }
    if instant.name is InstantName.STEP:
        alone = instant.sizes[Category.WORKSPACE]
        sizes[Category.WORKSPACE] = alone - step_scratch_bytes(spec, architecture)
    return replace(instant, sizes=sizes)


def _reference(spec: TrialKeys, instant: Instant) -> Count:
    """Return the bytes of a reference model, which has an engine of its own: sharded in stage 3 only."""
    alone = instant.sizes.get(Category.REFERENCE, 0)
    return alone // spec.num_processes if spec.zero_stage == 3 else alone


def _gradients(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Count:
    if instant.name is InstantName.STEP:
        return step_gradient_bytes(spec, architecture)
    alone, every = instant.sizes.get(Category.GRADIENTS, 0), gradient_bytes(spec, architecture)
    if spec.zero_stage in (0, 1):
        at_the_end = instant.name is InstantName.BACKWARD_END and spec.zero_stage == 1
        return larger(alone, every + kept_gradient_bytes(spec, architecture)) if at_the_end else alone
    kept = _kept(spec, architecture)
    if instant.phase is not Phase.BACKWARD:
        return _between(spec, alone, kept)
    more = where(spec.gradient_accumulation_steps > 1, kept, 0) if spec.zero_stage == 2 else kept
    if instant.name is InstantName.BACKWARD_HEAD:
        return alone - where(spec.gradient_accumulation_steps > 1, every, 0) + more
    return more + _in_backward(spec, architecture, instant.name)


def _between(spec: TrialKeys, alone: Count, kept: Count) -> Count:
    """Return what is kept between backwards; stage 3 has one buffer for it from the beginning."""
    return kept if spec.zero_stage == 3 else where(alone > 0, kept, 0)


def _kept(spec: TrialKeys, architecture: DecoderShape) -> Count:
    if spec.zero_stage == 3:
        return 0 if is_offloaded(spec) else BFLOAT16_BYTES * own(spec, architecture)
    return kept_gradient_bytes(spec, architecture)


def _in_backward(spec: TrialKeys, architecture: DecoderShape, name: InstantName) -> Count:
    """Return gradients outside of the bucket: of a tied head until the end, of one too large, and what is kept."""
    table = BFLOAT16_BYTES * embedding(architecture) if trains_everything(spec) else 0
    kept = kept_gradient_bytes(spec, architecture) if spec.zero_stage == 2 else 0
    waiting = where(architecture.tie_word_embeddings, table, 0)
    too_large = where(table > BUCKET_BYTES, table, 0)
    match name:
        case InstantName.BACKWARD_NORM:
            return where(architecture.tie_word_embeddings, table, too_large)
        case InstantName.BACKWARD_FIRST_LAYER:
            return waiting + where(_keeps_before_the_end(spec, architecture), kept, 0)
        case InstantName.BACKWARD_END:
            is_kept = either(_keeps_before_the_end(spec, architecture), _outgrows_the_last_copy(spec, architecture))
            return too_large + where(is_kept, kept, 0)
    return waiting


def _fills_a_bucket(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    return _layers_of_a_bucket(spec, architecture) < architecture.num_hidden_layers


def _keeps_before_the_end(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    """Return whether a bucket before the last one has gradients of the first GPU's part."""
    table = embedding(architecture) if trains_everything(spec) else 0
    is_more = own(spec, architecture) > table + (trained(spec, architecture) - table) % BUCKET
    return both(is_more, _fills_a_bucket(spec, architecture))


def _outgrows_the_last_copy(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    """Return whether what stage 2 keeps of a backward is all from the last bucket, and larger than that bucket's copy.

    It is kept after the copy is freed, so the end of a backward is as large as the larger of both.
    """
    if spec.zero_stage != 2:
        return False
    is_larger = kept_gradient_bytes(spec, architecture) > _last_copy(spec, architecture)
    return both(negated(_keeps_before_the_end(spec, architecture)), is_larger)


def _communication(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Count:
    """Return the bucket, the copy that is reduced, the buffer of what is offloaded, and gathered weights."""
    buckets = _buckets(spec, architecture, instant) + offload_buffer_bytes(spec, architecture)
    return buckets + _gathered(spec, architecture, instant)


def _buckets(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Count:
    """Return the bucket and the copy of what is reduced.

    Stage 3 keeps its bucket. Stage 2 has one from the first gradient of a backward until its end, stage 1 from the
    first backward of a step until the end of the last, and stage 0 none: it copies all gradients at the end.
    """
    name = instant.name
    if spec.zero_stage == 0:
        everything = gradient_bytes(spec, architecture)
        return smaller(everything, BUCKET_BYTES) if name is InstantName.BACKWARD_END else 0
    copied = _copied(spec, architecture, name)
    if spec.zero_stage == 3:
        return BUCKET_BYTES + copied
    in_pass = instant.phase in (Phase.FORWARD, Phase.BACKWARD)
    if spec.zero_stage == 1 and in_pass and name not in _FROM_THE_LAYERS:
        return where(spec.gradient_accumulation_steps > 1, BUCKET_BYTES, 0)
    return BUCKET_BYTES + copied if name in _FROM_THE_LAYERS else 0


def _copied(spec: TrialKeys, architecture: DecoderShape, name: InstantName) -> Count:
    """Return the copy of what is reduced. Stage 1 reduces at the end only, out of the gradients themselves."""
    if spec.zero_stage == 1:
        return 0
    table = BFLOAT16_BYTES * embedding(architecture) if trains_everything(spec) else 0
    untied_too_large = where(architecture.tie_word_embeddings, 0, where(table > BUCKET_BYTES, table, 0))
    match name:
        case InstantName.BACKWARD_NORM:
            return untied_too_large
        case InstantName.REDUCTION:
            return BUCKET_BYTES
        case InstantName.BACKWARD_FIRST_LAYER:
            return where(_fills_a_bucket(spec, architecture), BUCKET_BYTES, 0)
        case InstantName.BACKWARD_END:
            return where(_outgrows_the_last_copy(spec, architecture), 0, _last_copy(spec, architecture))
    return 0


def _last_copy(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return what is reduced at the end: what is left of the layers, and the embedding in the same bucket or alone."""
    table = embedding(architecture) if trains_everything(spec) else 0
    rest = trained(spec, architecture) - table
    rest = rest - where(architecture.tie_word_embeddings, 0, where(table > BUCKET, table, 0))
    left = rest % BUCKET
    return BFLOAT16_BYTES * where(table > BUCKET, larger(left, table), where(left + table > BUCKET, left, left + table))


def _gathered(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Count:
    if spec.zero_stage != 3:
        return 0
    if instant.phase is Phase.ROLLOUT:
        return BFLOAT16_BYTES * _gathered_for_rollout(spec, architecture)
    if instant.name in (InstantName.REWARD, InstantName.STEP, InstantName.BACKWARD_END):
        return 0
    before_head = instant.phase is Phase.SCORE or instant.name is InstantName.FORWARD_LAYER
    return gathered_bytes(spec, architecture, at_head=instant.name in _AT_HEAD, before_head=before_head)


def _gathered_for_rollout(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the parameters that are gathered for a rollout: all, but for vLLM one tensor after the other.

    Adapters are merged for vLLM, for which all are gathered (`_iter_named_params` of `VLLMGeneration` in trl 1.16).
    """
    if spec.use_vllm and trains_everything(spec):
        return embedding(architecture)
    return whole(spec, architecture)


_AT_HEAD = (InstantName.FORWARD_HEAD, InstantName.BACKWARD_HEAD, InstantName.SCORE_HEAD)
