"""Every field of the configurations of the known model types, by what it does to memory.

transformers 5.23, `models/<type>/configuration_<type>.py`. A test walks the installed classes, with those of their
vision towers, and fails on a field that is in no table here or there.

Layers of several kinds, where some slide and others share keys.
"""

from collections.abc import Mapping
from dataclasses import replace

from profiler.config.notes import Direction, Uncounted, uncounted_texts
from profiler.config.options.reading import FieldReader
from profiler.domain.architectures.architecture import Architecture, LayerInputs, sharing_keys
from profiler.domain.architectures.families import IDLE_TOWERS, Family, family_of
from profiler.domain.errors import Fault

COUNTED = frozenset(
    """
    model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
    head_dim max_position_embeddings tie_word_embeddings attention_bias qkv_bias attention_dropout num_experts
    num_local_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size decoder_sparse_step
    mlp_only_layers architectures is_encoder_decoder text_config vision_config n_routed_experts n_shared_experts
    first_k_dense_replace use_qk_norm q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim topk_method
    mlp_layer_types linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim full_attention_interval attention_k_eq_v hidden_size_per_layer_input num_kv_shared_layers
    vocab_size_per_layer_input use_double_wide_mlp enable_moe_block top_k_experts
    """.split()  # noqa: SIM905
)
"""Fields that `architecture.py` reads: they are counted, or the model is refused. `mlp_bias` is among the latter."""

REFUSED = frozenset({"mlp_bias", "use_bias"})
"""Fields that add parameters without a formula: a model that has them is counted by transformers, and refused."""

_SAVES_INPUT = ("silu", "swish", "gelu", "gelu_pytorch_tanh")
"""Activations of one kernel that saves its input, as the formulas count them."""

_ACTIVATION = Uncounted(
    what="the MLP saves other tensors than with silu or gelu", direction=Direction.EITHER, neutral=_SAVES_INPUT
)

UNCOUNTED: Mapping[str, Uncounted] = {
    "hidden_act": _ACTIVATION,
    "hidden_activation": _ACTIVATION,
    "resid_pdrop": Uncounted(
        what="each layer drops a part of two results and keeps their masks", direction=Direction.LOW, neutral=(0, 0.0)
    ),
    "clip_qkv": Uncounted(what="queries, keys and values are clamped", direction=Direction.LOW),
    "router_jitter_noise": Uncounted(
        what="inputs of experts are multiplied by noise", direction=Direction.LOW, neutral=(0, 0.0)
    ),
    "output_router_logits": Uncounted(
        what="every layer keeps what its router computed", direction=Direction.LOW, neutral=(False,)
    ),
    "output_hidden_states": Uncounted(
        what="the result of every layer is kept", direction=Direction.LOW, neutral=(False,)
    ),
    "output_attentions": Uncounted(
        what="the scores of every layer are kept", direction=Direction.LOW, neutral=(False,)
    ),
    "use_cache": Uncounted(
        what="each generated token runs the whole row again", direction=Direction.EITHER, neutral=(True,)
    ),
    "use_bidirectional_attention": Uncounted(
        what="rows have another mask", direction=Direction.EITHER, neutral=(False, "vision")
    ),
    "use_sliding_window": Uncounted(
        what="rows beyond the window have a mask, and a shorter cache", direction=Direction.EITHER, neutral=(False,)
    ),
}
"""Fields whose values are named."""

_CAPPED_SCORES, _CAPPED_LOGITS = "attn_logit_softcapping", "final_logit_softcapping"
SWITCHED_OFF: Mapping[str, Uncounted] = {
    _CAPPED_SCORES: Uncounted(what="scores are capped", direction=Direction.LOW),
    _CAPPED_LOGITS: Uncounted(what="logits are capped", direction=Direction.LOW),
}
"""The same of model types that have no such step by default. Gemma 2 always caps scores, which is counted."""

OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "visual", "thinker_config", "speech_config")
"""Fields by which a `config.json` describes more than a language model."""

_ABSENT: tuple[object, ...] = (None, {}, "")

_MOST_OF_A_TOWER = 10**6

_IDLE = f"{{}} (rows are counted as text, which passes by the tower: {Direction.LOW})"


