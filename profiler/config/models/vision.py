"""Reading of the vision tower of a model from its `config.json`.

Only families whose activations have a formula are read; their rows are in `domain/architectures/families.py`.
"""

from collections.abc import Mapping

from profiler.config.options.reading import FieldReader
from profiler.domain.architectures.families import family_of
from profiler.domain.architectures.family import Tower
from profiler.domain.architectures.vision import VisionTower
from profiler.domain.errors import Fault

_MOST_BLOCKS = 10_000
_DEEPSTACK = (8, 16, 24)
"""transformers' default of `deepstack_visual_indexes`."""


def has_tower_formula(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` describes a model whose vision tower has a formula."""
    return _tower_family(config) is not None and isinstance(config.get("vision_config"), Mapping)


def _tower_family(config: Mapping[str, object]) -> Tower | None:
    kind = config.get("model_type")
    return family_of(kind).tower if isinstance(kind, str) else None


def read_tower(config: Mapping[str, object]) -> tuple[VisionTower, tuple[Fault, ...]]:
    """Return the vision tower of a `config.json` for which `has_tower_formula` holds, and the faults of its fields."""
    family, given = _tower_family(config), config["vision_config"]
    assert family is not None and isinstance(given, Mapping)
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
