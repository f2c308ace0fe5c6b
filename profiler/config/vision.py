"""Reading of the vision tower of a model from its `config.json`.

Only families whose activations have a formula are read. The defaults are those of transformers 5.23
(`configuration_<type>.py`); the limits of pixels are those of the published processors.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.config.reading import FieldReader
from profiler.domain.errors import Fault
from profiler.domain.vision import VisionTower


@dataclass(frozen=True, kw_only=True)
class _Tower:
    """What the towers of one model type have in common."""

    defaults: Mapping[str, object]
    min_pixels: int
    max_pixels: int
    inner_tensors: int
    has_layer_norm: bool
    mlp_names: tuple[str, ...]
    patch_bias: bool = False
    has_positions: bool = False


_COMMON = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 16}

_TOWERS: Mapping[str, _Tower] = {
    "qwen2_vl": _Tower(
        defaults={**_COMMON, "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 3584, "patch_size": 14},
        min_pixels=3136,
        max_pixels=12_845_056,
        inner_tensors=2,
        has_layer_norm=True,
        mlp_names=("fc1", "fc2"),
    ),
    "qwen2_5_vl": _Tower(
        defaults={
            **_COMMON,
            "depth": 32,
            "hidden_size": 3584,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "patch_size": 14,
        },
        min_pixels=3136,
        max_pixels=12_845_056,
        inner_tensors=3,
        has_layer_norm=False,
        mlp_names=("gate_proj", "up_proj", "down_proj"),
    ),
    "qwen3_vl": _Tower(
        defaults={
            **_COMMON,
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 3584,
            "patch_size": 16,
            "num_position_embeddings": 2304,
        },
        min_pixels=65_536,
        max_pixels=16_777_216,
        inner_tensors=1,
        has_layer_norm=True,
        mlp_names=("linear_fc1", "linear_fc2"),
        patch_bias=True,
        has_positions=True,
    ),
}

VISION_TYPES = tuple(_TOWERS)
"""Model types whose tower has a formula."""

_MOST_BLOCKS = 10_000
_DEEPSTACK = (8, 16, 24)
"""transformers' default of `deepstack_visual_indexes`."""


def has_tower_formula(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` describes a model whose vision tower has a formula."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in _TOWERS and isinstance(config.get("vision_config"), Mapping)


def read_tower(config: Mapping[str, object]) -> tuple[VisionTower, tuple[Fault, ...]]:
    """Return the vision tower of a `config.json` for which `has_tower_formula` holds, and the faults of its fields."""
    family = _TOWERS[str(config["model_type"])]
    given = config["vision_config"]
    assert isinstance(given, Mapping)
    values = {name: given.get(name) for name in (*family.defaults, "deepstack_visual_indexes")}
    values["in_channels"] = given.get("in_channels") or given.get("in_chans")
    filled = {**family.defaults, **{name: value for name, value in values.items() if value is not None}}
    reader = FieldReader(filled)
    width = "embed_dim" if "embed_dim" in family.defaults else "hidden_size"
    hidden = reader.count(width)
    inner = reader.count("intermediate_size") if "intermediate_size" in filled else hidden * reader.count("mlp_ratio")
    merged = filled.get("deepstack_visual_indexes", _DEEPSTACK) if family.has_positions else ()
    tower = VisionTower(
        depth=reader.count("depth", maximum=_MOST_BLOCKS),
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
