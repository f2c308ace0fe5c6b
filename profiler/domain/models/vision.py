"""Models with a vision tower: Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Source: the `config.json` of each hub id, and the limits of pixels in its `preprocessor_config.json`.
"""

from profiler.domain.models.entry import BuiltinModel, ConfigValue

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
