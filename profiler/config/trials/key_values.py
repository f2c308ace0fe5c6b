"""Untyped values of the keys of a trial, read as declared, and the modules that LoRA adapts."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profiler.config.models.architecture import MODEL_TYPES
from profiler.config.models.lookup import builtin_architecture
from profiler.config.notes import Note
from profiler.config.options.reading import FieldReader, show
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import (
    LAYER_GATE,
    LAYER_PROJECTION,
    LINEAR_OUTPUT,
    MODEL_PROJECTION,
    Family,
    family_of,
)
from profiler.domain.errors import Fault, nearest
from profiler.domain.trials.keys import Key, Kind
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, TRIAL_KEYS, TrialSpec

PROJECTION_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a decoder layer in most known model types, in the order of the forward pass."""

FUSED_NAMES = ("qkv_proj", "gate_up_proj")
"""Linear layers that stand for several of them."""

OTHER_TARGETS = ("embed_tokens", "lm_head")
"""Modules outside the layers that peft can adapt as well."""


_OF_MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
_NOT_IN_MAMBA = ("conv1d", "out_proj")
"""Modules that peft 0.21 adapts in no model of these types (`_check_lora_target_modules_mamba`)."""


def in_layer_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return module names, each once, in the order of a layer and then by name: for peft they are a set."""
    known = (*PROJECTION_NAMES, *FUSED_NAMES, *OTHER_TARGETS)
    unique = {name.strip() for name in names}
    return tuple(sorted(unique, key=lambda name: (known.index(name) if name in known else len(known), name)))


def unknown_targets(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Yield a fault per module of `lora_target_modules` that the model has not."""
    targets = spec.lora_target_modules
    if targets is None or architecture is None:
        return
    if architecture.model_type in _OF_MAMBA and {ALL_LINEAR, *_NOT_IN_MAMBA} & {*targets}:
        yield Fault(
            key="lora_target_modules",
            found=",".join(targets),
            problem=f"includes {' or '.join(_NOT_IN_MAMBA)}, which peft refuses to adapt in {architecture.model_type}",
            hint="Name other layers, such as lora_target_modules=[in_proj].",
        )
    if targets == (ALL_LINEAR,):
        return
    if wrapped := [part.layer for part in architecture.idle if part.is_wrapped and part.layer in targets]:
        yield Fault(
            key="lora_target_modules",
            found=",".join(targets),
            problem=f"names {wrapped[0]}, which in the vision tower of this model is no linear layer but holds one, so "
            "peft refuses the name",
            hint=f"Use lora_target_modules={ALL_LINEAR}.",
        )
        return
    if architecture.model_type not in MODEL_TYPES or architecture.num_experts > 1:
        # The names of its modules are unknown, or its experts are no linear layers; peft checks them.
        return
    known = _adaptable(architecture)
    for name in targets:
        if name not in known:
            yield Fault(
                key="lora_target_modules",
                found=name,
                problem=f"must be {ALL_LINEAR} alone or names among {', '.join(known)}",
                hint=nearest(name, [*known, ALL_LINEAR]),
            )


def _adaptable(architecture: Architecture) -> tuple[str, ...]:
    """Return the names by which peft finds modules of a model."""
    layers = projection_names(family_of(architecture.model_type))
    second = (LAYER_GATE, LAYER_PROJECTION, MODEL_PROJECTION) if architecture.layer_inputs else ()
    return (*layers, *second, *_of_tower(architecture), *OTHER_TARGETS)


def without_absent_targets(keys: dict[str, object]) -> Iterator[Note]:
    """Leave out the names of modules that a built-in model does not have, where it has others, and name them.

    Files have names of several families in one list, and peft refuses one only if no module has any of them.
    """
    targets, model = keys.get("lora_target_modules"), keys.get("model")
    architecture = builtin_architecture(model) if isinstance(model, str) else None
    if not isinstance(targets, list) or architecture is None or architecture.num_experts > 1:
        return
    found = [name for name in targets if name in _adaptable(architecture)]
    absent = [show(name) for name in targets if name not in found]
    if found and absent:
        keys["lora_target_modules"] = found
        text = f"lora_target_modules={show(found)} ({show(model)} has no {', no '.join(absent)}, which peft passes)"
        yield Note(key="lora_target_modules", text=text)


