"""Built-in models: the fields of their `config.json` that affect memory, so that nothing has to be downloaded.

Source: the `config.json` of each hub id. Hub ids of one entry have equal tensors; where their contexts differ, that of
the first one counts. The parameter counts are those of the checkpoints; a test builds each model
and counts its parameters.
"""

from collections.abc import Mapping

from profiler.domain.architectures.architecture import BuiltinModel, ConfigValue
from profiler.domain.models.llama import GEMMA, GEMMA_4, LLAMA
from profiler.domain.models.others import OTHERS, VISION
from profiler.domain.models.qwen import QWEN2, QWEN3

__all__ = ["BUILTIN_MODELS", "REPUBLISHERS", "VISION_MODELS", "BuiltinModel", "find_builtin"]

_TOWER_HEADS = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72}

_TINY = BuiltinModel(
    name="tiny",
    hub_ids=(),
    parameters=119_360,
    config={
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
    },
)


_GPT_OSS: Mapping[str, ConfigValue] = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}

_DEEPSEEK_V2: Mapping[str, ConfigValue] = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 102400,
}

_MIXTURES = (
    BuiltinModel(
        name="deepseek-v2-lite",
        hub_ids=("deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite-Chat"),
        parameters=15_706_484_224,
        config={
            **_DEEPSEEK_V2,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "topk_method": "greedy",
        },
    ),
    BuiltinModel(
        name="deepseek-v2",
        hub_ids=("deepseek-ai/DeepSeek-V2", "deepseek-ai/DeepSeek-V2-Chat"),
        parameters=235_741_434_880,
        config={
            **_DEEPSEEK_V2,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_group": 8,
            "n_routed_experts": 160,
            "num_attention_heads": 128,
            "num_hidden_layers": 60,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "topk_group": 3,
            "topk_method": "group_limited_greedy",
        },
    ),
    BuiltinModel(
        name="deepseek-v3",
        hub_ids=("unsloth/DeepSeek-V3-bf16",),
        parameters=671_026_404_352,
        config={
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 3,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 2048,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "tie_word_embeddings": False,
            "topk_group": 4,
            "v_head_dim": 128,
            "vocab_size": 129280,
        },
    ),
    BuiltinModel(
        name="glm-4.7-flash",
        hub_ids=("zai-org/GLM-4.7-Flash",),
        parameters=29_943_390_976,
        config={
            "model_type": "glm4_moe_lite",
            "attention_bias": False,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "kv_lora_rank": 512,
            "max_position_embeddings": 202752,
            "moe_intermediate_size": 1536,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_attention_heads": 20,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 47,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "v_head_dim": 256,
            "vocab_size": 154880,
        },
    ),
    BuiltinModel(
        name="moonlight-16b-a3b",
        hub_ids=("moonshotai/Moonlight-16B-A3B", "moonshotai/Moonlight-16B-A3B-Instruct"),
        parameters=15_960_108_544,
        config={
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 11264,
            "kv_lora_rank": 512,
            "max_position_embeddings": 8192,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_attention_heads": 16,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 27,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "v_head_dim": 128,
            "vocab_size": 163840,
        },
    ),
    BuiltinModel(
        name="gpt-oss-20b",
        hub_ids=("openai/gpt-oss-20b",),
        parameters=20_914_757_184,
        config={**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    ),
    BuiltinModel(
        name="gpt-oss-120b",
        hub_ids=("openai/gpt-oss-120b",),
        parameters=116_829_156_672,
        config={**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    ),
    BuiltinModel(
        name="glm-4.5-air",
        hub_ids=("zai-org/GLM-4.5-Air", "zai-org/GLM-4.5-Air-Base"),
        parameters=106_852_245_504,
        config={
            "model_type": "glm4_moe",
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 46,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "use_qk_norm": False,
            "vocab_size": 151552,
        },
    ),
    BuiltinModel(
        name="gemma-4-26b-a4b",
        hub_ids=("google/gemma-4-26B-A4B", "google/gemma-4-26B-A4B-it"),
        parameters=25_805_933_872,
        config={
            "model_type": "gemma4",
            "text_config": {
                "model_type": "gemma4_text",
                "attention_k_eq_v": True,
                "enable_moe_block": True,
                "final_logit_softcapping": 30.0,
                "hidden_size": 2816,
                "hidden_size_per_layer_input": 0,
                "intermediate_size": 2112,
                "max_position_embeddings": 262144,
                "moe_intermediate_size": 704,
                "num_attention_heads": 16,
                "num_experts": 128,
                "num_global_key_value_heads": 2,
                "num_hidden_layers": 30,
                "num_key_value_heads": 8,
                "sliding_window": 1024,
                "top_k_experts": 8,
                "vocab_size": 262144,
            },
            "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, **_TOWER_HEADS},
        },
    ),
)
"""Mixtures of experts of other families than Qwen's and Mixtral; gpt-oss as it is without MXFP4, which trl trains, and
DeepSeek-V3 in bfloat16, because transformers trains no weights in 8 bits."""


def _like(base: str, name: str, *hub_ids: str, parameters: int | None = None, **differs: ConfigValue) -> BuiltinModel:
    """Return a model that has the fields of another one but for these."""
    of = next(model for model in (*QWEN2, *LLAMA, *OTHERS) if model.name == base)
    return BuiltinModel(
        name=name,
        hub_ids=hub_ids,
        parameters=parameters or of.parameters,
        config={**of.config, **differs},
        checkpoint_dtype=of.checkpoint_dtype,
    )


def _distilled(size: str, *, parameters: int | None = None, **differs: ConfigValue) -> BuiltinModel:
    """Return DeepSeek's distilled model of a Qwen2.5 model: its tensors, with a longer context."""
    hub_id = f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size.upper()}"
    base, name = f"qwen2.5-{size}", f"deepseek-r1-distill-qwen-{size}"
    return _like(base, name, hub_id, parameters=parameters, max_position_embeddings=131072, **differs)


_MISTRAL = "mistralai/Mistral-7B"
_OTHER_SIZES = (
    _like(
        "mistral-7b",
        "mistral-7b-v0.1",
        f"{_MISTRAL}-v0.1",
        f"{_MISTRAL}-Instruct-v0.1",
        parameters=7_241_732_096,
        vocab_size=32000,
        sliding_window=4096,
    ),
    _like(
        "mistral-7b",
        "mistral-7b-v0.2",
        f"{_MISTRAL}-Instruct-v0.2",
        parameters=7_241_732_096,
        vocab_size=32000,
    ),
    _like(
        "mistral-7b",
        "mistral-nemo-12b",
        "mistralai/Mistral-Nemo-Base-2407",
        parameters=12_247_782_400,
        hidden_size=5120,
        num_hidden_layers=40,
        head_dim=128,
        vocab_size=131072,
        max_position_embeddings=128000,
    ),
    _like(
        "llama-2-7b",
        "llama-2-13b",
        "meta-llama/Llama-2-13b-hf",
        "meta-llama/Llama-2-13b-chat-hf",
        parameters=13_015_864_320,
        hidden_size=5120,
        intermediate_size=13824,
        num_hidden_layers=40,
        num_attention_heads=40,
        num_key_value_heads=40,
    ),
    BuiltinModel(
        name="gemma-2b",
        hub_ids=("google/gemma-2b", "google/gemma-2b-it"),
        parameters=2_506_172_416,
        config={
            "model_type": "gemma",
            "head_dim": 256,
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "max_position_embeddings": 8192,
            "num_attention_heads": 8,
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
            "vocab_size": 256000,
        },
    ),
)
"""Models of which public repositories have the `config.json`, as code or as what transformers printed of it."""

_MODELS = (
    *QWEN2,
    *LLAMA,
    *QWEN3,
    *OTHERS,
    *GEMMA,
    *_MIXTURES,
    *GEMMA_4,
    _TINY,
    _distilled("1.5b", parameters=1_777_088_000, tie_word_embeddings=False),
    _distilled("7b"),
    _distilled("14b"),
    *_OTHER_SIZES,
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {model.name: model for model in _MODELS}
"""Models of text alone, by name."""

VISION_MODELS: Mapping[str, BuiltinModel] = {model.name: model for model in VISION}
"""Models with a vision tower, by name; only estimates know them."""

_BY_HUB_ID = {hub_id.lower(): model for model in (*_MODELS, *VISION) for hub_id in model.hub_ids}


REPUBLISHERS = ("unsloth/", "nousresearch/")
"""Owners on the hub who publish checkpoints of others again, under the same name. Hub ids of theirs differ from it."""

_BY_TAIL = {key.rpartition("/")[2]: model for key, model in _BY_HUB_ID.items() if not key.startswith(REPUBLISHERS)}


def find_builtin(model: str) -> BuiltinModel | None:
    """The built-in model of this name or hub id (case ignored); None if there is none."""
    key = model.lower()
    owner, _, tail = key.rpartition("/")
    named = BUILTIN_MODELS.get(key) or VISION_MODELS.get(key)
    return named or _BY_HUB_ID.get(key) or (_BY_TAIL.get(tail) if f"{owner}/" in REPUBLISHERS else None)
