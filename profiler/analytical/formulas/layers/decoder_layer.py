"""Activations of one decoder layer: what forward saves for backward, and transient memory of both.

Counted tensor by tensor in transformers' `modeling_qwen2.py` (Llama's is the same, Qwen3's adds norms on queries and
keys) as autograd saves them. T is `batch.positions`.
"""

from collections.abc import Sequence

from profiler.analytical.formulas.layers.eager_attention import (
    copies_output,
    drops_inputs,
    input_mask_bytes,
    makes_scores,
    query_side_saved_bytes,
    repeats_keys,
    saved_scores_bytes,
)
from profiler.analytical.formulas.layers.experts import experts_saved_bytes, layer_inputs_saved_bytes
from profiler.analytical.formulas.layers.linear_attention import linear_saved_bytes
from profiler.analytical.formulas.models.parameters import (
    SHARED_GATE,
    adapted_projections,
    is_mixture,
    key_width,
    layers_of,
    mlp_width,
    norms_after,
    output_width,
    query_width,
)
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    linear_output_bytes,
    lora_rank,
    norm_saved_bytes,
    rows_norm_saved_bytes,
    saved_input_bytes,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, either, negated, where, whole_units
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_masked
from profiler.domain.architectures.families import LINEAR_INPUTS, LINEAR_OUTPUT
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, Attention, Tuning

_MASK_ALIGNMENT = 8
MLP_INPUTS = ("gate_proj", "up_proj", "gate_up_proj", SHARED_GATE)
ATTENTION_INPUTS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "q_a_proj", "kv_a_proj_with_mqa", *LINEAR_INPUTS)
OUTPUTS = ("o_proj", LINEAR_OUTPUT)
"""The linear layer after attention, and after linear attention."""
LATENT_INPUTS = ("q_b_proj", "kv_b_proj")
"""Linear layers that make heads of a normalised vector (`LatentAttention`)."""


def head_norms_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the norms over queries and keys save (Qwen3); 0 for models without them.

    As `norm_saved_bytes`, but each head counts as a row, if the norm is not over all heads (OLMo 2), and the normalised
    input has the type that the projections return. By hand, T = 10, 2 query heads and 1 key head of 4 in bfloat16,
    full: 10 x (12 x 4 + 3 x 4 + 12 x 2) = 840 B; over all heads, in float32: 10 x (12 x 4 + 2 x 4 + 12 x 4) = 1,040 B.
    A norm on values has no weight (Gemma 4): 10 x (4 x 4 + 4) = 200 B more.
    """
    given, layers, block = linear_output_bytes(spec), layers_of(architecture), block_of(spec)
    key_heads = 0 if architecture.shares_keys else architecture.num_key_value_heads
    rows = positions * key_heads if layers.normalises_values else 0
    saved = block(rows * architecture.head_dim * FLOAT32_BYTES) + block(rows * FLOAT32_BYTES)
    for heads in (architecture.num_attention_heads, key_heads):
        values = positions * heads * architecture.head_dim
        rows = positions if layers.normalises_all_heads else positions * heads
        saved = saved + rows_norm_saved_bytes(spec, values, rows, given, in_float32=layers.has_float32_norms)
    return where(architecture.qk_norm, saved, 0)


def latent_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what latent attention saves before its heads: its norms, and the inputs of what makes heads of them.

    0 for other attention. By hand, T = 10, ranks 6 and 4 in bfloat16, full: norms 10 x (10 x 4 + 2 x 4 + 10 x 2) B, and
    inputs of 10 x 10 x 2 B: 880 B.
    """
    latent, sizes, block = architecture.latent, element_bytes(spec), block_of(spec)
    if latent is None:
        return 0
    saved = sum(norm_saved_bytes(spec, positions, rank) for rank in latent.ranks)
    if trains_everything(spec):
        return saved + sum(block(positions * rank * sizes.compute) for rank in latent.ranks)
    adapted = adapted_parts(spec, architecture, LATENT_INPUTS)
    inputs = sum(
        block(values * saved_input_bytes(spec)) + input_mask_bytes(spec, values)
        for values in (positions * part.in_features for part in adapted)
    )
    return saved + inputs + len(adapted) * block(positions * lora_rank(spec) * sizes.compute)


