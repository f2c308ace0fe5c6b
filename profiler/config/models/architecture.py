"""Reading of the architecture of a model and of its vision tower from its `config.json`.

Only families whose activations have a formula are read; their rows are in `domain/architectures/families.py`.

A `config.json` may leave out values that equal the default of its model type. The defaults that affect memory are in
the rows of `domain/architectures/families.py`.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace

from profiler.config.models.context import has_rotary_positions, scaled_context
from profiler.config.models.fields import (
    IN_TURN,
    OTHER_SENSES,
    REFUSED,
    alternating,
    idle_towers,
    passes_towers,
    sliding_window,
    uncounted_fields,
    with_idle_towers,
    with_layer_inputs,
)
from profiler.config.models.refused_models import refuse_fields
from profiler.config.options.reading import FieldReader, show
from profiler.domain.architectures.architecture import (
    Architecture,
    LatentAttention,
    LinearAttention,
    VisionTower,
)
from profiler.domain.architectures.families import FAMILIES, WITH_OPTIONAL_KERNELS, Family, Tower, family_of
from profiler.domain.errors import Fault, UsageError

_DEEPSTACK = (8, 16, 24)
"""transformers' default of `deepstack_visual_indexes`."""


def has_tower_formula(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` describes a model whose vision tower has a formula."""
    return _tower_family(config) is not None and isinstance(config.get("vision_config"), Mapping)


def _tower_family(config: Mapping[str, object]) -> Tower | None:
    kind = config.get("model_type")
    return family_of(kind).tower if isinstance(kind, str) else None


def read_tower(config: Mapping[str, object]) -> tuple[VisionTower, tuple[Fault, ...]]:
    """Return the vision tower of a `config.json` for which `has_tower_formula` holds, and the faults of its fields."""
    family, given = _tower_family(config), config["vision_config"]
    assert family is not None and isinstance(given, Mapping)
    values = {name: given.get(name) for name in (*family.defaults, "deepstack_visual_indexes")}
    values["in_channels"] = given.get("in_channels") or given.get("in_chans")
    filled = {**family.defaults, **{name: value for name, value in values.items() if value is not None}}
    reader = FieldReader(filled)
    width = "embed_dim" if "embed_dim" in family.defaults else "hidden_size"
    hidden = reader.count(width)
    inner = reader.count("intermediate_size") if "intermediate_size" in filled else hidden * reader.count("mlp_ratio")
    merged = filled.get("deepstack_visual_indexes", _DEEPSTACK) if family.has_positions else ()
    tower = VisionTower(
        depth=reader.count("depth", maximum=_MAX_MODULES),
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=reader.count("num_heads"),
        out_hidden_size=reader.count("hidden_size" if width == "embed_dim" else "out_hidden_size"),
        patch_size=reader.count("patch_size"),
        temporal_patch_size=reader.count("temporal_patch_size"),
        in_channels=reader.count("in_channels"),
        spatial_merge_size=reader.count("spatial_merge_size"),
        min_pixels=family.min_pixels,
        max_pixels=family.max_pixels,
        inner_tensors=family.inner_tensors,
        has_layer_norm=family.has_layer_norm,
        mlp_names=family.mlp_names,
        patch_bias=family.patch_bias,
        position_embeddings=reader.count("num_position_embeddings") if family.has_positions else 0,
        deepstack=len(merged) if isinstance(merged, list | tuple) else 0,
    )
    if not reader.faults and tower.hidden_size % tower.num_heads:
        reader.fail("num_heads", f"must divide the {tower.hidden_size} values of a patch")
    return tower, reader.faults


_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

_DEQUANTISED = "quantization_config=mxfp4 (trl trains the dequantised weights, which are counted)"

_DENSE = "dense"
"""`mlp_layer_types` of layers without experts."""

_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
_DECODER_SUFFIXES = ("ForCausalLM", "ForConditionalGeneration")

_MAX_MODULES = 10_000
"""Limit of layers, and of experts per layer: each is a Python object in a simulated trial."""

_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts."""

_NULL_IS_DERIVED = ("num_key_value_heads", "q_lora_rank", "head_dim")
"""Fields of which a stated null has a meaning, also where one that is left out has a default."""

MODEL_TYPES = tuple(FAMILIES)
"""The model types with known defaults."""


def read_architecture(config: Mapping[str, object], *, model: str) -> Architecture:
    """Return the architecture that a `config.json` describes.

    Args:
        config: The content of the file. Of a multimodal model, its `text_config` is read.
        model: The user's name of the model, for the fault.

    Raises:
        UsageError: The file does not describe a decoder-only model with gated MLPs, or a field is not a number.
    """
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, Mapping) else config
    has_tower = has_tower_formula(config)
    _refuse_other_senses(config, model=model)
    model_type = show((config if has_tower else text_config).get("model_type", "unknown"))
    family, is_known = family_of(model_type), model_type in FAMILIES
    if has_tower:
        text_config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **text_config}
    elif passes_towers(config):  # which tie by the outer field alone
        text_config = {**text_config, "tie_word_embeddings": config.get("tie_word_embeddings", True)}
    filled = _with_defaults(text_config, family)
    if not is_known:
        filled["intermediate_size"] = _widest(filled["intermediate_size"])
    if family.checks.needs_head_dim:
        filled["head_dim"] = text_config.get("head_dim")
    if family.layers.names_mlp_types:
        filled["first_k_dense_replace"] = _dense_layers(text_config, family)
        filled["qk_rope_head_dim"] = text_config.get("head_dim", filled["qk_rope_head_dim"])
    _refuse_what_is_no_decoder(config, filled, model=model, model_type=model_type)
    reader = FieldReader(filled)
    architecture = _read(reader, model_type=model_type, family=family)
    is_plain = has_tower or passes_towers(config) or text_config is config
    architecture = replace(
        architecture,
        has_known_layers=is_known and is_plain and not any(map(text_config.get, REFUSED)),
        quantization="" if _is_dequantised(config, family) else _quantization(config),
        scaled_context=scaled_context(text_config, positions=architecture.max_position_embeddings),
        has_rotary_positions=is_known or has_rotary_positions(text_config),
        other_head=_other_head(config),
        attention_dropout=_attention_dropout(text_config) if family.checks.reads_dropout else 0.0,
        latent=_latent(reader) if family.layers.has_latent_attention else None,
        sliding_window=sliding_window(text_config, family) if is_known else None,
        uncounted=(
            *(uncounted_fields(text_config, family) if is_known else ()),
            *([_DEQUANTISED] if _is_dequantised(config, family) else []),
        ),
    )
    if architecture.num_experts > 1 and _has_known_experts(filled, family):
        architecture = replace(
            architecture,
            expert_width=reader.count(family.layers.expert_width),
            experts_per_token=reader.count("num_experts_per_tok", maximum=architecture.num_experts),
            shared_expert_width=_shared_width(reader, family),
        )
        if family.defaults.first_k_dense_replace is not None:
            architecture = replace(architecture, first_layers=_first_layers(reader, architecture))
    if family.layers.linear_inputs:
        architecture = _with_linear(reader, architecture, text_config.get("layer_types"))
    if family.layers.alternates:
        architecture = with_layer_inputs(reader, architecture)
        architecture = alternating(reader, architecture, text_config.get("layer_types"))
        if family.layers.norms_experts and architecture.num_experts > 1:
            # Others could be sharded, or run by vLLM, of which nothing was compared.
            is_wide = any(kind.head_dim != architecture.head_dim for kind in architecture.first_layers)
            architecture = replace(architecture, has_known_layers=architecture.has_known_layers and is_wide)
    if is_known:
        refuse_fields(reader, text_config, filled, family)
    faults = reader.faults
    if has_tower:
        tower, of_tower = read_tower(config)
        architecture, faults = replace(architecture, vision=tower), (*faults, *of_tower)
    elif passes_towers(config):
        architecture, faults = with_idle_towers(architecture, config, faults)
    if faults:
        details = "; ".join(fault.sentence().rstrip(".") for fault in faults)
        raise _no_decoder(model, f"its config.json cannot be used, {details}")
    return architecture


def _has_known_experts(config: Mapping[str, object], family: Family) -> bool:
    """Return whether each layer is a router and alike experts, and nothing else, in place of an MLP."""
    is_sparse = config.get("mlp_only_layers") in (None, []) and config.get("decoder_sparse_step") in (None, 1)
    types = config.get("mlp_layer_types")
    begins_dense = not isinstance(types, list | tuple) or sorted(map(str, types)) == list(types)
    return bool(family.layers.expert_width) and is_sparse and begins_dense


def _dense_layers(config: Mapping[str, object], family: Family) -> int | None:
    """Return how many layers have a dense MLP by their types."""
    types = config.get("mlp_layer_types")
    return types.count(_DENSE) if isinstance(types, list | tuple) and types else family.defaults.first_k_dense_replace


def _shared_width(reader: FieldReader, family: Family) -> int:
    if family.layers.norms_experts:
        return reader.count("intermediate_size")
    if family.defaults.n_shared_experts:
        return reader.count("n_shared_experts") * reader.count(family.layers.expert_width)
    return reader.count("shared_expert_intermediate_size") if family.defaults.shared_expert_intermediate_size else 0


def _latent(reader: FieldReader) -> LatentAttention:
    return LatentAttention(
        q_lora_rank=reader.optional_count("q_lora_rank"),
        kv_lora_rank=reader.count("kv_lora_rank"),
        qk_nope_head_dim=reader.count("qk_nope_head_dim"),
        qk_rope_head_dim=reader.count("qk_rope_head_dim"),
        v_head_dim=reader.count("v_head_dim"),
    )


def _first_layers(reader: FieldReader, architecture: Architecture) -> tuple[Architecture, ...]:
    """Return the first layers of a mixture, which have a dense MLP."""
    layers = architecture.num_hidden_layers
    dense = reader.count("first_k_dense_replace", minimum=0, maximum=layers - 1)
    if not dense:
        return ()
    return (
        replace(
            architecture,
            num_hidden_layers=dense,
            num_experts=1,
            expert_width=0,
            experts_per_token=0,
            shared_expert_width=0,
        ),
    )


def _with_linear(reader: FieldReader, architecture: Architecture, layer_types: object) -> Architecture:
    """Return a model with linear attention but for every n-th layer; one with another order has no closed form."""
    layers, interval = architecture.num_hidden_layers, reader.count("full_attention_interval")
    kinds = list(layer_types) if isinstance(layer_types, list | tuple) else None
    if kinds is not None:
        interval = [*kinds, IN_TURN[1]].index(IN_TURN[1]) + 1
    regular = [*["linear_attention"] * (interval - 1), IN_TURN[1]] * (layers // interval)
    if layers % interval or interval == 1 or kinds not in (None, regular):
        return replace(architecture, has_known_layers=False)
    linear = LinearAttention(
        num_key_heads=reader.count("linear_num_key_heads"),
        num_value_heads=reader.count("linear_num_value_heads"),
        key_head_dim=reader.count("linear_key_head_dim"),
        value_head_dim=reader.count("linear_value_head_dim"),
        conv_kernel_dim=reader.count("linear_conv_kernel_dim"),
        interval=interval,
    )
    first = replace(architecture, num_hidden_layers=layers - layers // interval, linear=linear)
    return replace(architecture, first_layers=(first,))


def _other_head(config: Mapping[str, object]) -> str:
    """Return the first class that a `config.json` names, which trl takes, if it is no language model's."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list | tuple) and names else None
    is_other = isinstance(first, str) and not any(suffix in first for suffix in _DECODER_SUFFIXES)
    return show(first) if is_other else ""


def has_other_names(config: Mapping[str, object]) -> bool:
    """Return whether a language model of an unknown type has no size by Llama's name, as GPT-2 in its `config.json`."""
    kind, classes = config.get("model_type"), config.get("architectures")
    is_other = isinstance(classes, list) and not any(str(each).endswith(_LANGUAGE_MODELS) for each in classes)
    lacks = any(config.get(name) is None for name in _NEEDED)
    return lacks and not is_other and isinstance(kind, str) and kind not in FAMILIES


def has_other_senses(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` describes towers for images or sound that have no formula."""
    return bool(_other_senses(config))


def _other_senses(config: Mapping[str, object]) -> list[str]:
    """Return the fields of towers that have no formula."""
    known = ("vision_config",) if has_tower_formula(config) else idle_towers(config) if passes_towers(config) else ()
    return [name for name in OTHER_SENSES if name not in known and config.get(name) not in (None, {}, "")]


def _refuse_other_senses(config: Mapping[str, object], *, model: str) -> None:
    found = _other_senses(config)
    if found:
        what = f"its config.json has {', '.join(found)} (model_type {show(config.get('model_type', 'unknown'))})"
        raise _no_decoder(model, f"{what}, and towers for images or sound have no formula")


def _read(reader: FieldReader, *, model_type: str, family: Family) -> Architecture:
    has_latent = family.layers.has_latent_attention
    return Architecture(
        model_type=model_type,
        vocab_size=reader.count("vocab_size"),
        hidden_size=reader.count("hidden_size"),
        intermediate_size=reader.count("intermediate_size"),
        num_hidden_layers=reader.count("num_hidden_layers", maximum=_MAX_MODULES),
        num_attention_heads=reader.count("num_attention_heads"),
        num_key_value_heads=reader.count("num_attention_heads" if has_latent else "num_key_value_heads"),
        head_dim=reader.count("qk_rope_head_dim" if has_latent else "head_dim"),
        max_position_embeddings=reader.count("max_position_embeddings"),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        qkv_bias=reader.flag("attention_bias"),
        qk_norm=reader.flag("use_qk_norm") if family.layers.qk_norm_on_request else family.layers.qk_norm,
        norms_per_layer=family.layers.norms_per_layer,
        has_sdpa=not (family.layers.caps_scores or family.layers.has_sinks),
        has_optional_kernels=model_type in WITH_OPTIONAL_KERNELS,
        num_experts=max(1, reader.count("num_experts", minimum=0, maximum=_MAX_MODULES)),
    )


def _with_defaults(config: Mapping[str, object], family: Family) -> dict[str, object]:
    filled, defaults = dict(config), family.defaults
    if filled.get("attention_bias") is None and config.get("qkv_bias") is not None:
        filled["attention_bias"] = config["qkv_bias"]
    filled["num_experts"] = next((config[name] for name in _EXPERT_FIELDS if config.get(name) is not None), None)
    for name, default in asdict(defaults).items():
        if filled.get(name) is None and not (name in _NULL_IS_DERIVED and name in config):
            filled[name] = default
    if family.layers.norms_experts:
        filled["num_experts"] = config.get("num_experts") if config.get("enable_moe_block") else 1
        filled["num_experts_per_tok"] = config.get("top_k_experts")
    if filled.get("intermediate_size") is None:  # each layer is a mixture
        filled["intermediate_size"] = filled["moe_intermediate_size"]
    if filled["num_key_value_heads"] is None:
        filled["num_key_value_heads"] = filled["num_attention_heads"]
    if filled["head_dim"] is None and defaults.qk_rope_head_dim is not None:
        filled["head_dim"] = filled["qk_rope_head_dim"]
    hidden_size, heads = filled.get("hidden_size"), filled["num_attention_heads"]
    if filled["head_dim"] is None and isinstance(hidden_size, int) and isinstance(heads, int) and heads > 0:
        filled["head_dim"] = hidden_size // heads
    return filled


def _refuse_what_is_no_decoder(
    config: Mapping[str, object], filled: Mapping[str, object], *, model: str, model_type: str
) -> None:
    missing = [name for name in _NEEDED if filled.get(name) is None]
    if missing:
        raise _no_decoder(model, f"its config.json has no {', '.join(missing)}")
    if config.get("is_encoder_decoder") is True:
        raise _no_decoder(model, "its config.json says is_encoder_decoder")
    if model_type in FAMILIES:
        return
    classes = config.get("architectures")
    names = [str(name) for name in classes] if isinstance(classes, list | tuple) else []
    if not any(name.endswith(_DECODER_SUFFIXES) for name in names):
        said = f"model_type {model_type}" + (f", architectures {', '.join(names)}" if names else "")
        raise _no_decoder(model, f"its config.json describes no causal language model ({said})")


def _no_decoder(model: str, reason: str) -> UsageError:
    return UsageError(
        [
            Fault(
                key="model",
                found=model,
                problem=f"must be a decoder-only language model, but {reason}",
                hint=f"Known model types: {', '.join(MODEL_TYPES)}.",
            )
        ]
    )


def _quantization(config: Mapping[str, object]) -> str:
    """Return how the weights of the checkpoint are quantised: ``"bitsandbytes 4-bit"``, ``"gptq"``."""
    inner = config.get("quantization_config")
    if not isinstance(inner, Mapping):
        return ""
    method = show(inner.get("quant_method", "unknown"))
    bits = next((bits for bits in (4, 8) if inner.get(f"load_in_{bits}bit") is True), inner.get("bits"))
    return method if bits is None else f"{method} {show(bits)}-bit"


def _is_dequantised(config: Mapping[str, object], family: Family) -> bool:
    """Return whether a checkpoint is in MXFP4, of which nothing is left where trl trains it (`Mxfp4Config`)."""
    return family.layers.has_biased_experts and _quantization(config) == "mxfp4"


def _attention_dropout(config: Mapping[str, object]) -> float:
    """Return the part that attention drops; 0 for a value that is refused."""
    value = config.get("attention_dropout", 0.0)
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else 0.0


def _widest(sizes: object) -> object:
    """Return the largest of the sizes that a file states layer by layer, as Gemma 3n's do, or the size of all layers.

    Where layers differ, the closed form counts more than transformers, and the model is refused with its parameters.
    """
    is_list = isinstance(sizes, list | tuple) and bool(sizes) and all(type(size) is int for size in sizes)
    return max(sizes) if is_list and isinstance(sizes, list | tuple) else sizes
