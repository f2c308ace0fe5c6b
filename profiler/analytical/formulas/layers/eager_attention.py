"""Attention by matrix products, which allocates the scores of all pairs of tokens, and dropout.

Dropout in training: which values are dropped, and the masks that are saved.

A fused kernel of attention draws its numbers again in backward and saves no mask, only a seed. `nn.Dropout` of an
adapter and the dropout of attention by matrix products save one byte per value, and their result is another tensor.

Source: `native_dropout_cuda` in `aten/src/ATen/native/cuda/Dropout.cu`; `native_dropout` in torch's `derivatives.yaml`
saves its mask alone. trl trains, scores and generates with the model in training mode (`GRPOTrainer` in trl 1.16).

Attention by matrix products, which allocates the scores of all pairs of tokens.

`attn_implementation=eager` computes attention this way, and torch's SDPA if it has no kernel (`makes_scores`).

Eager, counted in `eager_attention_forward` of transformers' models: the product and its scaled copy in the compute
type, the softmax of a float32 copy in float32, and a copy of it in the compute type. SDPA without a kernel, counted in
`_scaled_dot_product_attention_math` (`aten/src/ATen/native/transformers/attention.cpp`): queries, keys and values
converted to float32, queries and keys scaled, the softmax in float32.

Of other attention: the mask that all layers share, and the layout of a kernel's output.
"""

from collections.abc import Sequence

from profiler.analytical.formulas.models.parameters import key_width, layers_of, output_width, query_width
from profiler.analytical.formulas.models.trained import (
    FLOAT16_BYTES,
    FLOAT32_BYTES,
    INT64_BYTES,
    computed_bytes,
    computes_in_bfloat16,
    element_bytes,
    stream_bytes,
)
from profiler.analytical.formulas.rollout import kv_element_bytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, either, holds, larger, negated, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_masked, layer_kinds
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.trials.kernels import WIDEST_FLASH_HEAD
from profiler.domain.trials.trial import Attention


def _with_sinks(architecture: DecoderShape, batch: Batch) -> Count:
    """Return the number of scores of one layer with those of sinks: rows x heads x L x (L + 1)."""
    found = scores(architecture, batch)
    if not layers_of(architecture).has_sinks:
        return found
    return found + batch.positions * architecture.num_attention_heads


def drops_scores(architecture: DecoderShape) -> Flag:
    """Return whether attention drops a part of its weights; torch keeps no mask where it drops all."""
    part = architecture.attention_dropout
    return both(part > 0, part < 1)


def drops_inputs(spec: TrialKeys) -> Flag:
    """Return whether adapters drop a part of their inputs."""
    return spec.lora_dropout > 0


def input_mask_bytes(spec: TrialKeys, values: Count) -> Count:
    """Return the mask of an adapter's input: one byte per value; 0 without dropout.

    By hand, T = 10, H = 8: 80 B.
    """
    return where(drops_inputs(spec), block_of(spec)(values), 0)


_MASKED_BYTES = 1
"""`_safe_softmax` compares every score with minus infinity."""


def scores(architecture: DecoderShape, batch: Batch) -> Count:
    """Return the number of scores of one layer: rows x heads x L x L. By hand, one row of 8 tokens, 2 heads: 128."""
    return batch.rows * architecture.num_attention_heads * batch.width * batch.width