def projection_names(family: Family) -> tuple[str, ...]:
    """Return the linear layers of a decoder layer of the family, in the order of the forward pass."""
    query, key, value, output, gate, up, down = PROJECTION_NAMES
    attention = FUSED_NAMES[:1] if family.layers.has_fused_attention else (query, key, value)
    mlp = FUSED_NAMES[1:] if family.layers.has_fused_mlp else (gate, up)
    linear = (*family.layers.linear_inputs, LINEAR_OUTPUT) if family.layers.linear_inputs else ()
    return (*attention, output, *linear, *mlp, down)


def _of_tower(architecture: Architecture) -> tuple[str, ...]:
    """Return the names of linear layers that only the vision tower has; peft takes them by the end of their paths."""
    if architecture.vision is None:
        return tuple(part.layer for part in architecture.idle if part.layer not in (*PROJECTION_NAMES, ""))
    return ("qkv", "attn.proj", *(name for name in architecture.vision.mlp_names if name not in PROJECTION_NAMES))


DEFAULTS: Mapping[str, object] = {
    key.name: None if key.null_given else key.default for key in TRIAL_KEYS if key.null_given or not key.required
}
"""Values of the keys that a user leaves out, as a user would write them. `backend` and `model` have no default."""


def read_given(reader: FieldReader, key: Key) -> Any:  # noqa: ANN401  of any key
    """Return the value of `key` that a user wrote; for null, where that is allowed, what null always means or None."""
    name = key.name
    if reader.value(name) is None and key.null_given:
        return key.given_default
    match key.kind:
        case Kind.CHOICE if key.choices is not None:
            return reader.choice(name, key.choices, hints=key.hints)
        case Kind.CHOICE:
            return reader.word(name, key.values)
        case Kind.COUNT:
            return reader.count(name, minimum=key.minimum, maximum=key.maximum, why=key.why_minimum)
        case Kind.NUMBER:
            return reader.number(name)
        case Kind.FLAG:
            return reader.flag(name)
        case Kind.NAMES:
            return reader.names(name)
        case Kind.TEXT:
            return reader.text(name, key.meaning + (", or null" if key.null_given else ""))


def read_stored(reader: FieldReader, key: Key) -> Any:  # noqa: ANN401  of any key
    """Return the value of `key` in a stored specification. Bounds of a user's values are not checked again."""
    name, value = key.name, reader.value(key.name)
    if value is None and key.null:
        return None
    if key.kind is Kind.COUNT:
        return reader.count(name, minimum=min(key.minimum, 1), maximum=None)
    if key.kind is Kind.NUMBER:
        return reader.number(name, maximum=sys.float_info.max)
    if key.kind is Kind.CHOICE and key.choices is None:
        # A card that the program no longer knows is still part of what was stored.
        return reader.text(name, "a word")
    if key.kind is Kind.TEXT and value == key.default:
        return value
    return read_given(reader, key)


def without_other_recipes(
    values: Mapping[str, Any], recipe: Recipe, keys: tuple[Key, ...] = TRIAL_KEYS
) -> dict[str, Any]:
    """Return `values` where each key that `recipe` does not have says that it has no meaning."""
    other = {key.name: key.without_meaning for key in keys if recipe not in key.recipes}
    return {**values, **other}


NO_MEANING = "has no meaning with recipe="
OTHER_TRAINER = "is a trainer of"
"""How the problem begins of a key that a recipe does not have, and of a trainer of another program without a recipe."""


def other_recipe_faults(
    values: Mapping[str, object], recipe: Recipe, keys: tuple[Key, ...] = TRIAL_KEYS
) -> list[Fault]:
    """Return one fault per value that a user gave to a key that `recipe` does not have; a default is no fault."""
    return [
        Fault(
            key=key.name,
            found=show(values[key.name]),
            problem=f"{NO_MEANING}{recipe}",
            hint=f"Leave it out, or use recipe={' or recipe='.join(sorted(key.recipes))}.",
        )
        for key in keys
        if recipe not in key.recipes and key.name in values and values[key.name] not in (None, key.default)
    ]
