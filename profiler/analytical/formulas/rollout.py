"""Rollout by transformers' `generate`: the KV cache, its growth, and sampling."""

from collections.abc import Sequence

from profiler.analytical.formulas.models.parameters import cached_widths, key_width
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    computed_bytes,
    element_bytes,
    stream_bytes,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import Count, Term, smaller
from profiler.analytical.formulas.sizes.rounding import Block, block_of, exact
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.domain.architectures.architecture import LinearAttention

_KEPT_COPIES = 2
_SAMPLING_COPIES = 3


def kv_element_bytes(spec: TrialKeys) -> Count:
    """Return the bytes of one cached value, which has the type of the residual stream.

    With adapters, `generate` does not call the forward that autocast wraps. Under full fine-tuning autocast makes keys
    narrower, but the rotary embedding widens them again, and the cache takes its type from the keys. Float16 times the
    bfloat16 of autocast is float32.

    By hand, float16 under autocast: full 4 B, LoRA 2 B.
    """
    return stream_bytes(spec, autocast=False)


def kv_cache(
    architecture: DecoderShape,
    *,
    sequences: Count,
    tokens: Count,
    element: Count,
    block: Block = exact,
    slides: bool = False,
) -> Term:
    """Return a KV cache in which each sequence has `tokens` tokens.

    Per layer the cache has K and V, each [sequences, kv_heads, tokens, head_dim]:

        2 * layers * sequences * kv_heads * tokens * head_dim * element

    Of latent attention it has what they are made of, [sequences, tokens, kv_lora_rank] and [.., qk_rope_head_dim], and
    of linear attention a state of any length (`state_bytes`).

    By hand, qwen2.5-0.5b, 16 sequences, 1,041 tokens, bfloat16: 2 x 24 x 16 x 2 x 1,041 x 64 x 2 B = 204,668,928 B.
    DeepSeek-V3: 61 x 16 x 1,041 x (512 + 64) x 2 B = 1,170,450,432 B.

    Source: the tensor shapes of transformers' `DynamicCache`. Does not hold for a paged cache (vLLM) or sliding
    windows, but those of `first_layers`: with `slides`, as after the first token, these have no more than the window.
    """
    (keys, values), kinds = cached_widths(architecture), layer_kinds(architecture)
    windows = [kind.sliding_window if slides else None for kind in kinds[:-1]]
    tokens_of_kinds = (*(tokens if window is None else smaller(tokens, window) for window in windows), tokens)

    def of_layer(kind: DecoderShape, present: Count) -> Count:
        if kind.linear is not None:
            return state_bytes(kind.linear, sequences=sequences, element=element, block=block)
        return sum(block(sequences * part * present * element) for part in cached_widths(kind))

    each = zip(kinds, tokens_of_kinds, strict=True)
    size = sum(kind.num_hidden_layers * of_layer(kind, present) for kind, present in each)

    def of_kind(kind: DecoderShape) -> str:
        layers = kind.num_hidden_layers
        if kind.linear is not None:
            return f"{layers} x {sequences} states"
        return f"2 x {layers} x {sequences} x {tokens} x {key_width(kind)} x {element} B"

    def words() -> str:
        if any(kind.linear is not None for kind in kinds):
            return ", ".join(map(of_kind, kinds))
        twice, width = ("2 x ", keys) if architecture.latent is None else ("", keys + values)
        if not any(windows):
            return f"{twice}{architecture.num_hidden_layers} x {sequences} x {tokens} x {width} x {element} B"
        pairs = zip(kinds, tokens_of_kinds, strict=True)
        layers = " + ".join(f"{kind.num_hidden_layers} x {there}" for kind, there in pairs)
        return f"{twice}({layers}) x {sequences} x {width} x {element} B"

    return Term(size, words)


def state_bytes(linear: LinearAttention, *, sequences: Count, element: Count, block: Block = exact) -> Count:
    """Return the cache of one layer: the last inputs of the convolution, and the state in float32, of any length.

    By hand, Qwen3-Next, 16 sequences, bfloat16: 16 x (8,192 x 4 x 2 + 32 x 128 x 128 x 4) B = 34,603,008 B.

    Source: `LinearAttentionLayer` in transformers' `cache_utils.py`.
    """
    convolution = block(sequences * linear.conv_width * linear.conv_kernel_dim * element)
    return convolution + recurrent_state_bytes(linear, sequences * linear.num_value_heads, FLOAT32_BYTES, block)


def recurrent_state_bytes(linear: LinearAttention, rows: Count, element: Count, block: Block) -> Count:
    """Return the state of rows times heads of values."""
    return block(rows * linear.key_head_dim * linear.value_head_dim * element)


def growth_copy(
    architecture: DecoderShape, *, sequences: Count, tokens: Count, element: Count, block: Block = exact
) -> Term:
    """Return the keys of one layer, which exist twice while the cache grows.

    `torch.cat` allocates the longer tensor before the shorter one is freed.

    By hand, as in `kv_cache`: 204,668,928 / 48 = 4,263,936 B.
    """
    last = next(kind for kind in reversed(layer_kinds(architecture)) if not kind.shares_keys)
    return Term(block(sequences * cached_widths(last)[0] * tokens * element), lambda: "1 K")


def last_logits(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the logits at the LM head: the product, and two float32 tensors of the token before.

    These are the scores and the softmax, which `_sample` in transformers still references.

    By hand, 16 sequences, V = 151,936, under autocast: 16 x 151,936 x (2 + 2 x 4) B = 24,309,760 B.
    """
    product = computed_bytes(spec, autocast=False)
    return _of_last_position(spec, architecture, (product, *[FLOAT32_BYTES] * _KEPT_COPIES))


def sampling(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return what sampling one token per sequence needs: four tensors of the last position, [sequences, V].

    The output of the model; its float32 copy (`_sample`); the softmax; and the noise that `torch.multinomial` divides
    by. By hand, 16 sequences, V = 151,936, under autocast: 16 x 151,936 x 16 B = 38,895,616 B.
    """
    sizes = element_bytes(spec)
    output = sizes.output if trains_everything(spec) else sizes.weight
    return _of_last_position(spec, architecture, (output, *[FLOAT32_BYTES] * _SAMPLING_COPIES))


def _of_last_position(spec: TrialKeys, architecture: DecoderShape, elements: Sequence[Count]) -> Term:
    """Return tensors of the last position, [sequences, V], with these bytes per value."""
    block, rows, vocabulary = block_of(spec), spec.generation_batch_size, architecture.vocab_size
    size = sum(block(rows * vocabulary * element) for element in elements)
    return Term(size, lambda: f"{rows} x {vocabulary} x {len(elements)} copies")
