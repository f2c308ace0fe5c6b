"""Model families, one row each: what a `config.json` leaves out, and what the layers are.

Model families, one row each: the model types whose layers have formulas.

Source: transformers 5.23, `configuration_<type>.py` and `modeling_<type>.py` in `models/<type>/`, read field by field;
peft 0.21.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.domain.architectures.architecture import IdleTensors


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
    n_shared_experts: int | None = None
    first_k_dense_replace: int | None = None
    use_qk_norm: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    linear_num_key_heads: int | None = None
    linear_num_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel_dim: int | None = None
    full_attention_interval: int | None = None
    global_head_dim: int | None = None
    num_global_key_value_heads: int | None = None
    attention_k_eq_v: bool = False
    hidden_size_per_layer_input: int | None = None
    num_kv_shared_layers: int | None = None
    vocab_size_per_layer_input: int | None = None
    use_double_wide_mlp: bool = False


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Where the decoder layers differ from Llama's."""

    qk_norm: bool = False
    """A norm on queries and keys."""
    qk_norm_on_request: bool = False
    """The same only with `use_qk_norm`."""
    normalises_all_heads: bool = False
    """Whether that norm is over all heads at once, not over each."""
    normalises_after_values: bool = False
    """Whether that norm comes after the projection of the values, so that in backward their gradient waits for it."""
    norms_per_layer: int = 2
    """Norms over hidden_size in each layer."""
    has_input_norms: bool = True
    """Norms before attention and the MLP; else only after them."""
    has_fused_attention: bool = False
    """One matrix for q, k, v."""
    has_fused_mlp: bool = False
    """One matrix for gate, up."""
    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """The linear layers that get a bias by `attention_bias`."""
    concatenates_heads: bool = False
    """Queries and keys are concatenated from a part with positions and one without (`apply_rotary_pos_emb`)."""
    scales_stream: bool = False
    """The embeddings, and what attention and the MLP add to the residual stream, are multiplied by numbers."""
    has_float32_norms: bool = False
    """Norms multiply by their weight in float32 (`Gemma2RMSNorm.forward`)."""
    caps_scores: bool = False
    """A hyperbolic tangent caps the scores of attention, which torch's SDPA does not support (`_supports_sdpa`)."""
    caps_logits: bool = False
    """And one caps all logits (`Gemma2ForCausalLM.forward`)."""
    expert_width: str = ""
    """The field with the inner size of an expert; empty where experts have no closed form."""
    expert_names: tuple[str, ...] = ()
    """Gate, up and down of an expert in transformers 4, which peft takes for parameters; empty if it adapts none."""
    has_float32_router: bool = False
    """The router weighs results in float32 (`MixtralTopKRouter`)."""
    widens_router: bool = False
    """The router casts its input and its weight to float32; under autocast it computes in bfloat16 nevertheless
    (`DeepseekV3TopkRouter`), but for a softmax in float32 (`DeepseekV2TopkRouter`, with `has_float32_router`)."""
    adds_shared_expert: bool = False
    """The shared expert comes after the others, and its result is added as it is; else before them, and weighed."""
    norms_experts: bool = False
    """With `enable_moe_block`, experts come after the MLP and are added to it: three more norms, and a router that is a
    linear layer behind a norm and a product with a weight (`Gemma4TextDecoderLayer`, `Gemma4TextRouter`)."""
    has_biased_experts: bool = False
    """Experts and their router have biases, and gate and up are clamped (`GptOssExperts`)."""
    has_sinks: bool = False
    """Each head has a logit to which attention can go, which torch's SDPA does not support (`_supports_sdpa`)."""
    names_mlp_types: bool = False
    """`mlp_layer_types` says which layers have a dense MLP, and `first_k_dense_replace` nothing; a stated `head_dim` is
    `qk_rope_head_dim` (`Glm4MoeLiteConfig`)."""
    has_latent_attention: bool = False
    """Keys and values are made of one vector per token (`DeepseekV3Attention`)."""
    gates_output: bool = False
    """q also makes a gate, by whose sigmoid the output of attention is multiplied (`Qwen3NextAttention`)."""
    linear_inputs: tuple[str, ...] = ()
    """The linear layers before the delta rule of linear attention; empty without such layers. One that makes the gate
    together with queries, keys and values is split by copies (`Qwen3NextGatedDeltaNet`)."""
    normalises_values: bool = False
    """A norm without weight on values (`Gemma4TextAttention`)."""
    scales_layers: bool = False
    """Each layer ends with a product with a number that it keeps, which starts its recomputation (`layer_scalar`)."""
    alternates: bool = False
    """Some layers slide, by default every other, or with `global_head_dim` five of six; their windows are counted."""

    @property
    def weighs_shared_expert(self) -> bool:
        """Whether a shared expert comes before the others, and a linear layer weighs its result."""
        return not (self.adds_shared_expert or self.norms_experts)

    @property
    def joins_linear_inputs(self) -> bool:
        """Whether one linear layer makes queries, keys, values and the gate of linear attention."""
        return len(self.linear_inputs) == _JOINED_INPUTS