def attention_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what attention saves: queries, keys, values, output, and statistics.

    - Without a mask (flash, cuDNN): keys and values of their own heads; a float32 log-sum-exp per query.
    - With a mask (memory-efficient, cuDNN): keys and values repeated to all query heads, and the mask in the compute
      type, [rows, 1, L, L] with L rounded up to 8, converted again in every layer; also heads of more than 256.
    - Eager, or SDPA without a kernel (`makes_scores`): repeated keys and values, the softmax of the scores in float32
      and, in eager, also in the compute type.
    - FlashAttention-2 with a mask: queries, keys, values and output of the tokens that are not padding, the padded
      output, and the statistics.

    By hand, one row of 8 tokens, 2 query heads and 1 key head of 4, bfloat16: 8 x (8 + 4 + 4 + 8) x 2 + 2 x 8 x 4 =
    448 B without a mask, 8 x 8 x 2 B more with one: one head is repeated as a view. 4 heads over 2: 896 and 1,280 B.
    With one matrix for q, k and v the product, 8 x 16 x 2 B, in place of the values, 8 x 4 x 2 B: 640 B without a mask.

    Does not hold for float32 without autocast on kernels that pad.
    """
    compute = element_bytes(spec).compute
    heads, width = architecture.num_attention_heads, batch.width
    queries, keys = query_width(architecture), key_width(architecture)
    block, latent = block_of(spec), architecture.latent
    statistics = block(FLOAT32_BYTES * batch.rows * heads * width)
    one_query, one_key = block(batch.positions * queries * compute), block(batch.positions * keys * compute)
    output = block(batch.positions * output_width(architecture) * compute)
    products = query_side_saved_bytes(spec, architecture, batch) + saved_scores_bytes(spec, architecture, batch)
    # A matrix product does not save its result; o does, or an adapter that casts nothing.
    with_scores = products + where(saves_output(spec, architecture), output, 0)
    copied = copied_output_bytes(spec, architecture, batch)
    if spec.attn_implementation is Attention.EAGER:
        return with_scores
    # The values that a kernel reads in their place keep the product that they are a part of.
    fused = layers_of(architecture).has_fused_attention
    others = block(batch.positions * (queries + 2 * keys) * compute) - one_key if fused else 0
    of_heads = 2 * (one_query + one_key) + others if latent is None else latent_heads_bytes(spec, architecture, batch)
    if architecture.shares_keys:
        of_heads = 2 * one_query
    own_heads = of_heads + statistics + copied
    if spec.attn_implementation is Attention.FLASH_ATTENTION_2:
        real = batch.rows * batch.prompt_tokens + batch.scored_tokens
        packed = 2 * (block(real * queries * compute) + block(real * keys * compute))
        unpadded = packed + output + statistics
        return where(batch.has_mask, unpadded, own_heads)
    aligned = whole_units(width, _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    mask = block(batch.rows * width * aligned * compute)
    groups = both(
        architecture.num_key_value_heads != 1, architecture.num_attention_heads != architecture.num_key_value_heads
    )
    masked = where(groups, 4 * one_query + statistics + copied, own_heads) if latent is None else own_heads
    fitting = where(repeats_keys(architecture, batch), masked, own_heads)
    fitting = fitting + where(is_masked(architecture, batch), mask, 0)
    return where(makes_scores(spec, architecture, batch, autocast=spec.mixed_precision), with_scores, fitting)


def latent_heads_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the queries, keys, values and output of latent attention; 0 for other attention.

    Values are a part of the product of which the keys are made too, which is kept. FlashAttention-2 gets values of the
    width of the keys, and returns such an output.

    By hand, T = 10, 2 heads of 4 + 2, values of 3, bfloat16: 10 x (2 x 12 + 14 + 6) x 2 B, in FlashAttention-2
    10 x 4 x 12 x 2 B.

    Source: `flash_attention_forward` in transformers' `integrations/flash_attention.py`.
    """
    latent, block = architecture.latent, block_of(spec)
    if latent is None:
        return 0
    compute, heads = element_bytes(spec).compute, batch.positions * architecture.num_attention_heads
    queries = block(heads * latent.head_dim * compute)
    if spec.attn_implementation is Attention.FLASH_ATTENTION_2 and latent.head_dim != latent.v_head_dim:
        return 4 * queries
    output = block(heads * latent.v_head_dim * compute)
    return 2 * queries + block(heads * latent.expanded_dim * compute) + output