def idle_towers(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields of towers that rows of text pass by, and of which parameters are counted."""
    known = IDLE_TOWERS.get(str(config.get("model_type")), {})
    return tuple(name for name in known if isinstance(config.get(name), Mapping))


def passes_towers(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` is of a model with a tower that rows of text pass by, and that has no other."""
    towers = idle_towers(config)
    others = [name for name in OTHER_SENSES if name not in towers and config.get(name) not in _ABSENT]
    return OTHER_SENSES[0] in towers and isinstance(config.get("text_config"), Mapping) and not others


def with_idle_towers(
    architecture: Architecture, config: Mapping[str, object], faults: tuple[Fault, ...]
) -> tuple[Architecture, tuple[Fault, ...]]:
    """Return a decoder with the towers of a `config.json` for which `passes_towers` holds, and the faults of all."""
    for name in idle_towers(config):
        tower, given = IDLE_TOWERS[str(config["model_type"])][name], config[name]
        assert isinstance(given, Mapping)
        reader = FieldReader({**tower.defaults, **dict.fromkeys(tower.switches, True), **_numbered(given)})
        sizes = {each: reader.count(each, maximum=_MOST_OF_A_TOWER) for each in tower.defaults}
        for switch in filter(reader.flag, tower.switches):
            reader.fail(switch, "must be false, as in the published models: what it adds has no formula")
        idle = (*architecture.idle, *tower.tensors(sizes, architecture.hidden_size))
        architecture = replace(architecture, idle=idle, uncounted=(*architecture.uncounted, _IDLE.format(name)))
        faults = (*faults, *reader.faults)
    return architecture, faults


def _numbered(given: Mapping[str, object]) -> dict[str, object]:
    """Return the stated fields of a tower; the values of a list are numbered."""
    stated = {name: value for name, value in given.items() if value is not None}
    lists = ((name, value) for name, value in stated.items() if isinstance(value, list | tuple))
    return stated | {f"{name}.{place}": each for name, value in lists for place, each in enumerate(value)}


def sliding_window(config: Mapping[str, object], family: Family) -> int | None:
    """Return the tokens that the sliding layers of a model of the family see; None if no layer slides."""
    value = config.get("sliding_window", family.sliding_window)
    is_used = not family.slides_on_request and isinstance(value, int)
    return value if is_used and isinstance(value, int) else None


def uncounted_fields(config: Mapping[str, object], family: Family) -> tuple[str, ...]:
    """Return the values of the `config.json` of a model of the family that change memory and are not counted."""
    capped = {_CAPPED_SCORES: family.layers.caps_scores, _CAPPED_LOGITS: family.layers.caps_logits}
    own = {name: row for name, row in SWITCHED_OFF.items() if not capped[name]}
    found = uncounted_texts({**UNCOUNTED, **own}, config)
    if family.checks.caps_on_request and config.get(_CAPPED_LOGITS) is None:
        return (*found, f"{_CAPPED_LOGITS}=null (logits are not capped: {Direction.HIGH})")
    return found


IN_TURN = ("sliding_attention", "full_attention")
"""`layer_types` of layers that slide in turn."""


def with_layer_inputs(reader: FieldReader, architecture: Architecture) -> Architecture:
    """Return a model with the second input of its layers, which ends with a norm of its own, if it has one."""
    if family_of(architecture.model_type).defaults.hidden_size_per_layer_input is None:
        return architecture
    width = reader.count("hidden_size_per_layer_input", minimum=0)
    if not width:
        return architecture
    inputs = LayerInputs(
        width=width,
        vocab_size=reader.count("vocab_size_per_layer_input"),
        layers=architecture.num_hidden_layers,
    )
    found = replace(architecture, layer_inputs=inputs, norms_per_layer=architecture.norms_per_layer + 1)
    return _without_form(found, "experts and embeddings for each layer") if architecture.num_experts > 1 else found


def _without_form(architecture: Architecture, parts: str) -> Architecture:
    return replace(architecture, has_known_layers=False, without_form=parts)


def _global(reader: FieldReader, architecture: Architecture) -> Architecture:
    """Return the model whose layers are those that do not slide: with heads of their own if the family says so."""
    found, defaults = replace(architecture, sliding_window=None), family_of(architecture.model_type).defaults
    if defaults.global_head_dim is None:
        return found
    keys_are_values = reader.flag("attention_k_eq_v")
    heads = reader.optional_count("num_global_key_value_heads") if keys_are_values else None
    return replace(
        found,
        head_dim=reader.count("global_head_dim"),
        num_key_value_heads=heads or architecture.num_key_value_heads,
        keys_are_values=keys_are_values,
    )


def alternating(reader: FieldReader, architecture: Architecture, layer_types: object) -> Architecture:
    """Return a model of which some layers slide, and the last ones may share keys.

    The kind of the last layer is not among the first.
    """
    layers, turns, others = architecture.num_hidden_layers, list(IN_TURN), _global(reader, architecture)
    defaults = family_of(architecture.model_type).defaults
    if defaults.global_head_dim is not None:
        turns = [*IN_TURN[:1] * 5, IN_TURN[1]]
    kinds = [*(layer_types if isinstance(layer_types, list | tuple) and layer_types else turns * layers)][:layers]
    if len(turns) > len(IN_TURN):
        kinds[-1] = IN_TURN[1]
    shared = reader.count("num_kv_shared_layers", minimum=0) if defaults.num_kv_shared_layers is not None else 0
    sliding = kinds.count(IN_TURN[0])
    if shared and (architecture.num_experts > 1 or not sliding or architecture.sliding_window is None):
        return _without_form(others, "layers that share keys and all see every token, or have experts,")
    if not sliding or architecture.sliding_window is None:
        return others
    if sliding == layers:
        return replace(architecture, has_known_layers=False)
    if not shared:
        return replace(others, first_layers=(replace(architecture, num_hidden_layers=sliding),))
    makes = kinds[: max(layers - shared, 0)]
    if not {*kinds} <= {*makes}:
        reader.fail("num_kv_shared_layers", "must leave a layer of each kind that makes the keys which others share")
        return others
    wide = 2 if reader.flag("use_double_wide_mlp") else 1
    return sharing_keys(dict(zip(IN_TURN, (architecture, others), strict=True)), kinds, len(makes), wide)