_JOINED_INPUTS = 2


class RotaryTypes(StrEnum):
    """The types of rotary positions that transformers accepts."""

    COMMON = "common"
    AXIAL = "axial"
    """Also those of images, which older files call ``mrope``."""
    PHI3 = "phi3"
    SCALED_QUERIES = "scaled queries"
    """The common ones, with two values by which queries are scaled (`get_llama_4_attn_scale`)."""
    BY_LAYER_TYPE = "by layer type"
    """One object per type of layers, and none by an older name."""
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
    looks_up_hidden_act: bool = True
    """Looks its name up: a gate of its own needs none, though the type is checked."""
    bounds_initializer_range: bool = False
    takes_null_key_value_heads: bool = True
    types_head_dim: bool = True
    """head_dim must be a whole number where it is stated."""
    needs_head_dim: bool = False
    """head_dim must be stated: nothing is derived (`HunYuanDenseV1Attention`)."""
    types_layer_types: bool = False
    """layer_types must be a list where it is stated."""
    rotary_types: RotaryTypes = RotaryTypes.COMMON
    head_dim_is_rotary: bool = False
    """head_dim, where it is stated, must be qk_rope_head_dim."""
    caps_on_request: bool = False
    """Logits are capped only where final_logit_softcapping is stated."""
    reads_dropout: bool = True
    """Reads attention_dropout."""
    types_dropout: bool = False
    """attention_dropout must be no whole number."""
    names_choice: bool = False
    """topk_method must be a way to choose experts that the router knows."""
    rotates_part: bool = False
    """Rotary positions turn a part of each head where the file does not say which."""
    names_tower_layers: bool = False
    """The class names layers of a tower that a model of text lacks (`_no_split_modules`), so accelerate cannot shard it
    by FSDP (`fsdp2_prepare_auto_wrap_policy` in its `utils/fsdp_utils.py`)."""


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
    has_unsloth_kernels: bool = False
    """Whether Unsloth computes it with kernels of its own, and its attention makes no scores whatever is installed.

    Source: `FastLanguageModel.from_pretrained` in `unsloth/models/loader.py`, unsloth 2026.10.9.
    """
    has_liger_formula: bool = True
    """Whether Liger's kernels for it are those of the formulas (`MODEL_TYPE_TO_APPLY_LIGER_FN`, liger-kernel 0.8.5)."""
    has_reward_model: bool = True
    """Whether transformers has a class that scores a row (`MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES`)."""


LINEAR_OUTPUT = "out_proj"
"""The linear layer after linear attention."""

_EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")
_QKV = ("q_proj", "k_proj", "v_proj")

_TOWER_DEFAULTS = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 16}

_AXIAL_CHECKS = Checks(
    multiple_of_heads=True,
    heads_fill_hidden_size=True,
    sections_fill_head=True,
    types_head_dim=False,
    rotary_types=RotaryTypes.AXIAL,
)

_GLM = Defaults(
    max_position_embeddings=131_072,
    vocab_size=151_552,
    num_attention_heads=32,
    num_key_value_heads=2,
    head_dim=128,
    attention_bias=True,
)

