"""The shape of a decoder-only language model, which determines its memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder as its `config.json` describes it, in transformers' terms."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    """Bias on the q, k and v projections (Qwen2)."""
    qk_norm: bool = False
    """A norm over head_dim on queries and keys (Qwen3)."""
    has_sdpa: bool = True
    """Whether transformers runs it with torch's `scaled_dot_product_attention`."""
    num_experts: int = 1
    """Experts per layer, of which each token uses a few; 1 for a dense model."""