def makes_scores(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Flag:
    """Return whether attention allocates its scores: eager does, and SDPA if the card has no kernel for the request.

    Flash attention supports neither float32 nor masks and needs compute capability 8.0. The memory-efficient kernel
    does not support shared keys nor, below 8.0, bfloat16. With a mask transformers repeats keys. So no kernel supports
    shared keys without a mask in float32, nor in float16 below 8.0, and none supports bfloat16 below 8.0.

    Source: `can_use_flash_attention` and `can_use_mem_efficient_attention` in
    `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`; `use_gqa_in_sdpa` in transformers.
    """
    if spec.attn_implementation is not Attention.SDPA:
        return spec.attn_implementation is Attention.EAGER
    old = holds(spec.gpu, _has_no_flash_attention)
    no_flash = either(computed_bytes(spec, autocast=autocast) >= FLOAT32_BYTES, old)
    no_efficient = both(_shares_keys(architecture), negated(repeats_keys(architecture, batch)))
    return either(both(no_flash, no_efficient), both(old, computes_in_bfloat16(spec, autocast=autocast)))


def repeats_keys(architecture: DecoderShape, batch: Batch) -> Flag:
    """Return whether transformers repeats shared keys before SDPA: with a mask, or for heads too wide for flash.

    Source: `use_gqa_in_sdpa` in transformers' `integrations/sdpa_attention.py`.
    """
    return either(is_masked(architecture, batch), architecture.head_dim > WIDEST_FLASH_HEAD)


def _has_no_flash_attention(gpu: str | None) -> bool:
    card = find_gpu(gpu)
    return card is not None and not card.chip.has_flash_attention


def _shares_keys(architecture: DecoderShape) -> Flag:
    return architecture.num_attention_heads != architecture.num_key_value_heads


def saved_scores_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what is saved of the scores: the softmax in float32, and in eager also in a narrower compute type.

    Capped scores are saved as well. Dropout keeps a mask of one byte per score, and its result besides the softmax.
    By hand, one row of 8 tokens, 2 heads, bfloat16: eager 128 x (4 + 2) = 768 B, with capped scores 128 x 8 = 1,024 B,
    with dropout 128 x 7 = 896 B; SDPA 128 x 4 = 512 B, with dropout 128 x (4 + 4 + 1) = 1,152 B. With sinks the softmax
    is in the compute type, and the index of the largest score is saved: 8 x 2 x (9 x 2 + 8) = 416 B.
    """
    block, values = block_of(spec), scores(architecture, batch)
    softmax, drops = block(values * FLOAT32_BYTES), drops_scores(architecture)
    mask = where(drops, block(values), 0)
    if spec.attn_implementation is not Attention.EAGER:
        return softmax + mask + where(drops, softmax, 0)
    compute = element_bytes(spec).compute
    if layers_of(architecture).has_sinks:
        largest = block(batch.positions * architecture.num_attention_heads * INT64_BYTES)
        return (
            block(_with_sinks(architecture, batch) * compute)
            + largest
            + mask
            + where(drops, block(values * compute), 0)
        )
    capped = _capped_scores_bytes(spec, architecture, batch)
    is_another = either(drops, compute < FLOAT32_BYTES)
    return softmax + where(is_another, block(values * compute), 0) + mask + capped


def _capped_scores_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the scores that a hyperbolic tangent has capped, of eager attention (Gemma 2); 0 without one."""
    if spec.attn_implementation is not Attention.EAGER or not layers_of(architecture).caps_scores:
        return 0
    return block_of(spec)(scores(architecture, batch) * element_bytes(spec).compute)


def query_side_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what attention by products saves in addition to scores: queries, and repeated keys and values.

    In eager they have the compute type, in SDPA they are float32.

    By hand, one row of 8 tokens, 2 query heads of 4, bfloat16: eager 64 x 3 x 2 = 384 B, SDPA 64 x 3 x 4 = 768 B.
    """
    compute = element_bytes(spec).compute
    factor = compute if spec.attn_implementation is Attention.EAGER else FLOAT32_BYTES
    block, positions = block_of(spec), batch.positions
    return 2 * block(positions * query_width(architecture) * factor) + block(
        positions * output_width(architecture) * factor
    )


def held_scores_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Count:
    """Return the softmax that eager attention returns with its output, in the type of queries; 0 for other kernels.

    The rotary embedding casts queries to the type of the residual stream. By hand, one row of 8 tokens, 2 heads,
    bfloat16: 128 x 2 = 256 B.

    Source: `hidden_states, _ = self.self_attn(...)` in transformers' decoder layers: `_` lives as long as the call.
    """
    if spec.attn_implementation is not Attention.EAGER:
        return 0
    return block_of(spec)(_with_sinks(architecture, batch) * stream_bytes(spec, autocast=autocast))


def query_side_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Count:
    """Return what attention by products needs at the softmax in addition to scores, without saved activations.

    Eager: queries, and keys and values repeated to all query heads; the rotary embedding casts the first two to the
    type of the residual stream. SDPA: queries before and after scaling, and repeated keys and values, in float32; if
    the compute type is another, also queries, keys and values in it, and keys and values in float32 before they are
    repeated. With a mask transformers repeats keys and values before attention.

    By hand, one row of 8 tokens, 2 query heads and 1 key head of 4 (64 and 32 values): eager 64 x 6 = 384 B in
    bfloat16, 64 x (4 + 4 + 2) = 640 B in float32 or float16 under autocast; SDPA 64 x 16 + 32 x 8 = 1,280 B in
    float32, 64 x 18 + 32 x 12 = 1,536 B in bfloat16, 64 x 22 + 32 x 4 = 1,536 B with a mask.
    """
    compute, block = computed_bytes(spec, autocast=autocast), block_of(spec)
    queries, shared = batch.positions * query_width(architecture), _shares_keys(architecture)
    query, one_key = block(queries * compute), batch.positions * key_width(architecture)
    # One matrix for q, k and v: attention references the product.
    product = block((queries + 2 * one_key) * compute) if layers_of(architecture).has_fused_attention else 0
    if spec.attn_implementation is Attention.EAGER:
        return 2 * block(queries * stream_bytes(spec, autocast=autocast)) + query + product
    keys = where(shared, batch.positions * key_width(architecture), 0)
    key, wide_key = block(keys * compute), block(keys * FLOAT32_BYTES)
    four = 4 * block(queries * FLOAT32_BYTES)
    converted_first = both(shared, negated(is_masked(architecture, batch)))
    narrow = four + 2 * key + where(converted_first, query + 2 * wide_key, 3 * query)
    return where(compute < FLOAT32_BYTES, narrow, four + 2 * key)


def scores_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag) -> Count:
    """Return the peak of the scores without saved activations; 0 for other kernels.

    Eager: scaled scores, these in float32, and the softmax; with dropout the weights before and after it and its mask,
    if that is more, as in float32. With sinks: scores, and these with sinks, less the largest, and their softmax, in
    the compute type. In float16: scaled scores, the softmax, and the softmax in
    float16, because the kernel converts its input itself. SDPA: scores in float32, the softmax, and a boolean per
    score.

    By hand, one row of 8 tokens, 2 heads: eager 128 x (2 + 4 + 4) = 1,280 B in bfloat16, 128 x 8 = 1,024 B in float32
    and in float16; SDPA 128 x 9 = 1,152 B.

    Source: `softmax` in `aten/src/ATen/native/SoftMax.cpp`, which converts its input first (only float16's is fused);
    `_safe_softmax` in `aten/src/ATen/native/transformers/attention.cpp`.
    """
    made, block = makes_scores(spec, architecture, batch, autocast=autocast), block_of(spec)
    values = scores(architecture, batch)
    if spec.attn_implementation is not Attention.EAGER:
        return where(made, 2 * block(values * FLOAT32_BYTES) + block(values * _MASKED_BYTES), 0)
    # Queries have the type of the residual stream, and the mask that eager adds has that of the weights: the scores of
    # autocast become as wide.
    compute = stream_bytes(spec, autocast=autocast)
    if layers_of(architecture).has_sinks:
        return block(values * compute) + 2 * block(_with_sinks(architecture, batch) * compute)
    softmax, narrow = block(values * FLOAT32_BYTES), block(values * compute)
    converted = where(_is_float16(spec, autocast=autocast), narrow, where(compute < FLOAT32_BYTES, softmax, 0))
    dropping = where(drops_scores(architecture), 2 * narrow + block(values), 0)
    return larger(narrow + converted + softmax, dropping)


def scores_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of the scores in backward: the softmax, its gradient, their product, the gradient of the input.

    All are float32, except that in eager the gradient of a float16 input is float16. Capped scores are still there. 0
    for other kernels. By hand, one row of 8 tokens, 2 heads: 128 x 16 = 2,048 B, eager in float16 128 x 14 = 1,792 B.

    Source: `softmax_backward_cuda_out` in `aten/src/ATen/native/cuda/SoftMax.cu`, which computes the product.
    """
    made = makes_scores(spec, architecture, batch, autocast=spec.mixed_precision)
    block, values = block_of(spec), scores(architecture, batch)
    wide = block(values * FLOAT32_BYTES)
    if layers_of(architecture).has_sinks:
        return 4 * block(_with_sinks(architecture, batch) * element_bytes(spec).compute)
    narrow = both(spec.attn_implementation is Attention.EAGER, _is_float16(spec, autocast=spec.mixed_precision))
    of_input = where(narrow, block(values * FLOAT16_BYTES), wide)
    return where(made, 3 * wide + of_input + _capped_scores_bytes(spec, architecture, batch), 0)


def scores_made(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag, trains: bool
) -> Sequence[Count]:
    """Return the scores of one layer that exist together, from the first product on; the last is what stays of them.

    That is what backward needs, or with `trains=False` what eager attention returns. Eager: the product and its scaled
    copy; these with the mask, which may widen them; their float32 copy, the softmax, and its copy in the type of the
    queries; with dropout a mask and a result. SDPA: scores in float32, the softmax, a boolean per score, and dropout.

    By hand, one row of 8 tokens, 2 heads, SDPA: 512, 1,024, 1,152 and 512 B.
    """
    block, values, drops = block_of(spec), scores(architecture, batch), drops_scores(architecture)
    wide, mask = block(values * FLOAT32_BYTES), where(drops, block(values), 0)
    kept, held = saved_scores_bytes, held_scores_bytes(spec, architecture, batch, autocast=autocast)
    left = kept(spec, architecture, batch) if trains else held
    if spec.attn_implementation is not Attention.EAGER:
        dropping = [2 * wide + mask] if drops else []
        return [wide, 2 * wide, 2 * wide + block(values * _MASKED_BYTES), wide, *dropping, left]
    product = block(values * computed_bytes(spec, autocast=autocast))
    narrow = block(values * stream_bytes(spec, autocast=autocast))
    found = [product, 2 * product, product]
    capped = _capped_scores_bytes(spec, architecture, batch)
    if capped:
        found += [2 * product, product + capped]
        if not trains:
            capped = 0
    is_narrow = stream_bytes(spec, autocast=autocast) < FLOAT32_BYTES
    converted = wide if is_narrow and not _is_float16(spec, autocast=autocast) else 0
    found += [capped + product + narrow, capped + narrow, capped + narrow + converted]
    found += [capped + narrow + converted + wide, capped + narrow + wide]
    result = narrow if is_narrow else 0
    found.append(capped + narrow + wide + result)
    softmax = wide if trains or not is_narrow else 0
    if drops:
        found.append(capped + softmax + result + narrow + mask)
    return [*found, left]


def scores_undone(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Sequence[Count]:
    """Return the scores of one layer that exist together in backward, with what is still saved of them; the last is 0.

    The gradient of the weights, through dropout and casts; that of the softmax, with the product that its kernel makes;
    and those of the cap and of the scaling.

    By hand, one row of 8 tokens, 2 heads, SDPA: 1,024, 1,536, 2,048, 512 and 0 B.
    """
    block, values, drops = block_of(spec), scores(architecture, batch), drops_scores(architecture)
    wide, mask = block(values * FLOAT32_BYTES), where(drops, block(values), 0)
    saved = saved_scores_bytes(spec, architecture, batch)
    of_softmax = [3 * wide, 4 * wide, wide]
    if spec.attn_implementation is not Attention.EAGER:
        dropping = [saved + wide, 2 * wide + mask, 3 * wide + mask] if drops else []
        return [*dropping, 2 * wide, *of_softmax, 0]
    sizes, capped = element_bytes(spec), _capped_scores_bytes(spec, architecture, batch)
    given, narrow = block(values * sizes.compute), block(values * sizes.stream)
    there = wide + capped
    found = [saved + given, there + mask + given]
    if drops or sizes.compute < sizes.stream:
        found += [there + mask + given + narrow, there + narrow]
    if sizes.stream < FLOAT32_BYTES:
        found += [there + narrow + wide]
    of_input = narrow if _is_float16(spec, autocast=spec.mixed_precision) else wide
    found += [there + wide, there + wide + of_input, there + 2 * wide + of_input, capped + of_input]
    if of_input > narrow:
        found += [capped + of_input + narrow, capped + narrow]
    if capped:
        found += [capped + 2 * narrow, narrow]
    if sizes.compute < sizes.stream:
        found += [narrow + given]
    return [*found, given, 2 * given, given, 0]


def _is_float16(spec: TrialKeys, *, autocast: Flag) -> Flag:
    """Return whether matrix products are in float16, with autocast around the model or not."""
    half = computed_bytes(spec, autocast=autocast) < FLOAT32_BYTES
    return both(half, negated(computes_in_bfloat16(spec, autocast=autocast)))


def repeated_cache_bytes(spec: TrialKeys, architecture: DecoderShape, *, tokens: Count) -> Count:
    """Return the copies of keys and values that attention by products makes for one decoding step over `tokens`.

    For one layer. Eager: keys and values repeated to all query heads, if heads share keys. SDPA without a kernel: both
    repeated in float32, and the scaled keys; if the compute type is another, also keys and values in float32 before
    they are repeated. 0 for kernels that support shared keys.

    By hand, qwen2.5-0.5b in bfloat16, 16 sequences, 1,041 tokens: eager 2 x 16 x 1,041 x 896 x 2 B = 59,695,104 B;
    SDPA on a T4 16 x 1,041 x (896 x 12 + 128 x 8) B = 196,141,056 B.
    """
    rows = spec.generation_batch_size
    step = Batch(rows=rows, prompt_tokens=tokens, completion_tokens=0, scored_tokens=0, has_mask=False)
    block, shared, queries = block_of(spec), _shares_keys(architecture), rows * tokens * query_width(architecture)
    if spec.attn_implementation is Attention.EAGER:
        return where(shared, 2 * block(queries * kv_element_bytes(spec)), 0)
    converted = both(shared, computed_bytes(spec, autocast=False) < FLOAT32_BYTES)
    unrepeated = where(converted, 2 * block(rows * tokens * key_width(architecture) * FLOAT32_BYTES), 0)
    made = makes_scores(spec, architecture, step, autocast=False)
    return where(made, 3 * block(queries * FLOAT32_BYTES) + unrepeated, 0)


def copies_output(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Flag:
    """Return whether o gets a copy of attention's output (`copied_output_bytes`)."""
    if not layers_of(architecture).concatenates_heads:
        return False
    keeps_layout = negated(batch.has_mask)
    if spec.attn_implementation is Attention.SDPA:
        # Flash attention returns no output of another width.
        keeps_layout = negated(is_masked(architecture, batch))
        keeps_layout = both(keeps_layout, output_width(architecture) == query_width(architecture))
        keeps_layout = either(keeps_layout, holds(spec.gpu, _has_cudnn_attention))
        keeps_layout = both(keeps_layout, element_bytes(spec).compute < FLOAT32_BYTES)
    return keeps_layout


def _has_cudnn_attention(gpu: str | None) -> bool:
    card = find_gpu(gpu)
    return card is not None and card.chip.has_cudnn_attention


def attention_mask_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the bytes of the attention masks that layers share, [rows, 1, L, L] for each kind of them (`is_masked`).

    Layers that take keys of earlier ones take their mask too.

    They are boolean. Eager attention always has them, in the type of the weights, because it adds the causal mask.
    FlashAttention-2 gets [rows, L].

    Checkpointing keeps the mask until backward. Without checkpointing, backward counts one mask too many, a fraction of
    a percent. By hand, 4 rows of 1,042: 4 x 1,042 x 1,042 = 4,343,056 B.
    """
    block, size = block_of(spec), batch.rows * batch.width * batch.width
    if spec.attn_implementation is Attention.EAGER:
        masks = 2 if layers_of(architecture).alternates and architecture.first_layers else 1
        return masks * block(size * element_bytes(spec).weight)
    if spec.attn_implementation is Attention.FLASH_ATTENTION_2:
        return 0
    kinds = [kind for kind in layer_kinds(architecture) if not kind.shares_keys]
    return sum(where(is_masked(kind, batch), block(size), 0) for kind in kinds)