_DEEPSEEK = Defaults(
    max_position_embeddings=4096,
    vocab_size=129_280,
    num_attention_heads=128,
    num_key_value_heads=128,
    num_experts=256,
    moe_intermediate_size=2048,
    num_experts_per_tok=8,
    n_shared_experts=1,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
)
_LATENT_LAYERS = Layers(
    biased=("q_a_proj", "kv_a_proj_with_mqa", "o_proj"),
    concatenates_heads=True,
    expert_width="moe_intermediate_size",
    expert_names=_EXPERT_NAMES,
    widens_router=True,
    adds_shared_expert=True,
    has_latent_attention=True,
)

_DELTA = Defaults(
    max_position_embeddings=32_768,
    vocab_size=248_320,
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    full_attention_interval=4,
)
_DELTA_LAYERS = Layers(
    qk_norm=True,
    has_float32_norms=True,
    concatenates_heads=True,
    gates_output=True,
    linear_inputs=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)
_DELTA_CHECKS = Checks(takes_null_key_value_heads=False, rotates_part=True)

_FAMILIES = (
    Family(
        model_type="llama",
        defaults=Defaults(max_position_embeddings=2048),
        checks=Checks(multiple_of_heads=True, bounds_initializer_range=True, types_head_dim=False),
        layers_repeat=True,
        has_unsloth_kernels=True,
    ),
    Family(
        model_type="mistral",
        defaults=Defaults(max_position_embeddings=131_072, num_key_value_heads=8),
        layers=Layers(biased=()),
        checks=Checks(takes_null_key_value_heads=False, types_head_dim=False),
        sliding_window=4096,
        layers_repeat=True,
        has_unsloth_kernels=True,
    ),
    Family(
        model_type="qwen2",
        defaults=Defaults(max_position_embeddings=32_768, num_key_value_heads=32, attention_bias=True),
        layers=Layers(biased=_QKV),
        slides_on_request=True,
        layers_repeat=True,
        has_unsloth_kernels=True,
    ),
    Family(
        model_type="qwen3",
        defaults=Defaults(max_position_embeddings=32_768, num_key_value_heads=32, head_dim=128),
        layers=Layers(qk_norm=True),
        slides_on_request=True,
        layers_repeat=True,
        has_unsloth_kernels=True,
    ),
    Family(
        model_type="gemma",
        defaults=Defaults(max_position_embeddings=8192, num_key_value_heads=16, head_dim=256, tie_word_embeddings=True),
        layers=Layers(has_float32_norms=True),
        checks=Checks(takes_null_key_value_heads=False),
        has_unsloth_kernels=True,
    ),
    Family(
        model_type="gemma2",
        defaults=Defaults(max_position_embeddings=8192, num_key_value_heads=4, head_dim=256, tie_word_embeddings=True),
        layers=Layers(norms_per_layer=4, has_float32_norms=True, caps_scores=True, caps_logits=True),
        checks=Checks(multiple_of_heads=True, takes_null_key_value_heads=False, reads_hidden_act=False),
        sliding_window=4096,
    ),
    Family(
        model_type="gemma3_text",
        defaults=Defaults(
            max_position_embeddings=131_072,
            vocab_size=262_208,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            tie_word_embeddings=True,
        ),
        layers=Layers(qk_norm=True, normalises_after_values=True, norms_per_layer=4, has_float32_norms=True),
        checks=Checks(
            multiple_of_heads=True,
            takes_null_key_value_heads=False,
            reads_hidden_act=False,
            rotary_types=RotaryTypes.UNCHECKED,
        ),
        sliding_window=4096,
    ),
    Family(
        model_type="gemma4_text",
        has_liger_formula=False,
        defaults=Defaults(
            max_position_embeddings=131_072,
            vocab_size=262_144,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            tie_word_embeddings=True,
            global_head_dim=512,
            hidden_size_per_layer_input=256,
            num_kv_shared_layers=0,
            vocab_size_per_layer_input=262_144,
        ),
        layers=Layers(
            qk_norm=True,
            norms_per_layer=4,
            has_float32_norms=True,
            caps_logits=True,
            normalises_values=True,
            scales_layers=True,
            alternates=True,
            expert_width="moe_intermediate_size",
            has_float32_router=True,
            norms_experts=True,
        ),
        checks=Checks(
            takes_null_key_value_heads=False,
            reads_hidden_act=False,
            rotary_types=RotaryTypes.BY_LAYER_TYPE,
            caps_on_request=True,
            names_tower_layers=True,
        ),
        sliding_window=512,
        has_reward_model=False,
    ),
    Family(
        model_type="mixtral",
        defaults=Defaults(max_position_embeddings=131_072, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2),
        layers=Layers(
            biased=(), expert_names=("w1", "w3", "w2"), expert_width="intermediate_size", has_float32_router=True
        ),
        checks=Checks(takes_null_key_value_heads=False, types_head_dim=False),
    ),
    Family(
        model_type="qwen2_moe",
        defaults=Defaults(
            max_position_embeddings=32_768,
            num_key_value_heads=16,
            attention_bias=True,
            num_experts=60,
            moe_intermediate_size=1408,
            num_experts_per_tok=4,
            shared_expert_intermediate_size=5632,
        ),
        layers=Layers(biased=_QKV, expert_width="moe_intermediate_size"),
        checks=Checks(takes_null_key_value_heads=False),
        slides_on_request=True,
    ),
    Family(
        model_type="qwen3_moe",
        defaults=Defaults(
            max_position_embeddings=32_768,
            num_key_value_heads=4,
            num_experts=128,
            moe_intermediate_size=768,
            num_experts_per_tok=8,
        ),
        layers=Layers(qk_norm=True, expert_width="moe_intermediate_size", expert_names=_EXPERT_NAMES),
        checks=Checks(takes_null_key_value_heads=False),
        slides_on_request=True,
    ),
    Family(
        model_type="olmoe",
        has_reward_model=False,
        defaults=Defaults(max_position_embeddings=4096, num_experts=64, num_experts_per_tok=8),
        layers=Layers(
            qk_norm=True, normalises_all_heads=True, expert_width="intermediate_size", expert_names=_EXPERT_NAMES
        ),
        checks=Checks(multiple_of_heads=True, heads_fill_hidden_size=True),
    ),
    Family(
        model_type="phi3",
        defaults=Defaults(max_position_embeddings=4096),
        layers=Layers(has_fused_attention=True, has_fused_mlp=True, biased=(), concatenates_heads=True),
        checks=Checks(rotary_types=RotaryTypes.PHI3),
    ),
    Family(
        model_type="granite",
        defaults=Defaults(max_position_embeddings=2048),
        layers=Layers(scales_stream=True),
        has_reward_model=False,
    ),
    Family(
        model_type="olmo2",
        defaults=Defaults(max_position_embeddings=2048),
        layers=Layers(qk_norm=True, normalises_all_heads=True, has_input_norms=False, has_float32_norms=True),
    ),
    Family(
        model_type="glm",
        has_liger_formula=False,
        defaults=_GLM,
        layers=Layers(has_fused_mlp=True, biased=_QKV, concatenates_heads=True),
        checks=Checks(takes_null_key_value_heads=False, rotates_part=True),
    ),
    Family(
        model_type="glm4",
        defaults=_GLM,
        layers=Layers(norms_per_layer=4, has_fused_mlp=True, biased=_QKV, concatenates_heads=True),
        checks=Checks(takes_null_key_value_heads=False, rotates_part=True),
    ),
    Family(
        model_type="glm4_moe",
        has_reward_model=False,
        defaults=Defaults(
            max_position_embeddings=131_072,
            vocab_size=151_552,
            num_attention_heads=96,
            num_key_value_heads=8,
            num_experts=128,
            moe_intermediate_size=1408,
            num_experts_per_tok=8,
            n_shared_experts=1,
            first_k_dense_replace=1,
        ),
        layers=Layers(
            biased=_QKV,
            qk_norm_on_request=True,
            normalises_after_values=True,
            concatenates_heads=True,
            expert_width="moe_intermediate_size",
            expert_names=_EXPERT_NAMES,
            widens_router=True,
            adds_shared_expert=True,
        ),
        checks=Checks(takes_null_key_value_heads=False, rotates_part=True),
    ),
    Family(
        model_type="deepseek_v2",
        defaults=replace(
            _DEEPSEEK,
            max_position_embeddings=2048,
            vocab_size=102_400,
            num_attention_heads=32,
            num_key_value_heads=None,
            num_experts=64,
            moe_intermediate_size=1407,
            num_experts_per_tok=None,
            n_shared_experts=2,
            first_k_dense_replace=0,
        ),
        layers=replace(_LATENT_LAYERS, has_float32_router=True),
        checks=Checks(multiple_of_heads=True, types_head_dim=False, types_dropout=True, names_choice=True),
    ),
    Family(
        model_type="deepseek_v3",
        defaults=_DEEPSEEK,
        layers=_LATENT_LAYERS,
        checks=Checks(types_head_dim=False, head_dim_is_rotary=True),
    ),
    Family(
        model_type="glm4_moe_lite",
        has_reward_model=False,
        defaults=replace(
            _DEEPSEEK,
            max_position_embeddings=202_752,
            vocab_size=154_880,
            num_attention_heads=20,
            num_key_value_heads=20,
            num_experts=64,
            moe_intermediate_size=1536,
            num_experts_per_tok=4,
            first_k_dense_replace=1,
            q_lora_rank=768,
            qk_nope_head_dim=192,
            v_head_dim=256,
        ),
        layers=replace(_LATENT_LAYERS, names_mlp_types=True),
        checks=Checks(types_head_dim=False, takes_null_key_value_heads=False),
    ),
    Family(
        model_type="gpt_oss",
        defaults=Defaults(
            max_position_embeddings=131_072,
            vocab_size=201_088,
            num_attention_heads=64,
            num_key_value_heads=8,
            head_dim=64,
            attention_bias=True,
            num_experts=128,
            num_experts_per_tok=4,
        ),
        layers=Layers(
            has_float32_norms=True,
            concatenates_heads=True,
            has_sinks=True,
            alternates=True,
            expert_width="intermediate_size",
            has_biased_experts=True,
        ),
        checks=Checks(takes_null_key_value_heads=False, looks_up_hidden_act=False),
        sliding_window=128,
    ),
    Family(
        model_type="qwen3_next",
        defaults=replace(
            _DELTA,
            vocab_size=151_936,
            num_experts=512,
            moe_intermediate_size=512,
            num_experts_per_tok=10,
            shared_expert_intermediate_size=512,
        ),
        layers=replace(
            _DELTA_LAYERS,
            linear_inputs=("in_proj_qkvz", "in_proj_ba"),
            expert_width="moe_intermediate_size",
            expert_names=_EXPERT_NAMES,
        ),
        checks=_DELTA_CHECKS,
    ),
    Family(
        model_type="qwen3_5_text",
        defaults=replace(_DELTA, num_key_value_heads=4),
        layers=_DELTA_LAYERS,
        checks=replace(_DELTA_CHECKS, names_tower_layers=True),
    ),
    Family(
        model_type="qwen3_5_moe_text",
        defaults=replace(
            _DELTA,
            num_experts=256,
            moe_intermediate_size=512,
            num_experts_per_tok=8,
            shared_expert_intermediate_size=512,
        ),
        layers=replace(_DELTA_LAYERS, expert_width="moe_intermediate_size"),
        checks=replace(_DELTA_CHECKS, names_tower_layers=True),
    ),
    Family(
        model_type="olmo3",
        defaults=Defaults(max_position_embeddings=2048),
        layers=Layers(qk_norm=True, normalises_all_heads=True, has_input_norms=False, has_float32_norms=True),
        checks=Checks(rotary_types=RotaryTypes.UNCHECKED),
        sliding_window=4096,
    ),
    Family(
        model_type="smollm3",
        defaults=Defaults(max_position_embeddings=32_768, num_key_value_heads=4, tie_word_embeddings=True),
        slides_on_request=True,
    ),
    Family(
        model_type="ministral3",
        has_liger_formula=False,
        defaults=Defaults(max_position_embeddings=262_144, vocab_size=131_072, num_key_value_heads=8, head_dim=128),
        layers=Layers(biased=()),
        checks=Checks(takes_null_key_value_heads=False, rotary_types=RotaryTypes.SCALED_QUERIES),
    ),
    Family(
        model_type="exaone4",
        defaults=Defaults(max_position_embeddings=2048, num_key_value_heads=32),
        layers=Layers(biased=(), qk_norm=True, normalises_after_values=True, has_input_norms=False),
        checks=Checks(takes_null_key_value_heads=False),
        sliding_window=4096,
    ),
    Family(
        model_type="hunyuan_v1_dense",
        defaults=Defaults(max_position_embeddings=2048),
        layers=Layers(qk_norm=True, normalises_after_values=True),
        checks=Checks(needs_head_dim=True),
    ),
    Family(
        model_type="ernie4_5",
        has_liger_formula=False,
        defaults=Defaults(
            max_position_embeddings=131_072,
            vocab_size=103_424,
            num_attention_heads=16,
            num_key_value_heads=2,
            head_dim=128,
            tie_word_embeddings=True,
        ),
        layers=Layers(biased=()),
        checks=Checks(reads_dropout=False, types_head_dim=False),
        has_reward_model=False,
    ),
    Family(
        model_type="helium",
        has_liger_formula=False,
        defaults=Defaults(max_position_embeddings=4096, num_key_value_heads=20, head_dim=128),
        layers=Layers(biased=_QKV, has_float32_norms=True),
        checks=Checks(takes_null_key_value_heads=False, heads_fill_hidden_size=True),
    ),
    Family(
        model_type="qwen2_vl",
        has_reward_model=False,
        defaults=Defaults(max_position_embeddings=32_768, num_key_value_heads=8, attention_bias=True),
        layers=Layers(biased=_QKV),
        checks=_AXIAL_CHECKS,
        slides_on_request=True,
        tower=Tower(
            defaults={
                **_TOWER_DEFAULTS,
                "depth": 32,
                "embed_dim": 1280,
                "mlp_ratio": 4,
                "hidden_size": 3584,
                "patch_size": 14,
            },
            min_pixels=3136,
            max_pixels=12_845_056,
            inner_tensors=2,
            has_layer_norm=True,
            mlp_names=("fc1", "fc2"),
        ),
    ),
    Family(
        model_type="qwen2_5_vl",
        has_reward_model=False,
        defaults=Defaults(max_position_embeddings=32_768, num_key_value_heads=8, attention_bias=True),
        layers=Layers(biased=_QKV),
        checks=_AXIAL_CHECKS,
        slides_on_request=True,
        tower=Tower(
            defaults={
                **_TOWER_DEFAULTS,
                "depth": 32,
                "hidden_size": 3584,
                "intermediate_size": 3420,
                "out_hidden_size": 3584,
                "patch_size": 14,
            },
            min_pixels=3136,
            max_pixels=12_845_056,
            inner_tensors=3,
            has_layer_norm=False,
            mlp_names=("gate_proj", "up_proj", "down_proj"),
        ),
    ),
    Family(
        model_type="qwen3_vl",
        has_reward_model=False,
        defaults=Defaults(max_position_embeddings=128_000, num_key_value_heads=32, head_dim=128),
        layers=Layers(qk_norm=True),
        checks=Checks(types_layer_types=True, rotary_types=RotaryTypes.AXIAL),
        tower=Tower(
            defaults={
                **_TOWER_DEFAULTS,
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "out_hidden_size": 3584,
                "patch_size": 16,
                "num_position_embeddings": 2304,
            },
            min_pixels=65_536,
            max_pixels=16_777_216,
            inner_tensors=1,
            has_layer_norm=True,
            mlp_names=("linear_fc1", "linear_fc2"),
            patch_bias=True,
            has_positions=True,
        ),
    ),
)

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}
"""By model type."""


