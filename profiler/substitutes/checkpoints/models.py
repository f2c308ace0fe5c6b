"""`from_pretrained` of configurations and models, answered without a checkpoint.

Models have random weights, and are loaded by transformers itself: its `from_pretrained` takes a state dict instead of a
checkpoint. It gets one with the tensors that the configuration needs, so that placement, data types, quantisation and
tied weights are transformers' own. The tensors are zeros of memory that the system only reserves: a model of any size
takes no host memory until it is written to.
"""

from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import configuration_utils

from profiler.config.models.lookup import suggested_model
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.other_runs import ScriptWeights
from profiler.seams.patching import Patch
from profiler.substitutes.checkpoints.known_configs import assumed_config, builtin_config, known_config, known_part
from profiler.substitutes.options import Replaced, SubstituteOptions

_CONFIG: Any = getattr(configuration_utils, "PreTrainedConfig", None) or configuration_utils.PretrainedConfig
"""The class of configurations, by its name in transformers 5 or 4."""


def configuration_patches(options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patch of configurations."""
    find = _CONFIG.get_config_dict.__func__
    return [(_CONFIG, "get_config_dict", classmethod(_config_dict(find, options, replaced)))]


def model_patches(options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patch of models."""
    from transformers import PreTrainedModel

    load = PreTrainedModel.from_pretrained.__func__
    return [(PreTrainedModel, "from_pretrained", classmethod(_model(load, options, replaced)))]


def _config_dict(original: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def get_config_dict(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = str(pretrained_model_name_or_path)
        found = builtin_config(name)
        if found is not None:
            return found, _without_hub(kwargs)
        try:
            return original(cls, pretrained_model_name_or_path, **kwargs)
        except OSError as error:
            substitute = _substituted(cls, name, str(kwargs.get("subfolder") or ""), options, replaced)
            if substitute is None:
                raise _unavailable(name) from error
            return substitute, _without_hub(kwargs)

    return get_config_dict


def _substituted(
    cls: Any, name: str, folder: str, options: SubstituteOptions, replaced: Replaced
) -> dict[str, Any] | None:
    """Return a configuration that is known here, or the defaults of its class, which are named; else None."""
    known = known_part(name, folder) if folder else known_config(name)
    if known is not None:
        return known
    if options.weights is not ScriptWeights.RANDOM or Path(name).exists():
        return None
    assumed = assumed_config(cls, name)
    if assumed is None:
        return None
    replaced.add("configuration of", f"{name}/{folder}" if folder else name, f"assumed: the defaults of {assumed[1]}")
    return assumed[0]


def _model(load: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        name_or_path = pretrained_model_name_or_path
        if name_or_path is None or kwargs.get("state_dict") is not None or kwargs.get("gguf_file") is not None:
            return load(cls, name_or_path, *model_args, **kwargs)
        config = kwargs.pop("config", None)
        if not isinstance(config, _CONFIG):
            config, kwargs = _configuration(cls, config or name_or_path, kwargs)
        dtype = requested_dtype(kwargs, config)
        state = empty_checkpoint(cls, config, model_args, dtype, with_values=options.with_values)
        found = load(cls, None, *model_args, config=config, state_dict=state, **_without_hub(kwargs))
        model = found[0] if isinstance(found, tuple) else found
        number_positions(model)
        adopt_name(model, str(name_or_path))
        replaced.add("weights of", str(name_or_path), "random, from its configuration")
        return found

    return from_pretrained


_OF_THE_HUB = (
    "revision", "subfolder", "variant", "use_safetensors", "cache_dir", "force_download", "weights_only", "proxies",
    "token", "local_files_only", "trust_remote_code", "adapter_kwargs", "_from_pipeline", "_from_auto",
)  # fmt: skip
"""Arguments that say which files are read, and how."""


def _without_hub(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in _OF_THE_HUB}


def _configuration(cls: Any, name: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the configuration by name, and the arguments that it leaves for the model."""
    kept = {key: kwargs.pop(key) for key in ("dtype", "torch_dtype", "quantization_config") if key in kwargs}
    config, unused = cls.config_class.from_pretrained(name, return_unused_kwargs=True, **kwargs)
    return config, unused | kept


def _unavailable(name: str) -> UsageError:
    """Return the error of a model whose configuration is not here."""
    names = [hub_id for model in BUILTIN_MODELS.values() for hub_id in model.hub_ids]
    problem = "is not built in, is no local folder with a config.json, and is unavailable from the hub"
    hint = suggested_model(name, names) or "Name a local folder with the model's config.json, or a built-in model."
    return UsageError([Fault(key="model", found=name, problem=problem, hint=hint)])


_BLOCK = 1 << 20
"""Elements of the random block that is repeated where weights have values."""

_STD = 0.02

_POSITIONS = ("position_ids", "token_type_ids")
"""Buffers of indices that encoders have: 0, 1, 2, ... and 0."""


def empty_checkpoint(
    model_class: Any, config: Any, model_args: tuple[Any, ...], dtype: torch.dtype, *, with_values: bool
) -> dict[str, torch.Tensor]:
    """Return a state dict for a model of this configuration; tied weights are in it once."""
    with torch.device("meta"):
        model = model_class(deepcopy(config), *model_args)
    model.tie_weights()
    named = dict(model.named_parameters())
    buffers = {name: value for name, value in model.named_buffers() if name in model.state_dict()}
    make = _random if with_values else _zeros
    return {name: make(value, _dtype_of(value, dtype)) for name, value in (named | buffers).items()}


def _dtype_of(value: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if value.is_floating_point() else value.dtype


def _zeros(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that no operation writes: the system provides the pages when they are used.

    Vectors are ones, as the weights of norms are.
    """
    if like.dim() < 2:
        return torch.ones(like.shape, dtype=dtype, device="cpu")
    reserved = np.zeros(prod(like.shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(reserved).view(dtype).view(like.shape)


def _random(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return one random block, repeated: values of the right size, in the time of a copy."""
    if like.dim() < 2 or not dtype.is_floating_point:
        return torch.ones(like.shape, dtype=dtype, device="cpu")
    elements = prod(like.shape)
    block = torch.randn(min(_BLOCK, elements), device="cpu").mul_(_STD).to(dtype)
    return block.repeat(-(-elements // block.numel()))[:elements].view(like.shape)


def requested_dtype(options: dict[str, Any], config: Any) -> torch.dtype:
    """Return the data type that a call of `from_pretrained` asks for: its own, or that of the checkpoint."""
    for asked in (options.get("dtype"), options.get("torch_dtype"), getattr(config, "dtype", None)):
        if isinstance(asked, torch.dtype):
            return asked
        if isinstance(asked, str) and asked != "auto":
            return getattr(torch, asked.removeprefix("torch."))
    return torch.float32


def number_positions(model: Any) -> None:
    """Give buffers of positions and types the values that every model has there: they are indices.

    They are in no checkpoint. transformers writes them after loading, unless it takes a module for initialised, as it
    does where the script's default device is not the host: they would hold what was in memory before.
    """
    for name, buffer in model.named_buffers():
        kind = name.rpartition(".")[2]
        if buffer.device.type == "cpu" and buffer.dtype == torch.long and kind in _POSITIONS:
            buffer.zero_()
            if kind == "position_ids":
                buffer += torch.arange(buffer.shape[-1], device="cpu")


def adopt_name(model: Any, name: str) -> None:
    """Let a model have the name that it was asked for by; a local folder's settings of generation come with it."""
    model.config._name_or_path = name
    model.name_or_path = name
    if (Path(name) / "generation_config.json").is_file() and model.can_generate():
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(name)
