"""The shape of a decoder-only language model, which determines its memory."""

from dataclasses import dataclass

from profiler.domain.architectures.vision import VisionTower


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
    norms_per_layer: int = 2
    """Norms over hidden_size in each layer: before attention and MLP, and in Gemma 2 and 3 after both as well."""
    has_sdpa: bool = True
    """Whether transformers runs it with torch's `scaled_dot_product_attention`."""
    has_optional_kernels: bool = False
    """Whether recurrent layers run kernels of other packages where these are installed."""
    num_experts: int = 1
    """Experts per layer, of which each token uses a few; 1 for a dense model."""
    expert_width: int = 0
    """Inner size of one expert; 0 where experts have no closed form."""
    experts_per_token: int = 0
    """Experts that compute one token; 0 where experts have no closed form."""
    shared_expert_width: int = 0
    """Inner size of the expert that computes every token (Qwen2-MoE); 0 for none."""
    has_known_layers: bool = True
    """Whether its layers are those of a family that the closed form counts."""
    quantization: str = ""
    """How the weights of the checkpoint are quantised, such as ``bitsandbytes 4-bit``; empty if they are not."""

    scaled_context: int | None = None
    """Tokens that it was made for, where scaled rotary positions make it another number than the positions."""
    has_rotary_positions: bool = True
    """Whether positions are computed for any token, not looked up in a table that ends."""
    other_head: str = ""
    """The class that its `config.json` names, if that has no language model head."""
    attention_dropout: float = 0.0
    """Part of the attention's weights that training drops."""
    sliding_window: int | None = None
    """Tokens that its sliding layers see; None if no layer slides."""
    uncounted: tuple[str, ...] = ()
    """Fields of its `config.json` with values that change memory and that no formula has, and how."""

    vision: VisionTower | None = None
    """The tower for images; None for a model of text alone."""

    reward_models: tuple["Architecture", ...] = ()
    """The models that score its completions, where a trial has some (`TrialSpec.reward_models`)."""

    @property
    def context(self) -> int:
        """Tokens that it was made for."""
        return self.max_position_embeddings if self.scaled_context is None else self.scaled_context

    @property
    def has_closed_form(self) -> bool:
        """Whether there is a closed form for the model."""
        return self.has_known_layers and (self.num_experts <= 1 or self.experts_per_token > 0)
