"""Rules by which transformers refuses a `config.json`, when it reads it, makes the model, or runs it.

Each row names the field, the families that it holds for, and what makes the value wrong. A test asks transformers
itself about every row, with a value on each side of it, for every known model type.
Of unknown model types, `unlike_llama` says why their attention has no formula.

Source: transformers 5.23: `validate_architecture`, `validate_layer_type` and `validate_rope` of its configurations
(huggingface_hub's `strict` checks types), and the model's first forward where they check nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiler.config.options.reading import FieldReader
from profiler.domain.architectures.families import Family, RotaryTypes

Config = Mapping[str, object]
"""The fields of a decoder, with the defaults of transformers where memory depends on them."""


@dataclass(frozen=True, kw_only=True)
class ModelRule:
    """A field of a `config.json`, and what transformers refuses of it."""

    field: str
    problem: Callable[[Config], str]
    """Returns what is wrong with the value, as the end of a sentence; empty if nothing is."""
    only: Callable[[Family], bool] = lambda _: True
    """Returns whether it holds for the models of a family."""


_NULL = type(None)


@dataclass(frozen=True, kw_only=True)
class TypedField:
    """A field of a `config.json`, and the types that transformers takes (a whole number is no float for it)."""

    field: str
    kinds: tuple[type, ...]
    only: Callable[[Family], bool] = lambda _: True


def refuse_fields(reader: FieldReader, stated: Config, filled: Config, family: Family) -> None:
    """Keep a fault for each field that transformers refuses in a model of a known type.

    Args:
        reader: Gets the faults.
        stated: The fields of the file.
        filled: The same with defaults.
        family: That of the model.
    """
    for typed in TYPED_FIELDS:
        is_stated = typed.field in stated and reader.sound(typed.field)
        if is_stated and typed.only(family) and type(stated[typed.field]) not in typed.kinds:
            reader.fail(typed.field, f"must be {' or '.join(_WORDS[kind] for kind in typed.kinds)}")
    for rule in MODEL_RULES:
        if rule.only(family) and reader.sound(rule.field) and (problem := rule.problem(filled)):
            reader.fail(rule.field, problem)


def unlike_llama(config: Config, *, has_sdpa: bool) -> str:
    """Return why the attention of a model of an unknown type has other tensors than Llama's; empty if it has not.

    Args:
        config: Its `config.json`, of which the `text_config` is read if it has one.
        has_sdpa: Whether transformers runs it with torch's SDPA (`_supports_sdpa` of its class).
    """
    if not has_sdpa:
        return "transformers has no sdpa for it, so its attention is not Llama's"
    inner = config.get("text_config")
    config = inner if isinstance(inner, Mapping) else config
    types, window = config.get("layer_types"), config.get("sliding_window")
    others = sorted({*map(str, types)} - {"full_attention"}) if isinstance(types, list | tuple) else []
    if others:
        return f"its layer_types name {' and '.join(others)}, which Llama has not"
    positions = config.get("max_position_embeddings")
    is_short = isinstance(window, int) and not (isinstance(positions, int) and window >= positions)
    if is_short and not types and config.get("use_sliding_window") is not False:
        return f"its sliding_window={window} is less than its context, which Llama sees as a whole"
    return ""


_WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number with a point or an exponent",
    bool: "true or false",
    str: "text",
    dict: "an object",
    list: "a list",
    _NULL: "null",
}


def _whole(config: Config, *names: str) -> tuple[int, ...] | None:
    """Return the fields as whole numbers of at least 1; None if one is something else."""
    values = tuple(config.get(name) for name in names)
    found = tuple(value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0)
    return found if len(found) == len(values) else None


def _keys_divide(config: Config) -> str:
    found = _whole(config, "num_attention_heads", "num_key_value_heads")
    if found is None or found[0] % found[1] == 0:
        return ""
    return f"must divide num_attention_heads={found[0]}, because each head of keys serves as many heads of queries"


def _heads_divide(config: Config) -> str:
    found = _whole(config, "hidden_size", "num_attention_heads")
    if found is None or found[0] % found[1] == 0:
        return ""
    return f"must be a multiple of num_attention_heads={found[1]}"


def _heads_fill(config: Config) -> str:
    found = _whole(config, "hidden_size", "num_attention_heads", "head_dim")
    if found is None or found[0] == found[1] * found[2]:
        return ""
    return f"must be hidden_size / num_attention_heads = {found[0]} / {found[1]}, which this model type always has"


def _keys_are_queries(config: Config) -> str:
    found = _whole(config, "num_attention_heads", "num_key_value_heads")
    if found is None or found[0] // found[1] == 1:
        return ""
    return f"must be num_attention_heads={found[0]}, because latent attention makes keys for every head"


def _is_rotary(config: Config) -> str:
    found = _whole(config, "head_dim", "qk_rope_head_dim")
    if found is None or found[0] == found[1]:
        return ""
    return f"must be qk_rope_head_dim={found[1]}, which it stands for in rotary positions; leave it out"


def _is_even_part(config: Config) -> str:
    found = _whole(config, "qk_rope_head_dim")
    if found is None or found[0] % 2 == 0:
        return ""
    return "must be even, because rotary positions turn pairs of values"


def _is_known_choice(config: Config) -> str:
    value = config.get("topk_method", _TOPK_METHODS[0])
    return "" if value in _TOPK_METHODS else f"must be one of {', '.join(_TOPK_METHODS)}"


def _is_even(config: Config) -> str:
    found, part = _whole(config, "head_dim"), config.get("partial_rotary_factor")
    is_whole = not isinstance(part, float) or found is None or int(found[0] * part) == found[0]
    if found is None or found[0] == 1 or found[0] % 2 == 0 or not is_whole:
        return ""
    return "must be even, because rotary positions turn pairs of values"


def _is_known_activation(config: Config) -> str:
    value = config.get("hidden_act", ACTIVATIONS[0])
    return "" if value in ACTIVATIONS else f"must be one of {', '.join(ACTIVATIONS)}"


def _pads_inside(config: Config) -> str:
    found, token = _whole(config, "vocab_size"), config.get("pad_token_id")
    if found is None or not isinstance(token, int) or -found[0] <= token < found[0]:
        return ""
    return f"must be a token of the vocabulary, so less than vocab_size={found[0]}"


def _is_probability(config: Config) -> str:
    value = config.get("attention_dropout", 0.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return ""
    return "must be a number from 0 to 1"


def _is_in_range(config: Config) -> str:
    value = config.get("initializer_range", 0.0)
    return "" if not isinstance(value, float) or 0 <= value <= 1 else "must be a number from 0 to 1"


def _names_each_layer(types: Sequence[str]) -> Callable[[Config], str]:
    """Return the check of `layer_types` of a family whose layers have these types."""

    def check(config: Config) -> str:
        kinds, found = config.get("layer_types"), _whole(config, "num_hidden_layers")
        if kinds is None or found is None:
            return ""
        if not isinstance(kinds, list | tuple) or any(kind not in types for kind in kinds):
            return f"must be a list of {' and '.join(types)}"
        if len(kinds) != found[0]:
            return f"must name each of the num_hidden_layers={found[0]}, and names {len(kinds)}"
        return "" if _FULL in kinds or types is _LAYER_TYPES else f"must name a layer of {_FULL}, which counts tokens"

    return check


def _repeats_keys(config: Config) -> str:
    found = _whole(config, "linear_num_value_heads", "linear_num_key_heads")
    if found is None or found[0] % found[1] == 0:
        return ""
    return f"must be a multiple of linear_num_key_heads={found[1]}, because each head of keys serves as many of values"


def _types_each_mlp(config: Config) -> str:
    types, found = config.get("mlp_layer_types"), _whole(config, "num_hidden_layers")
    if types is None or found is None or (isinstance(types, list | tuple) and len(types) >= found[0]):
        return ""
    return f"must name the MLP of each of the num_hidden_layers={found[0]}"


def _has_a_window(config: Config) -> str:
    value = config.get("sliding_window")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return ""
    return "must be null or a whole number of at least 1"


def _scales(name: str, keys: Mapping[str, Sequence[str]]) -> Callable[[Config], str]:
    """Return the check of a mapping of rotary positions, by its old name or its new one.

    Args:
        name: The field.
        keys: The types of rotary positions, with the values that each needs.
    """

    def check(config: Config) -> str:
        value = config.get(name)
        is_replaced = name == "rope_parameters" and config.get("rope_scaling")
        if not isinstance(value, Mapping) or is_replaced:
            return ""
        kind = value.get("rope_type", value.get("type", "default"))
        if isinstance(kind, str) and kind not in keys:
            return f"names the type {kind}, and transformers has {', '.join(keys)}"
        missing = [key for key in keys.get(str(kind), ()) if key not in value]
        return f"has no {' and no '.join(missing)}, which the type {kind} needs" if missing else ""

    return check


def _types_layers(config: Config) -> str:
    value, types = config.get("rope_parameters"), config.get("layer_types")
    kinds = sorted({*map(str, types)} if isinstance(types, list | tuple) and types else _LAYER_TYPES)
    if not isinstance(value, Mapping) or all(isinstance(value.get(kind), Mapping) for kind in kinds):
        return ""
    return f"must have an object for {' and for '.join(kinds)}"


def _is_left_out(config: Config) -> str:
    return "must be left out, because this model type reads rope_parameters alone" if "rope_scaling" in config else ""


_SECTIONS = (16, 24, 24)
"""transformers' default of `mrope_section` in Qwen2-VL and Qwen2.5-VL."""


