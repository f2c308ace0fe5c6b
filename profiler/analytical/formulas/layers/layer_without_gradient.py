"""Memory of one decoder layer without gradient: in generation, for scores, and in a checkpointed forward."""

from profiler.analytical.formulas.layers.decoder_layer import (
    adapted_parts,
    latent_heads_bytes,
    saved_after_attention_bytes,
    saves_output,
)
from profiler.analytical.formulas.layers.eager_attention import (
    copies_output,
    drops_inputs,
    held_scores_bytes,
    input_mask_bytes,
    query_side_bytes,
    scores_forward_bytes,
)
from profiler.analytical.formulas.layers.experts import added_bytes, experts_without_gradient_bytes, merged_bytes
from profiler.analytical.formulas.layers.linear_attention import linear_without_gradient_bytes
from profiler.analytical.formulas.models.parameters import (
    is_mixture,
    key_width,
    layers_of,
    mlp_width,
    output_width,
    query_width,
)
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    linear_output_bytes,
    stream_bytes,
)
from profiler.analytical.formulas.models.weights import widened_bytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, larger, negated, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, ItemisedKeys, TrialKeys
from profiler.domain.trials.trial import Tuning


def layer_without_gradient_bytes(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, adapted: Flag, autocast: Flag
) -> Count:
    """Return the peak of the last decoder layer if it saves nothing.

    The peak is in the MLP, in the rotary embedding, or in attention that makes its scores. There are four [T, H]: the
    embeddings and the input of the layer, which the loop over layers still references, the residual stream and the
    input of the MLP. The MLP adds three [T, I]: the activated gate, up and their product, and a fourth, the gate, where
    one layer computes gate and up; or with adapters `_adapted_mlp_bytes`, if that is more. Eager attention also returns
    its scores to the layer, which keeps them to its end.

    By hand, T = 10, H = 8, I = 16, bfloat16, no adapters: 10 x (4 x 8 + 3 x 16) x 2 = 1,600 B.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    values = batch.positions * mlp_width(architecture)
    inner = (4 if layers_of(architecture).has_fused_mlp else 3) * block(
        values * linear_output_bytes(spec, autocast=autocast)
    )
    if spec.tuning is Tuning.QLORA:
        inner = larger(inner, _widened_mlp_bytes(spec, architecture, batch.positions, autocast=autocast))
    if spec.tuning is not Tuning.FULL:
        inner = where(
            adapted, larger(inner, _adapted_mlp_bytes(spec, architecture, batch.positions, autocast=autocast)), inner
        )
    if is_mixture(architecture):
        experts = _experts_without_gradient_bytes(
            spec, architecture, batch.positions, adapted=adapted, autocast=autocast
        )
        inner = larger(inner + added_bytes(spec, architecture, batch.positions), experts)
    hidden = batch.positions * architecture.hidden_size
    embeddings, stream = block(hidden * sizes.outer), block(hidden * stream_bytes(spec, autocast=autocast))
    # Without a norm before them, the residual stream is the input of attention and of the MLP.
    normed = stream if layers_of(architecture).has_input_norms else 0
    mlp = embeddings + 2 * stream + normed + inner + held_scores_bytes(spec, architecture, batch, autocast=autocast)
    if architecture.linear is not None:
        rule = linear_without_gradient_bytes(spec, architecture, batch, autocast=autocast)
        return larger(mlp, embeddings + stream + normed + rule)
    transient = scores_forward_bytes(spec, architecture, batch, autocast=autocast)
    normed = normed + _output_gate_bytes(spec, architecture, batch.positions, autocast=autocast)
    attention = embeddings + stream + normed + query_side_bytes(spec, architecture, batch, autocast=autocast)
    rotary = rotary_bytes(spec, architecture, batch, autocast=autocast)
    if architecture.latent is not None:
        rotary = latent_bytes(spec, architecture, batch, adapted=adapted, autocast=autocast)
    rotary = embeddings + stream + normed + rotary
    peak = larger(mlp, rotary, where(transient > 0, attention + transient, 0))
    # A replay has the products of o as stages of its own.
    if architecture.latent is not None or spec.tuning is Tuning.FULL or isinstance(spec, ItemisedKeys):
        return peak
    made = where(adapted, _adapted_output_bytes(spec, architecture, batch, autocast=autocast), 0)
    return larger(peak, embeddings + stream + normed + made)


def _output_gate_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count, *, autocast: Flag) -> Count:
    """Return the gate of attention's output, which is there from its beginning to its end; 0 without one."""
    if not layers_of(architecture).gates_output:
        return 0
    return block_of(spec)(positions * query_width(architecture) * linear_output_bytes(spec, autocast=autocast))


