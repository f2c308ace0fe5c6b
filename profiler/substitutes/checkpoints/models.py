"""`from_pretrained` of configurations and models, answered without a checkpoint."""

from pathlib import Path
from typing import Any

from transformers import configuration_utils

from profiler.config.models.lookup import suggested_model
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.other_runs import ScriptWeights
from profiler.seams.patching import Patch
from profiler.substitutes.checkpoints.known_configs import assumed_config, builtin_config, known_config, known_part
from profiler.substitutes.checkpoints.weights import adopt_name, empty_checkpoint, number_positions, requested_dtype
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
