"""SmolLM3, Mistral, Phi, OLMo 2 and Granite, and the models with a vision tower.

Models with a vision tower: Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Source: the `config.json` of each hub id, and the limits of pixels in its `preprocessor_config.json`.
"""

from profiler.domain.architectures.architecture import BuiltinModel, ConfigValue


def _olmo(size: str, parameters: int, hidden: int, inner: int, layers: int) -> BuiltinModel:
    """Return an OLMo 2, with as many heads as layers."""
    return BuiltinModel(
        name=f"olmo-2-{size.lower()}",
        hub_ids=tuple(f"allenai/OLMo-2-1124-{size}{kind}" for kind in ("", "-SFT", "-DPO", "-Instruct")),
        parameters=parameters,
        config={
            "model_type": "olmo2",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": layers,
            "num_key_value_heads": layers,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-06,
            "pad_token_id": 100277,
        },
    )


OTHERS = (
    BuiltinModel(
        name="smollm3-3b",
        hub_ids=(
            "HuggingFaceTB/SmolLM3-3B",
            "HuggingFaceTB/SmolLM3-3B-Base",
        ),
        parameters=3_075_098_624,
        config={
            "model_type": "smollm3",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-06,
        },
    ),
    BuiltinModel(
        name="mistral-7b",
        hub_ids=(
            "mistralai/Mistral-7B-v0.3",
            "mistralai/Mistral-7B-Instruct-v0.3",
        ),
        parameters=7_248_023_552,
        config={
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32768,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "sliding_window": None,
        },
    ),
    BuiltinModel(
        name="mistral-small-24b",
        hub_ids=(
            "mistralai/Mistral-Small-24B-Base-2501",
            "mistralai/Mistral-Small-24B-Instruct-2501",
        ),
        parameters=23_572_403_200,
        config={
            "model_type": "mistral",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 131072,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "head_dim": 128,
            "sliding_window": None,
        },
    ),
    BuiltinModel(
        name="phi-3.5-mini",
        hub_ids=(
            "microsoft/Phi-3.5-mini-instruct",
            "microsoft/Phi-3-mini-128k-instruct",
        ),
        parameters=3_821_079_552,
        config={
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "pad_token_id": 32000,
        },
    ),
    BuiltinModel(
        name="phi-4-mini",
        hub_ids=("microsoft/Phi-4-mini-instruct",),
        parameters=3_836_021_760,
        config={
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 200064,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "partial_rotary_factor": 0.75,
            "pad_token_id": 199999,
        },
    ),
    BuiltinModel(
        name="phi-4",
        hub_ids=("microsoft/phi-4",),
        parameters=14_659_507_200,
        config={
            "model_type": "phi3",
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 10,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-05,
            "pad_token_id": 100349,
        },
    ),
    # Of the next two Unsloth has split the fused projections of Phi, and named the tensors as Llama's. Source: outputs
    # of `nb/Phi_4-Conversational.ipynb` and `nb/Phi_3.5_Mini-Conversational.ipynb` of unslothai/notebooks, "Fast Llama
    # patching"; 65,536,000 and 29,884,416 values of adapters of rank 16 are those of seven projections of a layer.
    BuiltinModel(
        name="unsloth-phi-4",
        hub_ids=("unsloth/phi-4",),
        parameters=14_659_507_200,
        config={
            "model_type": "llama",
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 10,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="unsloth-phi-3.5-mini",
        hub_ids=("unsloth/Phi-3.5-mini-instruct",),
        parameters=3_821_079_552,
        config={
            "model_type": "llama",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
        },
    ),
    BuiltinModel(
        name="mixtral-8x7b",
        hub_ids=(
            "mistralai/Mixtral-8x7B-v0.1",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
        ),
        parameters=46_702_792_704,
        config={
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "sliding_window": None,
        },
    ),
    _olmo("7B", 7_298_617_344, 4096, 11008, 32),
    _olmo("13B", 13_716_198_400, 5120, 13824, 40),
    BuiltinModel(
        name="granite-3.3-8b",
        hub_ids=("ibm-granite/granite-3.3-8b-instruct",),
        parameters=8_170_864_640,
        config={
            "model_type": "granite",
            "hidden_size": 4096,
            "intermediate_size": 12800,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 49159,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "pad_token_id": 0,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0078125,
            "logits_scaling": 16.0,
        },
    ),
)


_QWEN2_TOWER: dict[str, object] = {
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN25_TOWER: dict[str, object] = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": (7, 15, 23, 31),
}
_QWEN3_TOWER: dict[str, object] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": (5, 11, 17),
}
_QWEN3_LARGE_TOWER: dict[str, object] = {
    **_QWEN3_TOWER,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "deepstack_visual_indexes": (8, 16, 24),
}


