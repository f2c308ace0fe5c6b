"""The shape of a language model, which determines its memory, with its vision tower if it has one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class VisionTower:
    """A tower as `vision_config` describes it, with what the published processor makes of an image.

    Patches are its sequence; `spatial_merge_size` squared of them become one token of the language model.
    """

    depth: int
    """Blocks."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    """Hidden size of the language model."""
    patch_size: int
    temporal_patch_size: int
    in_channels: int
    spatial_merge_size: int
    min_pixels: int
    """Fewest pixels of an image, by the processor of the published checkpoints."""
    max_pixels: int
    """Most pixels of an image, likewise."""
    inner_tensors: int
    """Tensors that the activation of the MLP saves besides the input of its last layer: 3 for a gated SiLU, 2 for
    QuickGELU, 1 for GELU."""
    has_layer_norm: bool
    """Whether norms are layer norms, with a bias; else root-mean-square norms."""
    mlp_names: tuple[str, ...]
    """The linear layers of the MLP of a block, as transformers names them."""
    position_embeddings: int = 0
    """Rows of a table of learned positions that is interpolated; 0 without."""
    patch_bias: bool = False
    """Whether the convolution that makes patches has a bias."""
    deepstack: int = 0
    """Blocks whose output is merged too, and added to as many first layers of the language model (Qwen3-VL)."""

    @property
    def patches_per_token(self) -> int:
        """Patches that are merged into one token."""
        return self.spatial_merge_size**2

    @property
    def pixels_per_token(self) -> int:
        """Pixels of one token of the language model. By hand, patches of 14, merged 2 x 2: 28 x 28 = 784."""
        return (self.patch_size * self.spatial_merge_size) ** 2

    @property
    def patch_values(self) -> int:
        """Values of one patch in `pixel_values`. By hand, 3 channels x 2 frames x 14 x 14 = 1,176."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def merged_size(self) -> int:
        """Width of the patches of one token together."""
        return self.hidden_size * self.patches_per_token

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate."""
        return len(self.mlp_names) == 3


@dataclass(frozen=True, kw_only=True)
class IdleTensors:
    """Parameters of the same shape of a tower that rows of text pass by: they are loaded, and get no gradient."""

    shape: tuple[int, ...]
    copies: int
    layer: str = ""
    """Name of the linear layer whose weight it is, as peft's `target_modules` takes it; empty for others."""
    is_wrapped: bool = False
    """Whether a module of that name holds the linear layer, which peft refuses to adapt by name."""


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """A second input of each decoder layer: a part of one embedding for all layers, and of one projection of the first.

    Source: `get_per_layer_inputs` and `project_per_layer_inputs` of transformers' `Gemma4TextModel`.
    """

    width: int
    """Values per token and layer (`hidden_size_per_layer_input`)."""
    vocab_size: int
    """Tokens of the embedding (`vocab_size_per_layer_input`)."""
    layers: int
    """Layers of the whole model."""

    @property
    def whole_width(self) -> int:
        """Values per token of all layers. By hand, Gemma 4 E4B: 42 x 256 = 10,752."""
        return self.layers * self.width


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Attention whose keys and values are made of one vector per token, which the cache keeps in their place."""

    q_lora_rank: int | None
    """Width of the vector of which queries are made; None if they are made of the hidden state."""
    kv_lora_rank: int
    """Width of the vector of which keys and values are made."""
    qk_nope_head_dim: int
    """The part of a head of queries and keys without positions."""
    qk_rope_head_dim: int
    """The part with positions, which all heads of keys share."""
    v_head_dim: int

    @property
    def head_dim(self) -> int:
        """Width of one head of queries or keys. By hand, DeepSeek-V3: 128 + 64 = 192."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expanded_dim(self) -> int:
        """Width of the part of keys and of the values that are made for one head. By hand, DeepSeek-V3: 128 + 128."""
        return self.qk_nope_head_dim + self.v_head_dim

    @property
    def ranks(self) -> tuple[int, ...]:
        """Widths of the vectors that are normalised, and of which heads are made. By hand, DeepSeek-V3: 1,536, 512."""
        return tuple(rank for rank in (self.q_lora_rank, self.kv_lora_rank) if rank is not None)


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """Attention by a gated delta rule, whose cache has one size for any number of tokens."""

    num_key_heads: int
    """Heads of queries, and of keys."""
    num_value_heads: int
    """Heads of values, a multiple of those of keys."""
    key_head_dim: int
    value_head_dim: int
    conv_kernel_dim: int
    """Tokens that the convolution before the rule sees."""
    interval: int
    """Every such layer has full attention in its place, the last one too."""

    @property
    def key_width(self) -> int:
        """Width of the queries, and of the keys. By hand, Qwen3-Next: 16 x 128 = 2,048."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of the values, of the gate and of the output. By hand, Qwen3-Next: 32 x 128 = 4,096."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values. By hand, Qwen3-Next: 8,192."""
        return 2 * self.key_width + self.value_width


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
    without_form: str = ""
    """What its layers have and no formula counts, where that has a name."""
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

    first_layers: tuple["Architecture", ...] = ()
    """Its layers of other kinds, which begin before those of this one: per kind the model with these layers alone."""

    keys_are_values: bool = False
    """Whether one linear layer makes keys and values."""

    shares_keys: bool = False
    """Whether its layers take keys and values from an earlier layer of their kind, and make and cache none."""

    layer_inputs: LayerInputs | None = None
    """The embeddings of layers; None for a model whose layers have one input."""

    latent: LatentAttention | None = None
    """The widths of latent attention, whose `head_dim` is that of rotary positions; None for other attention."""

    linear: LinearAttention | None = None
    """The widths of linear attention, of a model with such layers alone: the first of `first_layers`."""

    vision: VisionTower | None = None
    """The tower for images; None for a model of text alone."""

    idle: tuple[IdleTensors, ...] = ()
    """Its towers, where rows are text alone and no formula counts a row with images."""

    scores: int = 0
    """Outputs of a head that scores a row, in place of the LM head; 0 for a model with an LM head."""

    reward_models: tuple["Architecture", ...] = ()
    """The models that score its completions, where a trial has some (`TrialSpec.reward_models`)."""

    @property
    def context(self) -> int:
        """Tokens that it was made for."""
        return self.max_position_embeddings if self.scaled_context is None else self.scaled_context

    @property
    def has_linear_attention(self) -> bool:
        """Whether some layers have linear attention."""
        return any(kind.linear is not None for kind in self.first_layers)

    @property
    def has_closed_form(self) -> bool:
        """Whether there is a closed form for the model."""
        return self.has_known_layers and (self.num_experts <= 1 or self.experts_per_token > 0)


