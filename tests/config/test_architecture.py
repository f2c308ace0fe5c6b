"""Reading of architectures: built-in models, defaults of transformers, and models that are no decoders."""

import pytest

from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture, canonical_model
from profiler.domain.errors import UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_every_builtin_model_has_an_architecture(name):
    architecture = builtin_architecture(name)
    config = BUILTIN_MODELS[name].config
    config = config.get("text_config", config)
    assert architecture.hidden_size == config["hidden_size"]
    assert architecture.qkv_bias == (config["model_type"] in ("qwen2", "glm4_moe", "gpt_oss"))
    assert architecture.qk_norm == (
        config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text", "gemma4_text", "olmo2")
    )


def test_a_hub_id_names_a_builtin_model():
    assert canonical_model("Qwen/Qwen2.5-7B-Instruct") == "qwen2.5-7b"
    assert canonical_model("meta-llama/Llama-2-7b-chat-hf") == "llama-2-7b"
    assert builtin_architecture("qwen/qwen3-8b") == builtin_architecture("qwen3-8b")
    assert canonical_model("somebody/model") == "somebody/model"
    assert builtin_architecture("somebody/model") is None


def test_a_mixture_in_every_layer_needs_no_width_of_a_dense_one():
    mixture = LLAMA | {"model_type": "qwen4_exp_text", "architectures": ["MForCausalLM"], "num_experts": 8}
    del mixture["intermediate_size"]
    assert read_architecture(mixture | {"moe_intermediate_size": 96}, model="m").intermediate_size == 96
    with pytest.raises(UsageError, match="intermediate_size"):
        read_architecture(mixture, model="m")


def test_llama_defaults():
    architecture = read_architecture(LLAMA, model="m")
    assert architecture.num_key_value_heads == 4
    assert architecture.head_dim == 16
    assert architecture.max_position_embeddings == 2048
    assert not architecture.tie_word_embeddings
    assert not architecture.qkv_bias


def test_qwen3_has_its_own_head_dim_and_norms():
    architecture = read_architecture({**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2}, model="m")
    assert (architecture.head_dim, architecture.qk_norm) == (128, True)


def test_gemma_ties_its_embeddings_by_default():
    architecture = read_architecture({**LLAMA, "model_type": "gemma", "num_key_value_heads": 1}, model="m")
    assert architecture.tie_word_embeddings
    assert architecture.head_dim == 256


def test_the_text_part_of_a_multimodal_model_is_read():
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    architecture = read_architecture({"model_type": "gemma3", "text_config": text}, model="m")
    assert (architecture.vocab_size, architecture.num_attention_heads) == (262_208, 8)


def test_an_unknown_type_is_read_if_it_is_causal():
    config = {**LLAMA, "model_type": "newllm", "architectures": ["NewllmForCausalLM"]}
    assert read_architecture(config, model="m").model_type == "newllm"


@pytest.mark.parametrize(
    ("fields", "experts"),
    [
        ({}, 1),
        ({"num_experts": 0}, 1),
        ({"model_type": "qwen3_moe"}, 128),
        ({"model_type": "qwen3_moe", "num_experts": 16}, 16),
        ({"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4}, 4),
        ({"n_routed_experts": 256, "architectures": ["NewForCausalLM"]}, 256),
    ],
)
def test_the_number_of_experts_is_read(fields, experts):
    assert read_architecture({**LLAMA, **fields}, model="m").num_experts == experts


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "has no hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size"),
        ({**LLAMA, "model_type": "bert", "architectures": ["BertForMaskedLM"]}, "no causal language model"),
        ({**LLAMA, "model_type": "bert"}, "model_type bert"),
        ({**LLAMA, "is_encoder_decoder": True}, "is_encoder_decoder"),
        ({**LLAMA, "num_experts": "many"}, "num_experts=many"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size=wide"),
        ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads=0"),
    ],
)
def test_a_model_that_is_no_decoder_is_refused(config, reason):
    with pytest.raises(UsageError) as caught:
        read_architecture(config, model="some/model")
    (fault,) = caught.value.faults
    assert (fault.key, fault.found) == ("model", "some/model")
    assert reason in fault.sentence()