@dataclass(frozen=True, kw_only=True)
class IdleTower:
    """A tower for images or sound that rows of text pass by, of which parameters alone are counted."""

    defaults: Mapping[str, int]
    """Sizes in its configuration, with transformers' defaults; those of a list are numbered after a point."""
    switches: tuple[str, ...] = ()
    """Fields that are true by default, and then add parameters without a formula."""
    tensors: Callable[[Mapping[str, int], int], tuple[IdleTensors, ...]]
    """Returns its parameters by these sizes and the hidden size of the decoder."""


def _clippable_tower(sizes: Mapping[str, int], text: int) -> tuple[IdleTensors, ...]:
    """Return the parameters of `Gemma4VisionModel` and of the projection to the decoder."""
    hidden, inner, blocks = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    queries, keys = (sizes[heads] * sizes["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    layers = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    return (
        IdleTensors(shape=(hidden, 3 * sizes["patch_size"] ** 2), copies=1, layer="input_proj"),
        IdleTensors(shape=(text, hidden), copies=1, layer="embedding_projection"),
        *(IdleTensors(shape=shape, copies=blocks, layer=name, is_wrapped=True) for name, shape in layers.items()),
        IdleTensors(shape=(2, sizes["position_embedding_size"], hidden), copies=1),
        IdleTensors(shape=(hidden,), copies=4 * blocks),
        IdleTensors(shape=(sizes["head_dim"],), copies=2 * blocks),
    )


def _conformer_tower(sizes: Mapping[str, int], text: int) -> tuple[IdleTensors, ...]:
    """Return the parameters of `Gemma4AudioModel` and of the projection to the decoder.

    By hand, 1 block of h = 8 with 2 heads and kernels of 3, channels of 8 and 4, an output of 6, text of 10: two MLPs
    of 2 x 256, attention of 5 x 64 + 4, a convolution of 3 x 64 + 24, 9 norms of 8; before, 72 + 288 in convolutions,
    norms of 12 and 8 x 8; after, 48 + 6 and 60: 2,186.
    """
    hidden, blocks, output = sizes["hidden_size"], sizes["num_hidden_layers"], sizes["output_proj_dims"]
    first, second = sizes["subsampling_conv_channels.0"], sizes["subsampling_conv_channels.1"]
    wrapped = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, hidden),
        "v_proj": (hidden, hidden),
        "post": (hidden, hidden),
        "linear_start": (2 * hidden, hidden),
        "linear_end": (hidden, hidden),
    }
    of_mlps = {"ffw_layer_1": (4 * hidden, hidden), "ffw_layer_2": (hidden, 4 * hidden)}
    return (
        *(IdleTensors(shape=shape, copies=blocks, layer=name, is_wrapped=True) for name, shape in wrapped.items()),
        *(IdleTensors(shape=shape, copies=2 * blocks, layer=name, is_wrapped=True) for name, shape in of_mlps.items()),
        IdleTensors(shape=(hidden, hidden), copies=blocks, layer="relative_k_proj"),
        IdleTensors(shape=(hidden, first // 4 * second), copies=1, layer="input_proj_linear"),
        IdleTensors(shape=(output, hidden), copies=1, layer="output_proj"),
        IdleTensors(shape=(text, output), copies=1, layer="embedding_projection"),
        IdleTensors(shape=(output,), copies=1),
        IdleTensors(shape=(first, 1, 3, 3), copies=1),
        IdleTensors(shape=(second, first, 3, 3), copies=1),
        IdleTensors(shape=(first,), copies=1),
        IdleTensors(shape=(second,), copies=1),
        IdleTensors(shape=(hidden, 1, sizes["conv_kernel_size"]), copies=blocks),
        IdleTensors(shape=(hidden // sizes["num_attention_heads"],), copies=blocks),
        IdleTensors(shape=(hidden,), copies=9 * blocks),
    )


def _siglip_tower(sizes: Mapping[str, int], text: int) -> tuple[IdleTensors, ...]:
    """Return the parameters of `SiglipVisionModel` without a head, and of `Gemma3MultiModalProjector`.

    By hand, 1 block of h = 8, MLP 16 wide, patches of 2 x 2 x 3 in an image of 4 x 4, text of 10: linear layers of
    4 x 64 + 2 x 128 and biases of 5 x 8 + 16, a convolution of 96 + 8, positions of 32, two norms and the last one of
    2 x 8 each, a projection of 80 and its norm of 8: 840.
    """
    hidden, inner, blocks = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    patch, in_attention = sizes["patch_size"], ("q_proj", "k_proj", "v_proj", "out_proj")
    return (
        *(IdleTensors(shape=(hidden, hidden), copies=blocks, layer=name) for name in in_attention),
        IdleTensors(shape=(inner, hidden), copies=blocks, layer="fc1"),
        IdleTensors(shape=(hidden, inner), copies=blocks, layer="fc2"),
        IdleTensors(shape=(inner,), copies=blocks),
        IdleTensors(shape=(hidden, sizes["num_channels"], patch, patch), copies=1),
        IdleTensors(shape=((sizes["image_size"] // patch) ** 2, hidden), copies=1),
        # Biases of five layers and two norms; the convolution's bias, the last norm, and that of the projection.
        IdleTensors(shape=(hidden,), copies=(5 + 4) * blocks + 1 + 2 + 1),
        IdleTensors(shape=(hidden, text), copies=1),
    )


_USUAL_TOWER = {"hidden_size": 768, "intermediate_size": 3072, "patch_size": 16}

IDLE_TOWERS: Mapping[str, Mapping[str, IdleTower]] = {
    "gemma3": {
        "vision_config": IdleTower(
            defaults={**_USUAL_TOWER, "num_hidden_layers": 12, "num_channels": 3, "image_size": 224},
            switches=("vision_use_head",),
            tensors=_siglip_tower,
        ),
    },
    "gemma4": {
        "vision_config": IdleTower(
            defaults={
                **_USUAL_TOWER,
                "num_hidden_layers": 16,
                "num_attention_heads": 12,
                "num_key_value_heads": 12,
                "head_dim": 64,
                "position_embedding_size": 10_240,
            },
            tensors=_clippable_tower,
        ),
        "audio_config": IdleTower(
            defaults={
                "hidden_size": 1024,
                "num_hidden_layers": 12,
                "num_attention_heads": 8,
                "conv_kernel_size": 5,
                "output_proj_dims": 1536,
                "subsampling_conv_channels.0": 128,
                "subsampling_conv_channels.1": 32,
            },
            tensors=_conformer_tower,
        ),
    },
}
"""By the model type of the whole model, and the field. Towers run where there are images or sound alone
(`get_image_features`, `get_audio_features`)."""

LAYER_GATE, LAYER_PROJECTION = "per_layer_input_gate", "per_layer_projection"
"""The linear layers of a layer's second input."""
MODEL_PROJECTION = "per_layer_model_projection"
"""The one before all layers, which makes a part of their second inputs."""

LINEAR_INPUTS = tuple(dict.fromkeys(name for family in _FAMILIES for name in family.layers.linear_inputs))
"""The linear layers before linear attention, of all families."""

_UNKNOWN = Family(model_type="unknown", defaults=Defaults(max_position_embeddings=2048))

WITH_OPTIONAL_KERNELS = frozenset(
    {
        *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "inkling2_text", "inkling_text"),
        *("jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5"),
        *("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "zamba"),
        "zamba2",
    }
)
"""Model types whose recurrent layers have a version in PyTorch, for where flash-linear-attention, causal-conv1d
or mamba-ssm is not installed (transformers 5.23, `use_kernel_func_from_hub_with_fallback`)."""

_WITH_WHOLE_CONTEXT = ("gemma3",)
"""How model types begin whose `max_position_embeddings` includes the scaling of rotary positions, whatever its type:
`get_and_verify_max_len` in vLLM 0.19's `config/model.py`. Some are no family here, such as ``gemma3n_text``."""


def states_whole_context(model_type: str) -> bool:
    """Return whether the files of a model type state the context with the scaling of rotary positions."""
    return model_type.startswith(_WITH_WHOLE_CONTEXT)


def family_of(model_type: str) -> Family:
    """Return the family of the model type; of one without a row, transformers' usual defaults and Llama's layers."""
    return FAMILIES.get(model_type, _UNKNOWN)