def sharing_keys(of_kind: Mapping[str, Architecture], kinds: Sequence[str], makes: int, wide: int) -> Architecture:
    """Return a model whose last layers take keys and values from earlier ones.

    Args:
        of_kind: Per kind of attention the model whose layers are all of it, in the order in which they take turns.
        kinds: The kind of each layer.
        makes: The number of the first layers, which make keys.
        wide: How many times as wide the MLP of the others is.
    """
    found = [replace(model, num_hidden_layers=[*kinds[:makes]].count(kind)) for kind, model in of_kind.items()]
    for kind, model in of_kind.items():
        layers, inner = [*kinds[makes:]].count(kind), wide * model.intermediate_size
        found.append(replace(model, num_hidden_layers=layers, shares_keys=True, intermediate_size=inner))
    *first, last = (model for model in found if model.num_hidden_layers)
    return replace(last, num_hidden_layers=len(kinds), first_layers=tuple(first))


@dataclass(frozen=True, kw_only=True)
class ModelCount:
    """The parameters and linear layers of a model."""

    parameters: int
    """Tied ones count once."""
    in_towers: int
    """Of them, those of the parts for images or sound."""
    linear_layers: int
    """Those that peft adapts by `all-linear`: without the LM head, with those of the towers."""
    lora_per_rank: int
    """Parameters that adapters of rank 1 on all of them have: inputs and outputs of each."""
    linear_names: tuple[str, ...]
    """Their names, each once, as `target_modules` takes them; without those that only have a number."""
    names_experts: bool = True
    """Whether its configuration has the experts that a loss of its router needs under the name that trl asks for."""
    has_base_model: bool = True
    """Whether the model has a part without the LM head under the name that its class states."""
    has_sdpa: bool = True
    """Whether transformers runs its attention with torch's SDPA."""


ConfigValue = int | float | bool | str | None | Sequence[int] | Sequence[str] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """One built-in model."""

    name: str
    hub_ids: tuple[str, ...]
    parameters: int
    """Tied parameters counted once."""
    config: Mapping[str, ConfigValue]
    """Fields of `config.json`, by transformers' names."""
    checkpoint_dtype: str = "bfloat16"
    """Data type of the published weights, as its `config.json` says."""