def _sections_fill(config: Config) -> str:
    inner = config.get("text_config")
    levels = [config, inner] if isinstance(inner, Mapping) else [config]
    stated = (level.get(key) for level in levels for key in ("rope_scaling", "rope_parameters"))
    found, scaling = _whole(config, "head_dim"), next(filter(None, stated), None)
    sections = scaling.get("mrope_section", _SECTIONS) if isinstance(scaling, Mapping) else _SECTIONS
    if found is None or not isinstance(sections, list | tuple) or not all(isinstance(part, int) for part in sections):
        return ""
    return "" if 2 * sum(sections) == found[0] else f"must be twice the sum of mrope_section {list(sections)}"


ACTIVATIONS = (
    *("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh"),
    *("gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu"),
    *("relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu"),
)
"""Names of activations (`ACT2CLS` in transformers' `activations.py`)."""

_TOPK_METHODS = ("greedy", "group_limited_greedy")
"""Ways of a router to choose experts (`DeepseekV2TopkRouter`)."""

_FULL = "full_attention"
_LAYER_TYPES = (_FULL, "sliding_attention")
"""Kinds of layers that most known model types run; transformers knows more, of other types."""

_LINEAR_TYPES = (_FULL, "linear_attention")
"""Kinds of layers of model types with linear attention."""

