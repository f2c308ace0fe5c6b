"""Built-in models: the fields of their `config.json` that affect memory, so that nothing has to be downloaded.

Source: the `config.json` of each hub id. Hub ids of one entry have equal tensors; where their contexts differ, that of
the first one counts. The parameter counts are those of the checkpoints; a test builds each model
and counts its parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

ConfigValue = int | float | bool | str


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """One built-in model."""

    name: str
    hub_ids: tuple[str, ...]
    parameters: int
    """Tied parameters counted once."""
    config: Mapping[str, ConfigValue]
    """Fields of `config.json`, by transformers' names."""


_PUBLISHED = (
    BuiltinModel(
        name="qwen2.5-0.5b",
        hub_ids=(
            "Qwen/Qwen2.5-0.5B",
            "Qwen/Qwen2.5-0.5B-Instruct",
            "Qwen/Qwen2.5-Coder-0.5B",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            "Qwen/Qwen2-0.5B",
            "Qwen/Qwen2-0.5B-Instruct",
        ),
        parameters=494_032_768,
        config={
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-1.5b",
        hub_ids=(
            "Qwen/Qwen2.5-1.5B",
            "Qwen/Qwen2.5-1.5B-Instruct",
            "Qwen/Qwen2.5-Coder-1.5B",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct",
            "Qwen/Qwen2.5-Math-1.5B",
            "Qwen/Qwen2.5-Math-1.5B-Instruct",
            "Qwen/Qwen2-1.5B",
            "Qwen/Qwen2-1.5B-Instruct",
        ),
        parameters=1_543_714_304,
        config={
            "model_type": "qwen2",
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-3b",
        hub_ids=(
            "Qwen/Qwen2.5-3B",
            "Qwen/Qwen2.5-3B-Instruct",
            "Qwen/Qwen2.5-Coder-3B",
            "Qwen/Qwen2.5-Coder-3B-Instruct",
        ),
        parameters=3_085_938_688,
        config={
            "model_type": "qwen2",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-7b",
        hub_ids=(
            "Qwen/Qwen2.5-7B",
            "Qwen/Qwen2.5-7B-Instruct",
            "Qwen/Qwen2.5-Coder-7B",
            "Qwen/Qwen2.5-Coder-7B-Instruct",
            "Qwen/Qwen2.5-Math-7B",
            "Qwen/Qwen2.5-Math-7B-Instruct",
            "Qwen/Qwen2-7B",
            "Qwen/Qwen2-7B-Instruct",
        ),
        parameters=7_615_616_512,
        config={
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-14b",
        hub_ids=(
            "Qwen/Qwen2.5-14B",
            "Qwen/Qwen2.5-14B-Instruct",
            "Qwen/Qwen2.5-Coder-14B",
            "Qwen/Qwen2.5-Coder-14B-Instruct",
        ),
        parameters=14_770_033_664,
        config={
            "model_type": "qwen2",
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="llama-3.2-1b",
        hub_ids=(
            "meta-llama/Llama-3.2-1B",
            "meta-llama/Llama-3.2-1B-Instruct",
        ),
        parameters=1_235_814_400,
        config={
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "head_dim": 64,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="llama-3.2-3b",
        hub_ids=(
            "meta-llama/Llama-3.2-3B",
            "meta-llama/Llama-3.2-3B-Instruct",
        ),
        parameters=3_212_749_824,
        config={
            "model_type": "llama",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "head_dim": 128,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="llama-3.1-8b",
        hub_ids=(
            "meta-llama/Llama-3.1-8B",
            "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Meta-Llama-3.1-8B",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        ),
        parameters=8_030_261_248,
        config={
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="llama-2-7b",
        hub_ids=(
            "meta-llama/Llama-2-7b-hf",
            "meta-llama/Llama-2-7b-chat-hf",
        ),
        parameters=6_738_415_616,
        config={
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="qwen3-0.6b",
        hub_ids=(
            "Qwen/Qwen3-0.6B",
            "Qwen/Qwen3-0.6B-Base",
        ),
        parameters=596_049_920,
        config={
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen3-1.7b",
        hub_ids=(
            "Qwen/Qwen3-1.7B",
            "Qwen/Qwen3-1.7B-Base",
        ),
        parameters=1_720_574_976,
        config={
            "model_type": "qwen3",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen3-4b",
        hub_ids=(
            "Qwen/Qwen3-4B",
            "Qwen/Qwen3-4B-Base",
        ),
        parameters=4_022_468_096,
        config={
            "model_type": "qwen3",
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen3-8b",
        hub_ids=(
            "Qwen/Qwen3-8B",
            "Qwen/Qwen3-8B-Base",
        ),
        parameters=8_190_735_360,
        config={
            "model_type": "qwen3",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen3-14b",
        hub_ids=(
            "Qwen/Qwen3-14B",
            "Qwen/Qwen3-14B-Base",
        ),
        parameters=14_768_307_200,
        config={
            "model_type": "qwen3",
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-32b",
        hub_ids=(
            "Qwen/Qwen2.5-32B",
            "Qwen/Qwen2.5-32B-Instruct",
            "Qwen/Qwen2.5-Coder-32B",
            "Qwen/Qwen2.5-Coder-32B-Instruct",
        ),
        parameters=32_763_876_352,
        config={
            "model_type": "qwen2",
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen2.5-72b",
        hub_ids=("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2-72B", "Qwen/Qwen2-72B-Instruct"),
        parameters=72_706_203_648,
        config={
            "model_type": "qwen2",
            "hidden_size": 8192,
            "intermediate_size": 29568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="qwen3-32b",
        hub_ids=("Qwen/Qwen3-32B",),
        parameters=32_762_123_264,
        config={
            "model_type": "qwen3",
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="deepseek-llm-7b",
        hub_ids=("deepseek-ai/deepseek-llm-7b-base", "deepseek-ai/deepseek-llm-7b-chat"),
        parameters=6_910_365_696,
        config={
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 30,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 102400,
            "tie_word_embeddings": False,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
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
    ),
)


def _distilled(size: str, *, parameters: int | None = None, **differs: ConfigValue) -> BuiltinModel:
    """Return DeepSeek's distilled model of a Qwen2.5 model: its tensors, with a longer context."""
    base = next(model for model in _PUBLISHED if model.name == f"qwen2.5-{size}")
    return BuiltinModel(
        name=f"deepseek-r1-distill-qwen-{size}",
        hub_ids=(f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size.upper()}",),
        parameters=parameters or base.parameters,
        config={**base.config, "max_position_embeddings": 131072, **differs},
    )


_MODELS = (
    *_PUBLISHED,
    _distilled("1.5b", parameters=1_777_088_000, tie_word_embeddings=False),
    _distilled("7b"),
    _distilled("14b"),
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {model.name: model for model in _MODELS}
"""By name."""

_BY_HUB_ID = {hub_id.lower(): model for model in _MODELS for hub_id in model.hub_ids}


def find_builtin(model: str) -> BuiltinModel | None:
    """The built-in model of this name or hub id (case ignored); None if there is none."""
    key = model.lower()
    return BUILTIN_MODELS.get(key) or _BY_HUB_ID.get(key)