def _text(
    hidden: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, context: int, *, tied: bool
) -> dict[str, ConfigValue]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
    }


def _qwen2(size: str, parameters: int, text: dict[str, ConfigValue]) -> BuiltinModel:
    # The `hidden_size` of this tower is that of the language model.
    tower = {**_QWEN2_TOWER, "hidden_size": text["hidden_size"]}
    return BuiltinModel(
        name=f"qwen2-vl-{size.lower()}",
        hub_ids=(f"Qwen/Qwen2-VL-{size}-Instruct", f"Qwen/Qwen2-VL-{size}"),
        parameters=parameters,
        config={"model_type": "qwen2_vl", **text, "vision_config": tower},
    )


def _qwen25(size: str, parameters: int, text: dict[str, ConfigValue], *, inner: int = 3420) -> BuiltinModel:
    tower = {**_QWEN25_TOWER, "intermediate_size": inner, "out_hidden_size": text["hidden_size"]}
    return BuiltinModel(
        name=f"qwen2.5-vl-{size.lower()}",
        hub_ids=(f"Qwen/Qwen2.5-VL-{size}-Instruct",),
        parameters=parameters,
        config={"model_type": "qwen2_5_vl", **text, "vision_config": tower},
    )


def _qwen3(size: str, parameters: int, text: dict[str, ConfigValue], tower: dict[str, object]) -> BuiltinModel:
    tied = text["tie_word_embeddings"]
    return BuiltinModel(
        name=f"qwen3-vl-{size.lower()}",
        hub_ids=(f"Qwen/Qwen3-VL-{size}-Instruct", f"Qwen/Qwen3-VL-{size}-Thinking"),
        parameters=parameters,
        config={
            "model_type": "qwen3_vl",
            "tie_word_embeddings": tied,
            "text_config": {"model_type": "qwen3_vl_text", "head_dim": 128, **text},
            "vision_config": {**tower, "out_hidden_size": text["hidden_size"]},
        },
    )


VISION = (
    _qwen2("2B", 2_208_985_600, _text(1536, 8960, 28, 12, 2, 151_936, 32_768, tied=True)),
    _qwen2("7B", 8_291_375_616, _text(3584, 18_944, 28, 28, 4, 152_064, 32_768, tied=False)),
    _qwen25("3B", 3_754_622_976, _text(2048, 11_008, 36, 16, 2, 151_936, 128_000, tied=True)),
    _qwen25("7B", 8_292_166_656, _text(3584, 18_944, 28, 28, 4, 152_064, 128_000, tied=False)),
    _qwen25("32B", 33_452_718_336, _text(5120, 27_648, 64, 40, 8, 152_064, 128_000, tied=False), inner=3456),
    _qwen25("72B", 73_410_777_344, _text(8192, 29_568, 80, 64, 8, 152_064, 128_000, tied=False), inner=3456),
    _qwen3("2B", 2_127_532_032, _text(2048, 6144, 28, 16, 8, 151_936, 262_144, tied=True), _QWEN3_TOWER),
    _qwen3("4B", 4_437_815_808, _text(2560, 9728, 36, 32, 8, 151_936, 262_144, tied=True), _QWEN3_TOWER),
    _qwen3("8B", 8_767_123_696, _text(4096, 12_288, 36, 32, 8, 151_936, 262_144, tied=False), _QWEN3_LARGE_TOWER),
    _qwen3("32B", 33_357_390_064, _text(5120, 25_600, 64, 64, 8, 151_936, 262_144, tied=False), _QWEN3_LARGE_TOWER),
)