_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
"""Types of rotary positions with the values that each needs (`_validate_*_rope_parameters`)."""

_AXIAL_KEYS = {**_ROPE_KEYS, "mrope": (), "axial": ()}
"""The same of model types that see images, whose older files say ``mrope``."""

_LONG_FACTORS = ("short_factor", "long_factor")
_PHI3_KEYS = {"default": (), "longrope": _LONG_FACTORS, "su": _LONG_FACTORS, "yarn": _LONG_FACTORS}
"""The same of phi3, where two older names mean ``longrope`` (`Phi3Config.validate_rope`)."""

_SCALES = ("llama_4_scaling_beta", "original_max_position_embeddings")
_SCALED_KEYS = {kind: tuple(dict.fromkeys((*keys, *_SCALES))) for kind, keys in _ROPE_KEYS.items()}
"""The same where queries are scaled by two of them, whatever the type (`Ministral3Attention.forward`)."""

_KEYS_OF: Mapping[RotaryTypes, Mapping[str, tuple[str, ...]]] = {
    RotaryTypes.COMMON: _ROPE_KEYS,
    RotaryTypes.AXIAL: _AXIAL_KEYS,
    RotaryTypes.PHI3: _PHI3_KEYS,
    RotaryTypes.SCALED_QUERIES: _SCALED_KEYS,
}


def _has_rotary_types(kind: RotaryTypes) -> Callable[[Family], bool]:
    return lambda family: family.checks.rotary_types is kind


def _is_latent(family: Family) -> bool:
    return family.layers.has_latent_attention