def copied_output_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the copy of attention's output that o saves besides the output itself; 0 where both are one tensor.

    Flash attention and cuDNN return the layout of the queries. Concatenated queries are contiguous by heads, so the
    output is copied token by token for o. Trained, o saves this copy; so do adapters that share their input.

    By hand, one row of 8 tokens, 2 query heads of 4, bfloat16, full: 8 x 8 x 2 = 128 B.

    Source: `attn_output.reshape(...).contiguous()` in transformers' attention; `mha_fwd` in torch's `flash_api.cpp`.
    """
    copy = block_of(spec)(batch.positions * output_width(architecture) * element_bytes(spec).compute)
    return where(both(copies_output(spec, architecture, batch), saves_output(spec, architecture)), copy, 0)


def saves_output(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    """Return whether o saves the output of attention: its weights are trained, or its adapter shares its input."""
    if trains_everything(spec) or spec.zero_stage == ZERO_OF_WEIGHTS:
        return True
    if not adapted_parts(spec, architecture, OUTPUTS):
        return False
    casts = element_bytes(spec).adapter_casts
    if _leaves_inputs(spec):
        casts = both(casts, negated(spec.mixed_precision))
    return negated(either(casts, drops_inputs(spec)))


def _leaves_inputs(spec: TrialKeys) -> bool:
    """Return whether peft leaves inputs of adapters to autocast, which casts those in float32, but not that of o.

    Over 4-bit weights it does, whatever type its adapters have (`Linear4bit.forward` in peft's `bnb.py`).
    """
    return spec.tuning is Tuning.QLORA or has_bfloat16_adapters(spec)


def linear_inputs_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the inputs that the linear layers of one decoder layer save for the gradients of weights or adapters.

    - Full, weights in the compute type: each distinct input once: [T, H] for q, k, v; [T, H] for gate, up; [T, I] for
      down. The input of o is the output of attention and counted there.
    - Full, float32 weights under autocast: a copy for each of q, k, v, gate, up, because autocast casts per call.
    - LoRA: each adapted layer casts its input to the float32 of the adapter, and autocast casts it back, so each layer,
      o included, keeps its own copy; and the output of A, [T, rank]. Without autocast float32 inputs are shared.
    - QLoRA, and LoRA under FSDP: adapters are in bfloat16, so inputs in bfloat16 are shared. Inputs of another type are
      copied per layer, except that of o under autocast.
    - LoRA under ZeRO-3: also the inputs of frozen layers (`frozen_inputs_saved_bytes`).
    - LoRA with dropout: each adapted layer keeps what is left of its input, of which none is shared, and a mask.

    By hand, T = 10, H = 8, I = 16 in bfloat16, full: 10 x (8 + 8 + 16) x 2 = 640 B.
    """
    return attention_inputs_saved_bytes(spec, architecture, positions) + other_inputs_saved_bytes(
        spec, architecture, positions
    )


def attention_inputs_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the part of `linear_inputs_saved_bytes` of q, k and v.

    By hand, T = 10, H = 8 in bfloat16, full: 10 x 8 x 2 = 160 B.
    """
    sizes, hidden, block = element_bytes(spec), architecture.hidden_size, block_of(spec)
    if trains_everything(spec):
        parts = 3 if architecture.latent is None and not architecture.keys_are_values else 2
        parts = 1 if architecture.shares_keys else parts
        return where(sizes.casts_inputs, parts, 1) * block(positions * hidden * sizes.compute)
    adapted = adapted_parts(spec, architecture, ATTENTION_INPUTS)
    low_rank = len(adapted) * block(positions * lora_rank(spec) * sizes.compute)
    low_rank = low_rank + frozen_inputs_saved_bytes(spec, architecture, positions, ATTENTION_INPUTS)
    low_rank = low_rank + len(adapted) * input_mask_bytes(spec, positions * hidden)
    copies = where(either(sizes.adapter_casts, drops_inputs(spec)), len(adapted), int(bool(adapted)))
    return copies * block(positions * hidden * saved_input_bytes(spec)) + low_rank


def other_inputs_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the part of `linear_inputs_saved_bytes` of o, gate, up and down.

    By hand, T = 10, H = 8, I = 16 in bfloat16, full: 10 x (8 + 16) x 2 = 480 B.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    hidden, inner = architecture.hidden_size, mlp_width(architecture)
    if trains_everything(spec):
        copies = where(sizes.casts_inputs, 2, 1)
        return copies * block(positions * hidden * sizes.compute) + block(positions * inner * sizes.compute)
    adapted = adapted_parts(spec, architecture, (*OUTPUTS, *MLP_INPUTS, "down_proj"))
    low_rank = len(adapted) * block(positions * lora_rank(spec) * sizes.compute)
    element, names = saved_input_bytes(spec), {part.name for part in adapted}
    own = sum(block(positions * part.in_features * element) for part in adapted)
    shared = bool(names.intersection(MLP_INPUTS)) * block(positions * hidden * element)
    shared = shared + ("down_proj" in names) * block(positions * inner * element)
    # Under autocast the input of o is bfloat16 already, so neither autocast nor such an adapter casts it.
    uncast = bool(names.intersection(OUTPUTS)) * block(positions * output_width(architecture) * element)
    uncast = where(spec.mixed_precision, uncast, 0) if _leaves_inputs(spec) else 0
    own = where(drops_inputs(spec), own, where(sizes.adapter_casts, own - uncast, shared))
    own = own + sum(input_mask_bytes(spec, positions * part.in_features) for part in adapted)
    own = own + frozen_inputs_saved_bytes(spec, architecture, positions, MLP_INPUTS)
    return own + low_rank + frozen_inputs_saved_bytes(spec, architecture, positions, ("down_proj",))


def frozen_inputs_saved_bytes(
    spec: TrialKeys, architecture: DecoderShape, positions: Count, names: Sequence[str]
) -> Count:
    """Return what frozen layers that share one input save of it under ZeRO-3; 0 without.

    DeepSpeed replaces torch's linear function by one that saves its input whether or not the weight is trained. An
    adapter that casts and drops nothing saves the same tensor. That of o is the output of attention and counted there.

    By hand, T = 10, I = 16 in bfloat16, down_proj not adapted: 10 x 16 x 2 = 320 B; adapted: 0.

    Source: `LinearFunctionForZeroStage3.setup_context` in `deepspeed/runtime/zero/linear.py`, DeepSpeed 0.19.
    """
    if trains_everything(spec) or spec.zero_stage != ZERO_OF_WEIGHTS:
        return 0
    width = mlp_width(architecture) if "down_proj" in names else architecture.hidden_size
    sizes = element_bytes(spec)
    own = block_of(spec)(positions * width * sizes.compute)
    is_another = either(sizes.adapter_casts, drops_inputs(spec))
    return where(is_another, own, 0) if adapted_parts(spec, architecture, names) else own


def adapted_parts(spec: TrialKeys, architecture: DecoderShape, names: Sequence[str]) -> tuple[Projection, ...]:
    """Return the linear layers among `names` that have an adapter."""
    found = adapted_projections(architecture, spec.lora_target_modules or ())
    return tuple(part for part in found if part.name in names)


def mlp_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the gated MLP saves between its linear layers: gate, its activation, and up, each [T, I].

    Liger computes the activation again (`LigerSiLUMulFunction` in `liger_kernel/ops/swiglu.py`).

    By hand, T = 10, I = 16 in bfloat16: 3 x 10 x 16 x 2 = 960 B; with Liger 2 x 10 x 16 x 2 = 640 B.
    """
    tensors = 2 if spec.use_liger_kernel else 3
    dense = tensors * block_of(spec)(positions * mlp_width(architecture) * linear_output_bytes(spec))
    return dense + experts_saved_bytes(spec, architecture, positions) if is_mixture(architecture) else dense


def layer_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what one decoder layer saves for backward without checkpointing."""
    positions, hidden = batch.positions, architecture.hidden_size
    saved = architecture.norms_per_layer * norm_saved_bytes(
        spec, positions, hidden, in_float32=layers_of(architecture).has_float32_norms
    )
    saved = saved + _between_saved_bytes(spec, architecture, batch)
    saved = saved + linear_inputs_saved_bytes(spec, architecture, positions)
    saved = saved + layer_inputs_saved_bytes(spec, architecture, positions)
    return saved + mlp_saved_bytes(spec, architecture, positions)


def _between_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what a layer saves between the linear layers before attention and the one after it."""
    if architecture.linear is not None:
        return linear_saved_bytes(spec, architecture, batch, keeps_output=saves_output(spec, architecture))
    saved = head_norms_saved_bytes(spec, architecture, batch.positions)
    saved = saved + attention_saved_bytes(spec, architecture, batch)
    saved = saved + output_gate_saved_bytes(spec, architecture, batch)
    return saved + latent_saved_bytes(spec, architecture, batch.positions)


def output_gate_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the gate of attention's output saves in addition: its sigmoid and the output; 0 without a gate.

    What `attention_saved_bytes` counts as saved by o is the product, and the output is another tensor, or the copy of
    one that the kernel saves.

    By hand, T = 8, 2 query heads of 4, bfloat16, full: 2 x 8 x 8 x 2 = 256 B.

    Source: `attn_output * torch.sigmoid(gate)` in transformers' `Qwen3NextAttention`.
    """
    if not layers_of(architecture).gates_output:
        return 0
    one = block_of(spec)(batch.positions * output_width(architecture) * element_bytes(spec).compute)
    products = makes_scores(spec, architecture, batch, autocast=spec.mixed_precision)
    is_copied = both(copies_output(spec, architecture, batch), negated(saves_output(spec, architecture)))
    is_another = either(saves_output(spec, architecture), is_copied)
    return one + where(either(products, is_another), one, 0)


def saved_after_attention_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a layer saves after its attention: by the MLP, norms, and linear layers but those before attention.

    By hand, T = 10, H = 8, I = 16 in bfloat16, full: 960 B of the MLP, 520 B of a norm and 480 B of inputs.
    """
    layers = layers_of(architecture)
    norms = architecture.norms_per_layer - (1 if layers.has_input_norms else 0)
    norm = norm_saved_bytes(spec, positions, architecture.hidden_size, in_float32=layers.has_float32_norms)
    saved = mlp_saved_bytes(spec, architecture, positions) + norms * norm
    saved = saved + layer_inputs_saved_bytes(spec, architecture, positions)
    return saved + other_inputs_saved_bytes(spec, architecture, positions)


def first_layer_unsaved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the first layer does not save, because nothing before its first adapter needs a gradient.

    Without checkpointing: the norm before attention; the tensors of attention if none of q, k, v is adapted; the norms
    up to the MLP if o is not adapted either; the tensors of the MLP if only down is adapted. 0 for full fine-tuning and
    for adapted embeddings. By hand, T = 10, H = 8, bfloat16, q_proj adapted: 10 x (8 x 4 + 4) = 360 B; 0 in OLMo 2,
    which has its norms after attention and the MLP.
    """
    targets, layers = spec.lora_target_modules or (), layers_of(architecture)
    if trains_everything(spec) or "embed_tokens" in targets:
        return 0
    adapted = {part.name for part in adapted_projections(architecture, targets)}
    norm = norm_saved_bytes(spec, batch.positions, architecture.hidden_size, in_float32=layers.has_float32_norms)
    before = norm if layers.has_input_norms else 0
    if parts := adapted.intersection(ATTENTION_INPUTS):
        # What is left of the inputs is saved, and the mask only for a gradient of the input.
        return before + len(parts) * input_mask_bytes(spec, batch.positions * architecture.hidden_size)
    if adapted.intersection(LATENT_INPUTS) and architecture.latent is not None:
        return before + sum(norm_saved_bytes(spec, batch.positions, rank) for rank in architecture.latent.ranks)
    unsaved = before + _between_saved_bytes(spec, architecture, batch)
    unsaved = unsaved + frozen_inputs_saved_bytes(spec, architecture, batch.positions, ATTENTION_INPUTS)
    if adapted.intersection(OUTPUTS):
        return unsaved
    unsaved = unsaved + norms_after(architecture) * norm + before
    if adapted.intersection(MLP_INPUTS):
        return unsaved
    unsaved = unsaved + frozen_inputs_saved_bytes(spec, architecture, batch.positions, MLP_INPUTS)
    return unsaved + mlp_saved_bytes(spec, architecture, batch.positions)


def layer_input_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what checkpointing keeps per layer: its input, [T, H] in the type of the residual stream."""
    return block_of(spec)(batch.positions * architecture.hidden_size * element_bytes(spec).stream)
