"""Activations of one decoder layer: what forward saves for backward, and what comes and goes beside it.

Counted tensor by tensor in transformers' `modeling_qwen2.py` (Llama's is the same, Qwen3's adds norms on queries and
keys) as autograd saves them. T is `batch.positions`.
"""

from profiler.analytical.batch import Batch
from profiler.analytical.parameters import adapted_projections, key_width, query_width
from profiler.analytical.trained import FLOAT32_BYTES, ElementBytes, element_bytes, trains_everything
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Attention, TrialSpec, Tuning

_MASK_ALIGNMENT = 8
_MLP_INPUTS = ("gate_proj", "up_proj", "gate_up_proj")
_ATTENTION_INPUTS = ("q_proj", "k_proj", "v_proj", "qkv_proj")


def norm_saved_bytes(spec: TrialSpec, positions: int, width: int) -> int:
    """What an RMSNorm over [T, width] saves.

    The input in float32 and one float32 a row; when the norm's own weight is trained, also the normalised input, in the
    type of the residual stream. The output is saved by whoever takes it. By hand, T = 10, width = 8 in bfloat16, full:
    10 x (8 x 4 + 4 + 8 x 2) = 520 B.
    """
    normalised = element_bytes(spec).weight * width if trains_everything(spec) else 0
    return positions * (FLOAT32_BYTES * width + FLOAT32_BYTES + normalised)


def attention_saved_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What the attention kernel saves: queries, keys, values, output, and its statistics.

    - no mask (flash, cuDNN): keys and values of their own heads; a float32 log-sum-exp for each query;
    - a mask (memory-efficient, cuDNN): keys and values repeated to all query heads, and the mask in the compute type,
      [rows, 1, L, L] with L rounded up to 8, converted anew in every layer;
    - eager: repeated keys and values, the scores' softmax in float32 and once more in the compute type.

    By hand, one row of 8 tokens, 2 query heads and 1 key head of 4, bfloat16: 8 x (8 + 4 + 4 + 8) x 2 + 2 x 8 x 4 =
    448 B without a mask, 8 x 32 x 2 + 64 + 8 x 8 x 2 = 704 B with one.

    Does not hold for float32 without autocast on kernels that pad, nor for sliding windows. FlashAttention-2 with a
    mask unpads the rows instead: taken as without a mask, an upper bound.
    """
    compute = element_bytes(spec).compute
    heads, width = architecture.num_attention_heads, batch.width
    queries, keys = query_width(architecture), key_width(architecture)
    statistics = FLOAT32_BYTES * batch.rows * heads * width
    if spec.attn_implementation is Attention.EAGER:
        scores = batch.rows * heads * width * width * (FLOAT32_BYTES + compute)
        return batch.positions * 4 * queries * compute + scores
    if not batch.has_mask or spec.attn_implementation is Attention.FLASH_ATTENTION_2:
        return batch.positions * 2 * (queries + keys) * compute + statistics
    aligned = -(-width // _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    mask = batch.rows * width * aligned * compute
    return batch.positions * 4 * queries * compute + statistics + mask


def linear_inputs_saved_bytes(spec: TrialSpec, architecture: Architecture, positions: int) -> int:
    """Inputs that the linear layers of one decoder layer save for the gradients of their weights or adapters.

    - full, weights in the compute type: each distinct input once: [T, H] for q, k, v; [T, H] for gate, up; [T, I] for
      down. That of o is the attention kernel's output, counted there;
    - full, float32 weights under autocast: a copy for each of q, k, v, gate, up, because autocast casts per call;
    - LoRA: each adapted layer casts its input to the adapter's float32 and autocast casts that back, so each keeps a
      copy of its own, o included; and A's output, [T, rank];
    - QLoRA: adapters are in bfloat16, so the inputs are shared again.

    By hand, T = 10, H = 8, I = 16 in bfloat16, full: 10 x (8 + 8 + 16) x 2 = 640 B.
    """
    sizes = element_bytes(spec)
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    if trains_everything(spec):
        copies = 5 if sizes.autocast_casts else 2
        return positions * (copies * hidden + inner) * sizes.compute
    adapted = adapted_projections(architecture, spec.lora_target_modules or ())
    low_rank = len(adapted) * (spec.lora_rank or 0) * sizes.compute
    if spec.tuning is Tuning.QLORA:
        names = {part.name for part in adapted}
        shared = hidden * (bool(names.intersection(_ATTENTION_INPUTS)) + bool(names.intersection(_MLP_INPUTS)))
        return positions * ((shared + inner * ("down_proj" in names)) * sizes.compute + low_rank)
    element = sizes.compute if spec.bf16 else sizes.adapter
    return positions * (sum(part.in_features for part in adapted) * element + low_rank)


def mlp_saved_bytes(sizes: ElementBytes, architecture: Architecture, positions: int) -> int:
    """What the gated MLP saves between its linear layers: gate, its activation, and up, each [T, I].

    By hand, T = 10, I = 16 in bfloat16: 3 x 10 x 16 x 2 = 960 B.
    """
    return 3 * positions * architecture.intermediate_size * sizes.compute


def layer_saved_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """All that one decoder layer saves for backward without checkpointing."""
    positions, hidden = batch.positions, architecture.hidden_size
    saved = 2 * norm_saved_bytes(spec, positions, hidden)
    if architecture.qk_norm:
        saved += norm_saved_bytes(spec, positions, query_width(architecture) + key_width(architecture))
    saved += attention_saved_bytes(spec, architecture, batch)
    saved += linear_inputs_saved_bytes(spec, architecture, positions)
    return saved + mlp_saved_bytes(element_bytes(spec), architecture, positions)


def layer_input_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What checkpointing keeps of a layer: its input, [T, H] in the residual stream's type."""
    return batch.positions * architecture.hidden_size * element_bytes(spec).weight