def _is_linear(family: Family) -> bool:
    return bool(family.layers.linear_inputs)


def _has_own_head_dim(family: Family) -> bool:
    return not (family.checks.rotates_part or _is_latent(family))


MODEL_RULES = (
    ModelRule(field="num_key_value_heads", problem=_keys_divide, only=lambda family: not _is_latent(family)),
    ModelRule(field="num_key_value_heads", problem=_keys_are_queries, only=_is_latent),
    ModelRule(field="head_dim", problem=_is_rotary, only=lambda family: family.checks.head_dim_is_rotary),
    ModelRule(field="qk_rope_head_dim", problem=_is_even_part, only=_is_latent),
    ModelRule(field="mlp_layer_types", problem=_types_each_mlp, only=lambda family: family.layers.names_mlp_types),
    ModelRule(field="topk_method", problem=_is_known_choice, only=lambda family: family.checks.names_choice),
    ModelRule(field="hidden_size", problem=_heads_divide, only=lambda family: family.checks.multiple_of_heads),
    ModelRule(field="head_dim", problem=_heads_fill, only=lambda family: family.checks.heads_fill_hidden_size),
    ModelRule(field="head_dim", problem=_is_even, only=_has_own_head_dim),
    ModelRule(field="head_dim", problem=_sections_fill, only=lambda family: family.checks.sections_fill_head),
    ModelRule(
        field="hidden_act",
        problem=_is_known_activation,
        only=lambda family: family.checks.reads_hidden_act and family.checks.looks_up_hidden_act,
    ),
    ModelRule(field="pad_token_id", problem=_pads_inside),
    ModelRule(field="attention_dropout", problem=_is_probability, only=lambda family: family.checks.reads_dropout),
    ModelRule(
        field="initializer_range", problem=_is_in_range, only=lambda family: family.checks.bounds_initializer_range
    ),
    ModelRule(field="layer_types", problem=_names_each_layer(_LAYER_TYPES), only=lambda family: not _is_linear(family)),
    ModelRule(field="layer_types", problem=_names_each_layer(_LINEAR_TYPES), only=_is_linear),
    ModelRule(field="linear_num_value_heads", problem=_repeats_keys, only=_is_linear),
    ModelRule(
        field="sliding_window",
        problem=_has_a_window,
        only=lambda family: not (family.slides_on_request or _is_linear(family)),
    ),
    ModelRule(field="rope_parameters", problem=_types_layers, only=_has_rotary_types(RotaryTypes.BY_LAYER_TYPE)),
    ModelRule(field="rope_scaling", problem=_is_left_out, only=_has_rotary_types(RotaryTypes.BY_LAYER_TYPE)),
    *(
        ModelRule(field=name, problem=_scales(name, keys), only=_has_rotary_types(kind))
        for name in ("rope_parameters", "rope_scaling")
        for kind, keys in _KEYS_OF.items()
    ),
)
"""What transformers refuses of values that have the right type."""

TYPED_FIELDS = (
    TypedField(
        field="num_key_value_heads", kinds=(int,), only=lambda family: not family.checks.takes_null_key_value_heads
    ),
    TypedField(field="head_dim", kinds=(int,), only=lambda family: family.checks.types_head_dim),
    TypedField(field="rms_norm_eps", kinds=(float,)),
    TypedField(field="initializer_range", kinds=(float,)),
    TypedField(field="use_cache", kinds=(bool,)),
    TypedField(field="tie_word_embeddings", kinds=(bool,), only=lambda family: family.tower is None),
    TypedField(field="attention_dropout", kinds=(int, float), only=lambda family: family.checks.reads_dropout),
    TypedField(field="attention_dropout", kinds=(float,), only=lambda family: family.checks.types_dropout),
    TypedField(field="hidden_act", kinds=(str,), only=lambda family: family.checks.reads_hidden_act),
    TypedField(field="pad_token_id", kinds=(int, _NULL)),
    TypedField(field="rope_parameters", kinds=(dict, _NULL)),
    TypedField(field="rope_scaling", kinds=(dict, _NULL)),
    TypedField(field="layer_types", kinds=(list,), only=lambda family: family.checks.types_layer_types),
)
"""What transformers takes of a stated field, by type."""
