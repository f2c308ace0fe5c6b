"""Models and schedulers of diffusers, answered without a checkpoint as those of transformers are."""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.other_runs import ScriptWeights
from profiler.seams.patching import Patch
from profiler.substitutes.checkpoints.known_configs import known_part
from profiler.substitutes.options import Replaced, SubstituteOptions

_OF_THE_HUB = (
    "cache_dir", "force_download", "proxies", "token", "local_files_only", "revision", "mirror", "subfolder",
    "user_agent", "variant", "use_safetensors", "low_cpu_mem_usage", "device_map", "max_memory", "offload_folder",
    "offload_state_dict", "ignore_mismatched_sizes", "output_loading_info", "from_flax", "keep_in_fp32_modules",
    "disable_mmap", "use_flashpack", "parallel_config", "dduf_entries",
)  # fmt: skip
"""Arguments that say which files are read, and how."""


def diffusers_configuration_patches(module: ModuleType, options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patch of configurations, which models and schedulers load."""
    owner = module.ConfigMixin
    return [(owner, "load_config", classmethod(_configuration(owner.load_config.__func__, options, replaced)))]


def diffusers_model_patches(module: ModuleType, options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patch of models."""
    owner, unwritten = module.ModelMixin, module.no_init_weights
    load = owner.from_pretrained.__func__
    return [(owner, "from_pretrained", classmethod(_model(load, unwritten, options, replaced)))]


def _configuration(original: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def load_config(
        cls: Any,
        pretrained_model_name_or_path: Any,
        return_unused_kwargs: bool = False,
        return_commit_hash: bool = False,
        **kwargs: Any,
    ) -> Any:
        name = pretrained_model_name_or_path
        given = {"return_unused_kwargs": return_unused_kwargs, "return_commit_hash": return_commit_hash}
        try:
            return original(cls, name, **given, **kwargs)
        except OSError as error:
            found = _substituted(cls, str(name), str(kwargs.get("subfolder") or ""), options, replaced)
            if found is None:
                raise _unavailable(str(name)) from error
        unused = (_without_hub(kwargs),) if return_unused_kwargs else ()
        answer = (found, *unused, *((None,) if return_commit_hash else ()))
        return answer if len(answer) > 1 else found

    return load_config


def _substituted(
    cls: Any, name: str, folder: str, options: SubstituteOptions, replaced: Replaced
) -> dict[str, Any] | None:
    """Return a configuration that is known here, or the defaults of its class, which are named; else None."""
    known = known_part(name, folder)
    if known is not None:
        return known
    if options.weights is not ScriptWeights.RANDOM or Path(name).exists():
        return None
    of = f"{name}/{folder}" if folder else name
    replaced.add("configuration of", of, f"assumed: the defaults of {cls.__name__}")
    return {"_class_name": cls.__name__}


def _model(load: Any, unwritten: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        if options.weights is not ScriptWeights.RANDOM or name is None or kwargs.get("quantization_config") is not None:
            return load(cls, name, **kwargs)
        dtype = kwargs.pop("torch_dtype", kwargs.pop("dtype", None))
        config, unused = cls.load_config(name, return_unused_kwargs=True, **kwargs)
        model = _built(cls, config, _without_hub(unused), unwritten, with_values=options.with_values)
        if isinstance(dtype, torch.dtype):
            model = model.to(dtype)
        model.register_to_config(_name_or_path=str(name))
        folder = kwargs.get("subfolder")
        replaced.add("weights of", f"{name}/{folder}" if folder else str(name), "random, from its configuration")
        return model.eval()

    return from_pretrained


def _built(cls: Any, config: Any, unused: dict[str, Any], unwritten: Any, *, with_values: bool) -> Any:
    """Return a model; without values its weights are memory that the system only reserves."""
    if with_values:
        return cls.from_config(config, **unused)
    with unwritten():
        return cls.from_config(config, **unused)


def _without_hub(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in _OF_THE_HUB}


def _unavailable(name: str) -> UsageError:
    problem = "is not known, is no local folder with its configuration, and is unavailable from the hub"
    hint = "Name a local folder, or leave weights=random."
    return UsageError([Fault(key="model", found=name, problem=problem, hint=hint)])
