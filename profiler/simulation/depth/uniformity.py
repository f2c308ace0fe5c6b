"""Proof that all decoder layers of a model are alike: of its configuration, and of the model that is built from it."""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from peft import get_peft_model

from profiler.allocator.traces.trace import LAYER, layer_in
from profiler.domain.architectures.families import FAMILIES
from profiler.domain.trials.trial import ALL_LINEAR
from profiler.simulation.tracing.recorder import plain_path

DEPTH = "num_hidden_layers"

_STACK = "model.layers"

_BY_LAYER = frozenset(
    {
        "attn_layer_period",
        "cross_attention_layers",
        "first_k_dense_replace",
        "full_attention_interval",
        "mlp_only_layers",
        "moe_layer_freq",
        "no_rope_layer_interval",
        "no_rope_layers",
        "num_kv_shared_layers",
        "sliding_window",
        "sliding_window_pattern",
        "use_sliding_window",
    }
)
"""Fields that make layers differ, in one family or another: what the built model shows of them differs too. A model
that sets one runs with all its layers, as does one with a window, which is not proven."""

_OWN_NUMBER = "layer_idx"
"""The attribute in which transformers keeps a layer's number; only its cache reads it."""


def config_difference(config: Any, few: Any) -> str:
    """Return why a configuration does not describe equal layers; empty if it does.

    Args:
        config: transformers' configuration.
        few: The same one with fewer layers.
    """
    family = FAMILIES.get(config.model_type)
    if family is None or not family.layers_repeat:
        return f"model_type={config.model_type} is not proven"
    fields, of_few = config.to_dict(), few.to_dict()
    if by_layer := sorted(field for field in _BY_LAYER & fields.keys() if fields[field]):
        return f"{by_layer[0]} is set"
    different = [
        field
        for field in sorted({*fields, *of_few} - {DEPTH})
        if not _same_field(fields.get(field), of_few.get(field), config.num_hidden_layers, few.num_hidden_layers)
    ]
    return f"{different[0]} depends on the layer" if different else ""


def _same_field(value: Any, of_few: Any, layers: int, few: int) -> bool:
    """Return whether a field says the same at both depths. A list with a value per layer has one value only."""
    if isinstance(value, list) and len(value) == layers:
        return value == [value[0]] * layers and of_few == value[:few]
    return bool(value == of_few)


_SAME_FOR_EACH_LAYER = frozenset({"lora_alpha", "lora_dropout", "r", "target_modules", "task_type"})
"""Fields of peft's configuration that make adapters in each layer alike: `target_modules` if it names no layer."""


def adapter_difference(adapters: Any | None) -> str:
    """Return why adapters by peft's configuration may differ between equal layers; empty if they do not."""
    if adapters is None:
        return ""
    defaults = vars(type(adapters)())
    fields = vars(adapters).keys() - _SAME_FOR_EACH_LAYER
    different = sorted(field for field in fields if vars(adapters)[field] != defaults.get(field))
    targets = adapters.target_modules
    # Another text is a pattern of paths.
    if targets != ALL_LINEAR and (
        isinstance(targets, str) or not all(target.isidentifier() for target in targets or ())
    ):
        different.append("target_modules")
    return f"{different[0]} may choose layers" if different else ""


def with_adapters(model: Any, adapters: Any | None) -> Any:
    """Return a model on torch's meta device with adapters by peft's configuration; None: without any."""
    if adapters is None:
        return model
    with torch.device("meta"):
        return get_peft_model(model, adapters)


def layer_difference(model: Any) -> str:
    """Return why the layers of a model differ; empty if all modules, shapes and attributes are the same."""
    layers = model.config.num_hidden_layers
    stacks = {
        plain_path(path): module for path, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)
    }
    if list(stacks) != [_STACK] or len(stacks[_STACK]) != layers:
        return f"the model has other lists of modules than {_STACK}"
    first = _described(stacks[_STACK][0], 0)
    for number, layer in enumerate(stacks[_STACK]):
        described = _described(layer, number)
        different = [path for path in {**first, **described} if first.get(path) != described.get(path)]
        if different:
            return f"layer {number} has another {different[0] or 'class or attribute'} than layer 0"
    return ""


def counts_with_further(model: Any, further: int, counts: Callable[[Any], Sequence[int]]) -> Sequence[int]:
    """Return the counts of a model of equal layers with `further` more of them."""
    layer = next(part for path, part in model.named_modules() if layer_in(path) == 0)
    return [count + further * of_layer for count, of_layer in zip(counts(model), counts(layer), strict=True)]


def _described(layer: Any, number: int) -> Mapping[str, Hashable]:
    """Return class, attributes, parameters and buffers of each module of a layer, by path."""
    return {path: (type(module), _value(vars(module), number)) for path, module in layer.named_modules()}


def _value(value: Any, number: int) -> Hashable:
    """Return an attribute as a value that is equal for equal layers.

    Tensors are described by shape and type. Objects that are no plain values, such as the configuration, are equal only
    if the layers share them. Modules have a description of their own.
    """
    if isinstance(value, torch.nn.Module):
        return id(type(value))
    if isinstance(value, torch.Tensor):
        return type(value), tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    if isinstance(value, str):
        return LAYER.sub(lambda found: "*" if int(found.group()) == number else found.group(), value)
    if isinstance(value, Mapping):
        return tuple(
            (key, "own" if key == _OWN_NUMBER and each == number else _value(each, number))
            for key, each in value.items()
        )
    if isinstance(value, (list, tuple)):
        return tuple(_value(each, number) for each in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(_value(each, number) for each in value)
    if value is None or isinstance(value, (bool, int, float, complex, torch.dtype, torch.device)):
        return type(value), value
    return id(value)


def random_states() -> tuple[object, ...]:
    """Return the states of the host's random generators, which shuffle the rows and must not depend on the depth."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), name, np.asarray(keys).tobytes(), *rest


def with_layers(model_config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
    """Return the fields of a `config.json` with fewer layers; lists with a value per layer are shortened."""
    depth = model_config[DEPTH]
    shortened = {
        key: value[:layers] for key, value in model_config.items() if isinstance(value, list) and len(value) == depth
    }
    return {**model_config, **shortened, DEPTH: layers}
