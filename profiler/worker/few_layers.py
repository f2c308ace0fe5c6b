"""Which simulated trials run with few layers: those whose layers are proven equal, where that is faster."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, Attention, DistributedType, Logprobs, TrialSpec, Weights
from profiler.simulation.depth.uniformity import DEPTH, config_difference, layer_difference, with_adapters
from profiler.training.arguments import lora_config
from profiler.training.models.model import build_config, random_model
from profiler.training.models.sizes import parameter_counts
from profiler.training.placement import RealDevice

LAYERS_RUN = (2, 3)
"""With three layers one is neither the first nor the last; it is what the deeper run has in addition."""

_FEWEST_LAYERS = 20
"""From so many layers on two small runs take less time than one of all layers."""

_MOST_STEPS = 16
"""Longer trials extrapolate optimizer steps up to a number of events, which another depth reaches earlier."""

_PROVEN: Mapping[str, Collection[object]] = {
    "weights": (Weights.RANDOM,),
    "dataset": (None,),
    "recipe": (Recipe.GRPO,),
    "use_dynamic_bsz": (False,),
    "activation_offloading": (False,),
    "torch_empty_cache_steps": (None,),
    "critic": (False,),
    "logprobs": (Logprobs.FUSED, Logprobs.FULL),
    "use_liger_kernel": (False,),
    "use_vllm": (False,),
    "reward_models": (None,),
    "per_device_eval_batch_size": (None,),
    "images_per_prompt": (None,),
    "num_processes": (1,),
    "distributed_type": (DistributedType.NO,),
}
"""Values for which tests compare few layers with all of them. Buckets of several GPUs do not repeat by layer."""


def pays_with(model_config: Mapping[str, Any]) -> bool:
    """Return whether the model is so deep that few layers are faster."""
    layers = model_config.get(DEPTH)
    return isinstance(layers, int) and layers >= _FEWEST_LAYERS


def proven_counts(spec: TrialSpec, model_config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the parameters of the model and those that are trained; None unless all layers are proven equal.

    The model is built with all its layers on torch's meta device, which takes no memory and little time.
    """
    if not _is_proven(spec):
        return None
    config = build_config(model_config, name=spec.model)
    few = build_config(with_layers(model_config, LAYERS_RUN[-1]), name=spec.model)
    if config_difference(config, few):
        return None
    # Weights in 4 bits have the same places and shapes, and so have the modules with another attention.
    built = random_model(
        replace(spec, attn_implementation=Attention.EAGER), config, RealDevice(device=torch.device("meta"))
    )
    model = with_adapters(built, lora_config(spec))
    return None if layer_difference(model) else parameter_counts(model)


def _is_proven(spec: TrialSpec) -> bool:
    targets = spec.lora_target_modules or ()
    names_no_layer = targets == (ALL_LINEAR,) or all(target.isidentifier() for target in targets)
    return (
        names_no_layer
        and spec.steps <= _MOST_STEPS
        and all(getattr(spec, key) in values for key, values in _PROVEN.items())
    )


def with_layers(model_config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
    """Return the fields of a `config.json` with fewer layers; lists with a value per layer are shortened."""
    depth = model_config[DEPTH]
    shortened = {
        key: value[:layers] for key, value in model_config.items() if isinstance(value, list) and len(value) == depth
    }
    return {**model_config, **shortened, DEPTH: layers}


def random_states() -> tuple[object, ...]:
    """Return the states of the host's random generators, which shuffle the rows and must not depend on the depth."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), name, np.asarray(keys).tobytes(), *rest
