"""One model family: what its `config.json` leaves out, what its layers are, and what transformers checks of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Defaults of transformers for one model type. None: derived from other fields."""

    max_position_embeddings: int
    vocab_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    num_experts: int = 1
    moe_intermediate_size: int | None = None
    num_experts_per_tok: int | None = None
    shared_expert_intermediate_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Where the decoder layers differ from Llama's."""

    qk_norm: bool = False
    """A norm on queries and keys."""
    normalises_all_heads: bool = False
    """Whether that norm is over all heads at once, not over each."""
    norms_per_layer: int = 2
    """Norms over hidden_size in each layer."""
    has_fused_projections: bool = False
    """One matrix for q, k, v and one for gate, up."""
    has_float32_norms: bool = False
    """Norms multiply by their weight in float32 (`Gemma2RMSNorm.forward`)."""
    caps_scores: bool = False
    """A hyperbolic tangent caps the scores of attention, which torch's SDPA does not support (`_supports_sdpa`)."""
    expert_width: str = ""
    """The field with the inner size of an expert; empty where experts have no closed form."""
    has_adapted_experts: bool = False
    """peft adapts the experts: it takes the names of their layers in transformers 4 for parameters."""
    has_float32_router: bool = False
    """The router weighs results in float32 (`MixtralTopKRouter`)."""


class RotaryTypes(StrEnum):
    """The types of rotary positions that transformers accepts."""

    COMMON = "common"
    AXIAL = "axial"
    """Also those of images, which older files call ``mrope``."""
    PHI3 = "phi3"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Where transformers refuses other values of a `config.json` than of most model types."""

    multiple_of_heads: bool = False
    """hidden_size must be a multiple of num_attention_heads."""
    heads_fill_hidden_size: bool = False
    """head_dim must be hidden_size / num_attention_heads."""
    sections_fill_head: bool = False
    """Rotary positions split each head by `mrope_section`."""
    reads_hidden_act: bool = True
    """Checks the name and the type of hidden_act."""
    bounds_initializer_range: bool = False
    takes_null_key_value_heads: bool = True
    types_head_dim: bool = True
    """head_dim must be a whole number where it is stated."""
    types_layer_types: bool = False
    """layer_types must be a list where it is stated."""
    rotary_types: RotaryTypes = RotaryTypes.COMMON


@dataclass(frozen=True, kw_only=True)
class Tower:
    """What the vision towers of one model type have in common."""

    defaults: Mapping[str, object]
    """Those of transformers."""
    min_pixels: int
    """Of the published processors, like the next one."""
    max_pixels: int
    inner_tensors: int
    has_layer_norm: bool
    mlp_names: tuple[str, ...]
    patch_bias: bool = False
    has_positions: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model type whose layers have formulas."""

    model_type: str
    defaults: Defaults
    layers: Layers = Layers()
    checks: Checks = Checks()
    sliding_window: int | None = None
    """transformers' default of the field; None: no layer slides."""
    slides_on_request: bool = False
    """Whether layers slide only with `use_sliding_window`."""
    layers_repeat: bool = False
    """Whether each layer adds the same to a trace, by a test that compares few layers with all of them."""
    tower: Tower | None = None
    """None for a model of text alone."""