def _adapted_output_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Count:
    """Return what attention needs at the adapter of o: queries, output, the copy of that, and both results; 0 without.

    Keys and values of a rollout are in its cache; scores have no cache, and autocast.

    By hand, T = 10, 2 query heads of 4, H = 8, float32 adapters over bfloat16: 10 x (2 x 8 x 2 + 8 x 4 + 8 x 2 +
    2 x 8 x 4) B.
    """
    if not adapted_parts(spec, architecture, ("o_proj",)):
        return 0
    block, given = block_of(spec), linear_output_bytes(spec, autocast=autocast)
    values, hidden = batch.positions * query_width(architecture), batch.positions * architecture.hidden_size
    made = larger(
        _narrowed_bytes(spec, values, autocast=autocast),
        adapter_result_bytes(spec, hidden, autocast=autocast),
        _dropping_bytes(spec, values, given, autocast=autocast),
    )
    keys = where(autocast, 2 * block(batch.positions * key_width(architecture) * given), 0)
    there = 2 * block(values * given) + keys + adapter_input_bytes(spec, values, given, autocast=autocast)
    return there + block(hidden * given) + made


def _adapted_mlp_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count, *, autocast: Flag) -> Count:
    """Return the bytes of an MLP's tensors without gradient at its adapters: the largest of three instants.

    An adapter casts its input to its own type (`adapter_input_bytes`), and the copy stays until the adapter ends.

    - At gate: the gate, and the result of the adapter before and after scaling (`adapter_result_bytes`).
    - At up, or where one layer computes gate and up: the activated gate too.
    - At down: the product, the result of the layer, and that of the adapter; or under autocast, before that, the copy
      of the input cast back. Where one layer computes gate and up, the layer still holds them (`Phi3MLP.forward`).

    By hand, T = 10, H = 8, I = 16, LoRA over bfloat16, only gate adapted, without autocast: 10 x 8 x 4 B, 10 x 16 x 2 B
    and 2 x 10 x 16 x 4 B, 1,920 B.

    Source: `Linear.forward` in peft's `lora/layer.py`, peft 0.21.
    """
    block, given = block_of(spec), linear_output_bytes(spec, autocast=autocast)
    hidden, values = positions * architecture.hidden_size, positions * mlp_width(architecture)
    stream = stream_bytes(spec, autocast=autocast)
    copy = adapter_input_bytes(spec, hidden, stream, autocast=autocast)
    fused = layers_of(architecture).has_fused_mlp
    dropped = _dropping_bytes(spec, hidden, stream, autocast=autocast)
    result = larger(adapter_result_bytes(spec, values, autocast=autocast), dropped)
    at_gate = copy + block(values * given) + result
    adapted = 2 * values if fused else values
    at_up = copy + 2 * block(values * given) + larger(adapter_result_bytes(spec, adapted, autocast=autocast), dropped)
    wide = adapter_input_bytes(spec, values, given, autocast=autocast)
    back = _narrowed_bytes(spec, values, autocast=autocast)
    result = larger(back, adapter_result_bytes(spec, hidden, autocast=autocast))
    result = larger(result, _dropping_bytes(spec, values, given, autocast=autocast))
    held = block(2 * values * given) if fused else 0
    at_down = block(values * given) + wide + block(hidden * given) + result + held
    return larger(
        0,
        at_gate if adapted_parts(spec, architecture, ("gate_proj",)) else 0,
        at_up if adapted_parts(spec, architecture, ("up_proj", "gate_up_proj")) else 0,
        at_down if adapted_parts(spec, architecture, ("down_proj",)) else 0,
    )


def _narrowed_bytes(spec: TrialKeys, values: Count, *, autocast: Flag) -> Count:
    """Return what autocast makes of the float32 input of an adapter, in the compute type; 0 without."""
    sizes = element_bytes(spec)
    return where(both(autocast, sizes.adapter > sizes.compute), block_of(spec)(values * sizes.compute), 0)