def mlp_backward_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What the MLP's backward holds above the layer's saved activations, at its highest.

    Gradients of the product, of the activated gate and of up, each [T, I], when the saved product (if it was saved at
    all) is gone; or, before that, the product's gradient with the fresh gradient of down's weight, or with that weight
    unpacked from 4 bits (`MatMul4Bit.backward`). And the gradient of the residual stream, [T, H], twice.
    """
    sizes, inner, hidden = element_bytes(spec), architecture.intermediate_size, architecture.hidden_size
    wide = batch.positions * inner * sizes.compute
    stream = 2 * batch.positions * hidden * sizes.weight
    if trains_everything(spec):
        return stream + max(2 * wide, wide + inner * hidden * sizes.weight)
    adapted = {part.name for part in adapted_projections(architecture, spec.lora_target_modules or ())}
    unpacked = inner * hidden * sizes.compute if spec.tuning is Tuning.QLORA else 0
    return stream + max((2 if "down_proj" in adapted else 3) * wide, wide + unpacked)


def norm_backward_bytes(architecture: Architecture, batch: Batch) -> int:
    """What a norm's backward holds above the saved activations, at its highest: four float32 [T, H].

    The gradient through the product, and the three factors of the gradient of the square (`pow_backward`).
    """
    return 4 * batch.positions * architecture.hidden_size * FLOAT32_BYTES


def down_forward_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What a layer's forward holds above what it saves when it comes to the down projection.

    The residual stream and the MLP's input, [T, H] each. An adapter in float32 also takes the product, [T, I], in its
    own type before autocast casts it back to what is saved.
    """
    stream = 2 * batch.positions * architecture.hidden_size * element_bytes(spec).weight
    return stream + batch.positions * architecture.intermediate_size * _down_input_bytes(spec, architecture)


def remaking_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What checkpointing's second forward of a layer holds above what the layer saves.

    As the first forward, and the gradient that waits for it and the down projection's result, [T, H] each.
    """
    waiting = 2 * batch.positions * architecture.hidden_size * element_bytes(spec).weight
    return waiting + down_forward_bytes(spec, architecture, batch)


def _down_input_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    adapted = {part.name for part in adapted_projections(architecture, spec.lora_target_modules or ())}
    if spec.tuning is not Tuning.LORA or "down_proj" not in adapted:
        return 0
    sizes = element_bytes(spec)
    return sizes.compute + sizes.adapter


def layer_without_gradient_bytes(
    spec: TrialSpec, architecture: Architecture, batch: Batch, *, adapted: bool, autocast: bool
) -> int:
    """What one decoder layer needs at its highest when nothing is saved.

    Four [T, H]: the embeddings and the layer's input, which the model's loop still refers to, the residual stream and
    the MLP's input. In the MLP three [T, I]: the activated gate, up and their product. With float32 adapters instead:
    under autocast the product, its copy in float32 and that cast back; without autocast the activated gate, up's
    result, and the adapter's float32 result before and after scaling.

    By hand, T = 10, H = 8, I = 16, bfloat16, no adapters: 10 x (4 x 8 + 3 x 16) x 2 = 1,600 B.
    """
    sizes = element_bytes(spec)
    inner = 3 * sizes.compute
    if adapted and spec.tuning is Tuning.LORA:
        inner = 2 * sizes.compute + sizes.adapter if autocast else 2 * (sizes.weight + sizes.adapter)
    return batch.positions * (4 * architecture.hidden_size * sizes.weight + inner * architecture.intermediate_size)
