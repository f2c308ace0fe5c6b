"""Attention by matrix products: scores of every pair of tokens, made and held whole.

So it is with `attn_implementation=eager`, and where torch's SDPA has no kernel (`makes_scores`).

Counted in `eager_attention_forward` of transformers' models: the product and its scaled copy in the compute type, the
softmax taken of a float32 copy and into float32, and that once more in the compute type. S is rows x heads x L x L.
"""

from profiler.analytical.batch import Batch
from profiler.analytical.parameters import query_width
from profiler.analytical.quantities import Count, Truth, both, negated, where
from profiler.analytical.trained import FLOAT32_BYTES, computed_bytes, element_bytes, stream_bytes, trains_everything
from profiler.analytical.trial_keys import DecoderShape, TrialKeys
from profiler.domain.trial import Attention


def scores(architecture: DecoderShape, batch: Batch) -> Count:
    """How many scores one layer has. By hand, one row of 8 tokens, 2 heads: 128."""
    return batch.rows * architecture.num_attention_heads * batch.width * batch.width


def makes_scores(spec: TrialKeys, architecture: DecoderShape, batch: Batch, compute: Count) -> Truth:
    """Whether attention makes its scores: eager does, and SDPA in float32 with shared keys and no mask.

    Flash attention takes no float32, the memory-efficient kernel no shared keys; with a mask transformers repeats keys.
    """
    if spec.attn_implementation is not Attention.SDPA:
        return spec.attn_implementation is Attention.EAGER
    shared = architecture.num_attention_heads != architecture.num_key_value_heads
    return both(both(compute >= FLOAT32_BYTES, shared), negated(batch.has_mask))


def saved_scores_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """What is saved of the scores: the softmax in float32, and in the compute type where that is another.

    By hand, one row of 8 tokens, 2 heads, bfloat16: 128 x (4 + 2) = 768 B.
    """
    compute = element_bytes(spec).compute
    return scores(architecture, batch) * (FLOAT32_BYTES + where(compute < FLOAT32_BYTES, compute, 0))


def held_scores_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Truth) -> Count:
    """The softmax that eager attention returns beside its output, in the queries' type; 0 for other kernels.

    The rotary embedding gives queries the residual stream's type. By hand, one row of 8 tokens, 2 heads, bfloat16:
    128 x 2 = 256 B.

    Source: `hidden_states, _ = self.self_attn(...)` in transformers' decoder layers: `_` lives as long as the call.
    """
    if spec.attn_implementation is not Attention.EAGER:
        return 0
    return scores(architecture, batch) * stream_bytes(spec, autocast=autocast)


def query_side_element_bytes(spec: TrialKeys, *, autocast: Truth) -> Count:
    """Bytes of what attention by products has beside its scores, for one position and one feature of all query heads.

    Eager: queries, and keys and values repeated to all query heads; the rotary embedding gives the first two the
    weights' type. SDPA without a kernel: queries before and after scaling, repeated keys and values, in one type.

    By hand, float32 or float16 under autocast: eager 4 + 4 + 2 = 10 B; bfloat16, eager: 6 B; SDPA in float32: 16 B.

    Source: `_scaled_dot_product_attention_math` in `aten/src/ATen/native/transformers/attention.cpp`.
    """
    compute = computed_bytes(spec, autocast=autocast)
    if spec.attn_implementation is Attention.EAGER:
        return 2 * stream_bytes(spec, autocast=autocast) + compute
    return 4 * compute


def scores_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Truth) -> Count:
    """Scores at their highest where nothing is saved: scaled, converted to float32, and softmax; 0 for other kernels.

    By hand, one row of 8 tokens, 2 heads: 128 x (2 + 4 + 4) = 1,280 B in bfloat16, 128 x 8 = 1,024 B in float32.

    Source: `softmax` in `aten/src/ATen/native/SoftMax.cpp`, which converts its input first (only float16's is fused).
    """
    # Queries have the stream's type and the mask that eager adds has the weights': both widen what autocast made.
    wide = spec.attn_implementation is Attention.EAGER
    compute = stream_bytes(spec, autocast=autocast) if wide else computed_bytes(spec, autocast=autocast)
    converted = where(compute < FLOAT32_BYTES, FLOAT32_BYTES, 0)
    size = scores(architecture, batch) * (compute + converted + FLOAT32_BYTES)
    return where(makes_scores(spec, architecture, batch, compute), size, 0)


def scores_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Scores at their highest in backward, in all: the softmax, its float32 gradient and that of its input.

    0 for other kernels. By hand, one row of 8 tokens, 2 heads: 128 x 12 = 1,536 B.
    """
    made = makes_scores(spec, architecture, batch, element_bytes(spec).compute)
    return where(made, scores(architecture, batch) * 3 * FLOAT32_BYTES, 0)


def repeated_cache_bytes(spec: TrialKeys, architecture: DecoderShape, *, tokens: Count) -> Count:
    """Keys and values of one layer repeated to all query heads, for one decoding step over `tokens`.

    0 where each query head has its own, and for kernels that take shared keys. By hand, qwen2.5-0.5b in bfloat16, 16
    sequences, 1,041 tokens, eager: 2 x 16 x 1,041 x 896 x 2 B = 59,695,104 B.
    """
    sizes = element_bytes(spec)
    rows = spec.generation_batch_size
    step = Batch(rows=rows, prompt_tokens=tokens, completion_tokens=0, scored_tokens=0, has_mask=False)
    compute = sizes.compute if trains_everything(spec) else sizes.weight
    shared = architecture.num_attention_heads != architecture.num_key_value_heads
    size = 2 * rows * tokens * query_width(architecture) * sizes.weight
    return where(both(shared, makes_scores(spec, architecture, step, compute)), size, 0)