def _dropping_bytes(spec: TrialKeys, values: Count, given: Count, *, autocast: Flag) -> Count:
    """Return what dropout of an adapter's input adds: its result, and the mask or the result that autocast casts.

    The input is the copy of `adapter_input_bytes` where there is one. 0 without dropout. By hand, 160 values of float32
    adapters under autocast: 160 x (4 + 2) = 960 B, without autocast 160 x (4 + 1) = 800 B.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    element = where(autocast, given, sizes.adapter) if spec.tuning is Tuning.QLORA else sizes.adapter
    narrowed = both(autocast, element > sizes.compute)
    added = where(narrowed, block(values * sizes.compute), block(values))
    return where(drops_inputs(spec), block(values * element) + added, 0)


def _widened_mlp_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count, *, autocast: Flag) -> Count:
    """Return the bytes of an MLP's tensors at the larger of two products that widen a 4-bit weight.

    At up the activated gate and the result, or both halves of one result; at down the product and the result.
    """
    block, given = block_of(spec), linear_output_bytes(spec, autocast=autocast)
    hidden, inner = architecture.hidden_size, mlp_width(architecture)
    fused = layers_of(architecture).has_fused_mlp
    one, wide = inner * hidden, block(positions * inner * given)
    at_up = 2 * wide + widened_bytes(spec, 2 * one if fused else one, positions, autocast=autocast)
    held = block(2 * positions * inner * given) if fused else 0
    at_down = wide + block(positions * hidden * given) + widened_bytes(spec, one, positions, autocast=autocast) + held
    return larger(at_up, at_down)


def adapter_input_bytes(spec: TrialKeys, values: Count, given: Count, *, autocast: Flag) -> Count:
    """Return the bytes of the copy of an adapter's input in the adapter's type; 0 if the input has that type.

    Float32 adapters copy inputs of `given` bytes if these are narrower. Bfloat16 ones copy inputs of any other type;
    over 4-bit weights only without autocast, which else casts for the first product alone (`Linear4bit.forward` in
    peft's `bnb.py`).
    """
    sizes = element_bytes(spec)
    casts = sizes.adapter_casts if has_bfloat16_adapters(spec) else given < sizes.adapter
    if spec.tuning is Tuning.QLORA:
        casts = both(negated(autocast), casts)
    return where(casts, block_of(spec)(values * sizes.adapter), 0)


def adapter_result_bytes(spec: TrialKeys, values: Count, *, autocast: Flag) -> Count:
    """Return the bytes of the result of an adapter: before and after scaling, or scaled and the sum, if that is more.

    In the type of the adapter or, under autocast, in the compute type; the sum has the wider type of both. Over 4-bit
    weights without autocast the scaled result is cast to the type of the layer first (`Linear4bit.forward` in peft's
    `bnb.py`).
    """
    sizes, block = element_bytes(spec), block_of(spec)
    given = linear_output_bytes(spec, autocast=autocast)
    low = where(autocast, sizes.compute, sizes.adapter)
    scaled = where(autocast, low, given) if spec.tuning is Tuning.QLORA else low
    return larger(2 * block(values * low), block(values * scaled) + block(values * larger(given, scaled)))


def _experts_without_gradient_bytes(
    spec: TrialKeys, architecture: DecoderShape, positions: Count, *, adapted: Flag, autocast: Flag
) -> Count:
    """Return the peak of the experts, with their adapters or without."""
    alone = experts_without_gradient_bytes(spec, architecture, positions, autocast=autocast)
    return where(adapted, alone + merged_bytes(spec, architecture), alone)


def latent_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, adapted: Flag, autocast: Flag) -> Count:
    """Return what latent attention needs at its end: all that it has made, and the result of o or a copy of the output.

    With the result of o what its adapter needs. Per token the queries twice, before and after their parts with
    positions are joined to the others, and those parts; the vector of keys and values as it is made and normalised,
    with and without positions; the product that is made of it, the keys, and the output. Or, if that is more, what the
    adapter of this product needs, when keys and output are not there. 0 for other attention.

    By hand, T = 10, 2 heads of 4 + 2, values of 3, rank 4, H = 8, bfloat16, no adapters: 10 x (2 x 12 + 4 + 2 x (4 + 2)
    + 14 + 12 + 6 + 8) x 2 = 1,600 B.

    Source: `forward` and `expand_kv` of transformers' `DeepseekV3Attention`, whose names live until it returns.
    """
    latent, positions, block = architecture.latent, batch.positions, block_of(spec)
    if latent is None:
        return 0
    given, hidden = linear_output_bytes(spec, autocast=autocast), positions * architecture.hidden_size
    heads = positions * architecture.num_attention_heads

    def product(values: Count) -> Count:
        return block(values * given)

    compressed = latent.kv_lora_rank + latent.qk_rope_head_dim
    before = 2 * product(heads * latent.head_dim) + product(heads * latent.qk_rope_head_dim)
    before = before + 2 * product(positions * compressed) + product(heads * latent.expanded_dim)
    output = heads * latent.v_head_dim
    at_end = product(heads * latent.head_dim) + product(output) + product(hidden)
    copied = where(copies_output(spec, architecture, batch), product(output), 0)
    at_copy = product(heads * latent.head_dim) + product(output) + copied

    def in_layer(name: str, inputs: Count, results: Count) -> Count:
        """Return what a linear layer makes in addition to its result, for a 4-bit weight or an adapter."""
        weight = inputs // positions * (results // positions)
        widened = widened_bytes(spec, weight, positions, autocast=autocast) if spec.tuning is Tuning.QLORA else 0
        if not adapted_parts(spec, architecture, (name,)):
            return widened
        made = larger(
            _narrowed_bytes(spec, inputs, autocast=autocast),
            adapter_result_bytes(spec, results, autocast=autocast),
            _dropping_bytes(spec, inputs, given, autocast=autocast),
        )
        there = adapter_input_bytes(spec, inputs, given, autocast=autocast) + made
        return larger(widened, where(adapted, there, 0))

    at_end = larger(at_end + in_layer("o_proj", output, hidden), at_copy)
    at_product = in_layer("kv_b_proj", positions * latent.kv_lora_rank, heads * latent.expanded_dim)
    return before + larger(at_end, at_product)


def latent_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what latent attention needs in training in addition to what its layer saves until the end of the MLP.

    As without gradient, less what is saved. The output is saved, so a copy of it is there too; and the input of o's
    adapter is saved in the compute type, and is there together with the adapter's results.

    By hand, T = 10, as in `latent_bytes`, I = 16, full: 1,600 - 880 B of heads, and less 960 + 520 + 480 B.
    """
    made = latent_bytes(spec, architecture, batch, adapted=True, autocast=spec.mixed_precision)
    made = made - latent_heads_bytes(spec, architecture, batch)
    output = block_of(spec)(batch.positions * output_width(architecture) * element_bytes(spec).compute)
    is_unsaved = both(copies_output(spec, architecture, batch), negated(saves_output(spec, architecture)))
    made = made + where(is_unsaved, output, 0)
    if adapted_parts(spec, architecture, ("o_proj",)):
        values = batch.positions * architecture.hidden_size
        made = made + adapter_result_bytes(spec, values, autocast=spec.mixed_precision)
    return made - saved_after_attention_bytes(spec, architecture, batch.positions)


def expanded_cache_bytes(spec: TrialKeys, architecture: DecoderShape, *, tokens: Count) -> Count:
    """Return what a layer of latent attention makes of its whole cache to decode one token; 0 for other attention.

    The product of which keys and values are parts, and the keys; or the product and what its adapter needs.

    By hand, 3 sequences of 10 tokens, 2 heads of 4 + 2, values of 3, bfloat16, no adapters: 30 x (14 + 12) x 2 B.
    """
    latent, block = architecture.latent, block_of(spec)
    if latent is None:
        return 0
    present, element = spec.generation_batch_size * tokens, linear_output_bytes(spec, autocast=False)
    heads = present * architecture.num_attention_heads
    made = heads * latent.expanded_dim
    more = block(heads * latent.head_dim * element)
    if adapted_parts(spec, architecture, ("kv_b_proj",)):
        copy = adapter_input_bytes(spec, present * latent.kv_lora_rank, element, autocast=False)
        more = larger(more, copy + adapter_result_bytes(spec, made, autocast=False))
    return block(made * element) + more


def rotary_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Count:
    """Return what the rotary embedding of the queries needs: keys, values, and four tensors of queries.

    These are the queries, their product with the cosine, their rotated halves, and the product of these with the sine.
    The products have the type of the residual stream, as have queries and keys after a norm of their own. Or if it is
    more, that norm: the queries, these in float32, and their product; keys and values are not there, or all are.

    By hand, T = 10, 2 query heads and 1 key head of 4 in bfloat16: 10 x (4 x 8 + 2 x 4) x 2 = 800 B.

    Liger rotates queries and keys in place (`LigerRopeFunction`), which needs less than the MLP: 0.

    Source: `apply_rotary_pos_emb` in transformers' models.
    """
    if spec.use_liger_kernel:
        return 0
    block, stream = block_of(spec), stream_bytes(spec, autocast=autocast)
    given = linear_output_bytes(spec, autocast=autocast)
    element = where(architecture.qk_norm, stream, given)
    queries, keys = batch.positions * query_width(architecture), batch.positions * key_width(architecture)
    rotated = block(queries * element) + 2 * block(queries * stream)
    if layers_of(architecture).gates_output:
        # At the end of attention there are the output, the sigmoid of the gate, and their product.
        rotated = larger(rotated, 3 * block(queries * given))
    rotated = rotated + block(queries * element) + block(keys * element) + block(keys * given)
    normed = block(queries * given) + 2 * block(queries * FLOAT32_BYTES)
    if layers_of(architecture).normalises_after_values:
        normed = normed + 2 * block(keys * given)
    # A replay that requested it here would put it among what is there with keys.
    is_stage = not isinstance(spec, ItemisedKeys)
    return where(both(both(is_stage, architecture.qk_norm), normed > rotated), normed, rotated)


def recomputed_up_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what recomputation needs at up in addition to what the layer saves and to tensors of [T, H].

    The larger of two: up's 4-bit weight, widened; or the copy of the input of up's adapter, and the adapter's results.
    Liger has made the product when it saves gate and up, which ends it (`LigerSiLUMulFunction.forward`). In addition
    the gradient of the product, which a frozen down in 4 bits has by then.

    By hand, T = 10, I = 16 in bfloat16, 4-bit weights, a frozen down, Liger: 2 x 320 B.
    """
    values, hidden = positions * mlp_width(architecture), architecture.hidden_size
    fused = layers_of(architecture).has_fused_mlp
    made: Count = 0
    waiting: Count = 0
    if spec.tuning is Tuning.QLORA:
        gradient = block_of(spec)(values * linear_output_bytes(spec))
        waiting = 0 if adapted_parts(spec, architecture, ("down_proj",)) else gradient
        weight = mlp_width(architecture) * hidden * (2 if fused else 1)
        widened = widened_bytes(spec, weight, positions, autocast=spec.mixed_precision)
        made = larger(widened, gradient if spec.use_liger_kernel else 0)
    if adapted_parts(spec, architecture, ("up_proj", "gate_up_proj")):
        results = adapter_result_bytes(spec, 2 * values if fused else values, autocast=spec.mixed_precision)
        # Without autocast the adapter saves the copy.
        copy = adapter_input_bytes(spec, positions * hidden, element_bytes(spec).stream, autocast=spec.mixed_precision)
        made = larger(made, results + where(spec.mixed_precision, copy, 0))
    made = made + waiting
    if fused:
        # The activation comes after the one product.
        made = made - block_of(spec)(values * linear_output_bytes(spec))
    return made


def down_input_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what down makes of its input and of a 4-bit weight before it returns, if it has an adapter.

    With dropout the input itself is not what the adapter saves; and a cast input, and what is left of it, are there
    together.
    """
    if not adapted_parts(spec, architecture, ("down_proj",)):
        return 0
    sizes, block, values = element_bytes(spec), block_of(spec), batch.positions * mlp_width(architecture)
    given = where(drops_inputs(spec), block(values * linear_output_bytes(spec)), 0)
    if spec.tuning is Tuning.QLORA:
        weight = mlp_width(architecture) * architecture.hidden_size
        widened = widened_bytes(spec, weight, batch.positions, autocast=spec.mixed_precision)
        return larger(widened - input_mask_bytes(spec, values), given)
    if has_bfloat16_adapters(spec):
        return given
    # Without autocast the adapter saves the copy, or what dropout leaves of it.
    copies = where(spec.mixed_precision, 1, 0) + where(drops_inputs(spec), 1, 0)
    return block(values * sizes.compute) + copies * block(values * sizes.adapter)
