"""Models that transformers refuses are refused, by the field that is wrong; transformers itself is asked."""

from dataclasses import dataclass, field

import pytest
from matrix import further
from small_models import LEFT_OUT, refusal_of_transformers, small_config
from transformers import CONFIG_MAPPING
from transformers.activations import ACT2CLS

from profiler.config.foreign_text import ForeignTextError, parse_json
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.config.models.refused_models import ACTIVATIONS, MODEL_RULES, TYPED_FIELDS
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.families import FAMILIES
from profiler.domain.errors import UsageError
from profiler.estimate.main import answer


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Values of a field on both sides of a rule."""

    name: str
    wrong: object
    right: object
    also: dict = field(default_factory=dict)
    """Other fields of both."""


YARN = {"rope_type": "yarn", "factor": 4.0}
PAIRS = (
    Pair(name="num_key_value_heads", wrong=3, right=2),
    Pair(name="num_key_value_heads", wrong=8, right=4),
    Pair(name="num_key_value_heads", wrong=None, right=1),
    Pair(name="qk_rope_head_dim", wrong=7, right=6, also={"head_dim": LEFT_OUT}),
    Pair(name="mlp_layer_types", wrong=["sparse"], right=["dense", "sparse"]),
    Pair(name="topk_method", wrong="noaux_tc", right="group_limited_greedy"),
    Pair(name="hidden_size", wrong=66, right=64),
    Pair(name="head_dim", wrong=15, right=16),
    Pair(name="head_dim", wrong=None, right=16),
    Pair(name="head_dim", wrong=24, right=16),
    Pair(name="hidden_size", wrong=60, right=64, also={"head_dim": LEFT_OUT}),
    Pair(name="hidden_act", wrong="no_such", right="relu"),
    Pair(name="hidden_act", wrong=None, right="silu"),
    Pair(name="pad_token_id", wrong=96, right=95),
    Pair(name="pad_token_id", wrong=1.0, right=None),
    Pair(name="attention_dropout", wrong=1.5, right=0.1),
    Pair(name="attention_dropout", wrong=-0.1, right=0),
    Pair(name="attention_dropout", wrong="0.1", right=1.0),
    Pair(name="attention_dropout", wrong=True, right=0.0),
    Pair(name="attention_dropout", wrong=None, right=0.5),
    Pair(name="initializer_range", wrong=2.0, right=0.5),
    Pair(name="initializer_range", wrong=1, right=1.0),
    Pair(name="rms_norm_eps", wrong=1, right=1.0),
    Pair(name="rms_norm_eps", wrong="1e-6", right=1e-6),
    Pair(name="use_cache", wrong=1, right=False),
    Pair(name="tie_word_embeddings", wrong=None, right=True),
    Pair(name="layer_types", wrong=["full_attention"], right=["full_attention"] * 2),
    Pair(name="layer_types", wrong=["linear_attention"] * 2, right=None),
    Pair(name="layer_types", wrong=["no_such"] * 2, right=None),
    Pair(name="linear_num_value_heads", wrong=3, right=4),
    Pair(name="sliding_window", wrong=0, right=4),
    Pair(name="sliding_window", wrong=-1, right=1),
    Pair(name="rope_parameters", wrong=[1], right=None),
    Pair(name="rope_scaling", wrong="yarn", right=None),
    Pair(name="rope_scaling", wrong={"rope_type": "no_such"}, right=None),
    Pair(name="rope_scaling", wrong={"rope_type": "yarn"}, right=YARN),
    Pair(name="rope_parameters", wrong={"rope_type": "yarn", "rope_theta": 1e4}, right=YARN | {"rope_theta": 1e4}),
    Pair(name="rope_scaling", wrong={"rope_type": "llama3", "factor": 8.0}, right={"rope_type": "default"}),
)
OF_KERNELS = {
    *(
        ("hidden_size", "66", kind)
        for kind in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe")
    ),
    *(("hidden_size", size, kind) for size in ("66", "60") for kind in ("qwen3_next", "qwen3_5_moe_text")),
    *(("hidden_size", "60", kind) for kind in ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "gpt_oss")),
}
"""What the kernel of experts in bfloat16 refuses (rows of no whole 16 bytes), and other types do not."""

OF_UNREAD = {("mlp_layer_types", "['sparse']", kind) for kind in MODEL_TYPES if kind != "glm4_moe_lite"}
"""What types with `layer_types` check of a field that they do not read."""


def ours(config):
    """Return the fault of the reader; empty if it takes the file."""
    try:
        read_architecture(config, model="m")
    except UsageError as error:
        return error.faults[0].problem
    return ""


def configs(pair, model_type):
    for value in (pair.wrong, pair.right):
        yield small_config(model_type, **{**pair.also, pair.name: value})


TYPES = sorted(MODEL_TYPES)
PARTS = 9
"""Each pair is compared in a ninth of all types, from another one on; the others are further cases."""
COMPARED = [
    *((pair, tuple(TYPES[number % PARTS :: PARTS])) for number, pair in enumerate(PAIRS)),
    *further(
        *(
            (pair, tuple(kind for place, kind in enumerate(TYPES) if place % PARTS != number % PARTS))
            for number, pair in enumerate(PAIRS)
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("compared", COMPARED, ids=lambda compared: f"{compared[0].name}={compared[0].wrong}")
def test_what_transformers_refuses_is_refused_and_nothing_else(compared):
    pair, model_types = compared
    refused = {
        (model_type, side): (bool(refusal_of_transformers(config)), bool(ours(config)))
        for model_type in model_types
        for side, config in zip(("wrong", "right"), configs(pair, model_type), strict=True)
        if (pair.name, str(pair.wrong), model_type) not in OF_KERNELS | OF_UNREAD
    }
    differ = {key: (theirs, own) for key, (theirs, own) in refused.items() if theirs != own}
    assert differ == {}
    assert any(ours(next(configs(pair, kind))) for kind in TYPES), "the pair shows nothing"


def test_every_rule_has_a_pair():
    wrong = {pair.name for pair in PAIRS}
    assert {row.field for row in (*MODEL_RULES, *TYPED_FIELDS)} == wrong
    for row in (*MODEL_RULES, *TYPED_FIELDS):
        of_row = [kind for kind in MODEL_TYPES if row.only(FAMILIES[kind])]
        values = [next(configs(pair, kind)) for pair in PAIRS if pair.name == row.field for kind in of_row]
        assert any(ours(config) for config in values), row


def test_layers_without_experts_are_those_that_their_types_name():
    for types, dense in ((None, 1), (["dense", "dense", "sparse"], 2)):
        config = small_config("glm4_moe_lite", num_hidden_layers=3, mlp_layer_types=types, first_k_dense_replace=0)
        assert [kind.num_hidden_layers for kind in read_architecture(config, model="m").first_layers] == [dense]
    mixed = small_config("glm4_moe_lite", mlp_layer_types=["sparse", "dense"])
    assert not read_architecture(mixed, model="m").has_closed_form


def test_a_family_asks_for_its_values():
    assert "must be a whole number" in ours(small_config("hunyuan_v1_dense", head_dim=LEFT_OUT))
    assert "no llama_4_scaling_beta" in ours(small_config("ministral3", rope_parameters={"rope_type": "default"}))
    derived = read_architecture(small_config("ernie4_5", head_dim=None, attention_dropout=0.5), model="m")
    assert (derived.head_dim, derived.attention_dropout) == (64 // 4, 0.0)
    assert read_architecture(small_config("ernie4_5", head_dim=LEFT_OUT), model="m").head_dim == 128


def test_gemma_4_has_layers_with_other_heads():
    shape = {"num_hidden_layers": 13, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    read = read_architecture(small_config("gemma4_text", **shape), model="m")
    (sliding,) = read.first_layers
    assert (sliding.num_hidden_layers, sliding.head_dim, sliding.num_key_value_heads) == (10, 16, 2)
    assert (read.head_dim, read.num_key_value_heads, read.keys_are_values) == (32, 1, True)
    assert "logits are not capped" in read.uncounted[0]
    own_keys = read_architecture(small_config("gemma4_text", num_global_key_value_heads=1), model="m")
    assert own_keys.num_key_value_heads == 2
    half = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    assert "an object for full_attention and for sliding" in ours(small_config("gemma4_text", rope_parameters=half))
    alone = small_config("gemma4_text", rope_parameters=half, layer_types=["full_attention"] * 2)
    assert ours(alone) == refusal_of_transformers(alone) == ""
    flat = ours(small_config("gemma4_text", rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    assert flat.endswith("must have an object for full_attention and for sliding_attention")
    assert "must be left out" in ours(small_config("gemma4_text", rope_scaling=None))


def test_gemma_4_has_experts_where_its_switch_says_so():
    sizes = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    six = small_config("gemma4_text", enable_moe_block=True, num_hidden_layers=6, **sizes)
    read = read_architecture(six, model="m")
    assert (read.num_experts, read.experts_per_token, read.expert_width) == (4, 2, 32)
    assert (read.shared_expert_width, read.norms_per_layer) == (128, 4)
    assert read.has_closed_form
    assert not read_architecture(six | {"global_head_dim": 16}, model="m").has_closed_form
    off = read_architecture(small_config("gemma4_text", enable_moe_block=False, **sizes), model="m")
    assert (off.num_experts, off.shared_expert_width) == (1, 0)
    for name in sizes:
        left = small_config("gemma4_text", enable_moe_block=True, **sizes) | {name: None}
        with pytest.raises(UsageError, match="must be a whole number"):
            read_architecture(left, model="m")


def test_latent_attention_has_keys_for_every_head():
    assert "must be num_attention_heads=4" in ours(small_config("deepseek_v3", num_key_value_heads=2))
    assert ours(small_config("deepseek_v3", num_key_value_heads=None)) == ""


def test_activations_are_those_of_transformers():
    assert set(ACTIVATIONS) == set(ACT2CLS)


def test_a_stated_null_is_derived_where_a_field_that_is_left_out_has_a_default():
    """Qwen2 has 32 heads of keys where the field is left out, and as many as heads where it is null."""
    null, absent = (small_config("qwen2", num_key_value_heads=value) for value in (None, LEFT_OUT))
    made = [
        CONFIG_MAPPING["qwen2"](**{k: v for k, v in config.items() if k != "model_type"}) for config in (null, absent)
    ]
    assert [each.num_key_value_heads for each in made] == [4, 32]
    assert read_architecture(null, model="m").num_key_value_heads == 4
    assert "num_key_value_heads=32" in ours(absent)


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaModel", "LlamaForTokenClassification"])
def test_another_head_is_named_and_refused_by_the_rules_of_a_trial(name):
    config = small_config("llama", architectures=[name])
    assert read_architecture(config, model="m").other_head == name
    with pytest.raises(UsageError, match=f"names {name}, which has no language model head"):
        parse_point(
            {"backend": "simulated", "model": "m"}, architecture_of=lambda _: read_architecture(config, model="m")
        )
    whole = small_config("llama", architectures=["LlamaForCausalLM", name])
    assert not read_architecture(whole, model="m").other_head


def test_a_reward_model_has_another_head():
    config = small_config("llama", architectures=["LlamaForSequenceClassification"])
    words = ["model=qwen2.5-0.5b", "reward_models=scores/it", "format=json"]
    assert "estimated" in answer(words, load_model=lambda _: config).lower()


def test_a_key_that_is_twice_in_json_is_named():
    with pytest.raises(ForeignTextError, match="has the key 'hidden_size' twice"):
        parse_json(b'{"text_config": {"hidden_size": 64, "a": 1, "hidden_size": 128}}')
    assert parse_json(b'{"a": {"b": 1}, "b": 1}') == {"a": {"b": 1}, "b": 1}
