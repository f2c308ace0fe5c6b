"""The one count of a decoder layer, of norms and of a critic, compared with transformers' models on the meta device."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForTokenClassification

from profiler.analytical import parameter_count
from profiler.analytical.formulas.models.parameters import layer_parameter_count, norm_count
from profiler.analytical.formulas.models.weights import critic_count
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.analytical.formulas.vllm_memory import sharded_parameters
from profiler.analytical.timeline.sharding.verl import outside_parameters
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.domain.architectures.families import family_of

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "pad_token_id": 0,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 12,
}
OF_MIXTURES = [key for key in SIZES if any(word in key for word in ("expert", "moe", "sparse", "group", "dense"))]
MIXTURES = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"),
    *("glm4_moe_lite", "qwen3_next", "qwen3_5_moe_text", "gemma4_text, experts"),
)
LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
GLOBAL: dict[str, Any] = {
    "global_head_dim": 32,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}
SECOND_INPUTS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
OWN: dict[str, dict[str, Any]] = {
    "gemma4_text": GLOBAL,
    "gemma4_text, experts": {**GLOBAL, "enable_moe_block": True, "top_k_experts": 2},
    "gemma4_text, second inputs": SECOND_INPUTS,
    "qwen3_next": LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT,
}
TEXTS = [
    *(family for family in MODEL_TYPES if not family.endswith("_vl")),
    *("gemma4_text, experts", "gemma4_text, second inputs"),
]
TIED = [False, True]


def type_of(family: str) -> str:
    return family.partition(",")[0]


def config_of(family: str, *, tied: bool) -> dict[str, Any]:
    left = {} if family in MIXTURES else dict.fromkeys(OF_MIXTURES)
    sizes = {key: value for key, value in SIZES.items() if key not in left} | OWN.get(family, {})
    return {"model_type": type_of(family), **sizes, "tie_word_embeddings": tied}


def made(config: dict[str, Any], kind: Any = AutoModelForCausalLM, **more: Any) -> nn.Module:
    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return kind.from_config(AutoConfig.for_model(config["model_type"], **values, **more))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def norms_of(model: nn.Module) -> int:
    return sum(count(each) for each in model.modules() if type(each).__name__.endswith("Norm"))


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("family", TEXTS)
def test_a_layer_and_what_is_outside_are_those_of_the_model(family, tied):
    config = config_of(family, tied=tied)
    model, architecture = made(config), read_architecture(config, model=family)
    layers = list(model.model.layers)
    kinds = [kind for kind in layer_kinds(architecture) for _ in range(int(kind.num_hidden_layers))]
    assert [count(layer) for layer in layers] == [layer_parameter_count(kind) for kind in kinds]
    assert outside_parameters(architecture) == count(model) - sum(map(count, layers))
    assert norm_count(architecture) == norms_of(model)
    assert parameter_count(architecture) == count(model)


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("family", TEXTS)
def test_a_critic_is_a_model_with_a_head_of_one_value_and_its_bias(family, tied):
    config = config_of(family, tied=tied)
    if AutoConfig.for_model(type_of(family)).__class__ in AutoModelForTokenClassification._model_mapping:
        expected = count(made(config, AutoModelForTokenClassification, num_labels=1))
    else:
        expected = count(made(config).model) + count(nn.Linear(config["hidden_size"], 1))
    assert critic_count(read_architecture(config, model=family)) == expected


@pytest.mark.parametrize("family", TEXTS)
def test_each_gpu_of_an_engine_has_all_norms(family):
    config = config_of(family, tied=True)
    architecture = read_architecture(config, model=family)
    whole, half = (sharded_parameters(architecture, gpus=gpus) for gpus in (1, 2))
    assert whole == parameter_count(architecture)
    vectors = [part for name, part in made(config).named_modules() if "_a_proj" in name]
    assert 2 * half - whole == norm_count(architecture) + sum(map(count, vectors))
    assert bool(vectors) == (architecture.latent is not None)


@pytest.mark.parametrize("family", [family for family in MODEL_TYPES if family.endswith("_vl")])
def test_the_decoder_of_a_model_with_images_has_the_same_layers(family):
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}
    sizes = config_of(family, tied=False) | {"rope_parameters": rope}
    text = {key: value for key, value in sizes.items() if key not in ("model_type", "tie_word_embeddings")}
    with torch.device("meta"):
        config = AutoConfig.for_model(family)
        for key, value in text.items():
            setattr(config.text_config, key, value)
        config.vision_config.depth = 1
        model = AutoModelForImageTextToText.from_config(config)
    architecture = read_architecture(sizes, model=family)
    assert {count(layer) for layer in model.model.language_model.layers} == {layer_parameter_count(architecture)}


@pytest.mark.parametrize("family", TEXTS)
def test_accelerate_finds_what_a_class_names_or_a_sweep_refuses(family):
    model = made(config_of(family, tied=False))
    there = {type(each).__name__ for each in model.modules()}
    assert (set(model._no_split_modules) <= there) is not family_of(type_of(family)).checks.names_tower_layers
