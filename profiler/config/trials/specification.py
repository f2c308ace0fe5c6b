"""Reading of the untyped keys of one point of a grid: a normalised `TrialSpec`, or every fault in them.

Two points that mean the same trial become equal specifications:

- `attn_implementation` null is transformers' default: sdpa, and eager where transformers has no sdpa for the model;
- `steps_per_generation` null is trl's default, `gradient_accumulation_steps`; `bf16` null is true unless `fp16` is;
- `beta` null is 0, and 0.1 with `recipe=dpo` or `kto`; `precompute_ref_batch_size` is None where nothing is computed
  before training, else null is `per_device_train_batch_size`;
- `bnb_4bit_use_double_quant` is true without qlora, which alone has scales. `lora_*` is None with full fine-tuning
  (`lora_dropout` 0).
  Otherwise `lora_rank` null is 16, `lora_alpha` null is twice the rank, and `lora_target_modules` null is peft's word
  all-linear; module names follow the order of the layer, each once;
- the hub id of a built-in model becomes the built-in name. For pretrained weights the checkpoint matters, so there a
  built-in name becomes the hub id of its base model;
- `gpu` is None on the CPU; null is h100-80gb on an emulated or simulated backend, and the whole card on a real GPU;
- `weights` is random on an emulated or simulated backend, because memory does not depend on values;
- `images_per_prompt`, `min_pixels` and `max_pixels` are None for a model without a vision tower; else null is what
  `profiler.config.models.context` says, and `max_prompt_length` includes the tokens of the images;
- `reward_models` is a list, with built-in names where there are some;
- `vllm_*` is None, or its default where it cannot be None, where vLLM does not run, and all but `vllm_mode` where it
  runs on other GPUs (``server``);
- `ppo_max_token_len_per_gpu` is None where micro-batches have a fixed number of rows;
- a key that the recipe does not have is None, or its default where it cannot be None.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from profiler.config.models.context import IMAGE_KEYS, recurrent_line, with_images
from profiler.config.models.lookup import canonical_model, checkpoint
from profiler.config.options.reading import FieldReader, show, unknown_key
from profiler.config.trials.key_values import (
    DEFAULTS,
    in_layer_order,
    other_recipe_faults,
    read_given,
    unknown_targets,
    without_other_recipes,
)
from profiler.config.trl_releases.facts import NEWEST, defaults_of
from profiler.constraints.constraint import Case
from profiler.constraints.table import faults_everywhere
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import name_card
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.keys import Key
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    SPEC_KEYS,
    TRIAL_KEYS,
    Attention,
    Backend,
    DistributedType,
    TrialSpec,
    Tuning,
    VllmMode,
    Weights,
)

DEFAULT_GPU = "h100-80gb"
"""The card of an emulated or simulated trial that names none."""

DEFAULT_LORA_RANK = 16

AUTO = "auto"
"""Value of `backend` that the entry point replaces before a point is read, because only it knows the visible GPUs."""

ArchitectureLookup = Callable[[str], Architecture]
"""Return the architecture of a model by built-in name, local path or hub id; raise `UsageError` where that fails."""


def parse_points(
    points: Iterable[Mapping[str, object]], *, architecture_of: ArchitectureLookup
) -> tuple[TrialSpec, ...]:
    """Return the specifications of `points` in order, each once.

    Raises:
        UsageError: A point is wrong; carries every fault of every point, each once.
    """
    specs: dict[TrialSpec, None] = {}
    faults: dict[Fault, None] = {}
    for point in points:
        try:
            specs[parse_point(point, architecture_of=architecture_of)] = None
        except UsageError as error:
            faults.update(dict.fromkeys(error.faults))
    if faults:
        raise UsageError(tuple(faults))
    return tuple(specs)


def parse_point(values: Mapping[str, object], *, architecture_of: ArchitectureLookup) -> TrialSpec:
    """Return the normalised specification that `values` describe.

    Args:
        values: Flat keys as a user writes them, except that `backend` is never ``auto``.
        architecture_of: The source of the model's architecture.

    Raises:
        UsageError: Carries every fault found, not only the first.
    """
    reader = FieldReader({**DEFAULTS, **values})
    unknown = _unknown_keys(values)
    spec = _read(reader)
    architecture = None
    faults = [*unknown, *reader.faults]
    if reader.sound("recipe"):
        faults.extend(other_recipe_faults(values, spec.recipe))
    faults.extend(_sleeping_server(values, spec))
    if reader.sound("model"):
        try:
            architecture = architecture_of(spec.model)
        except UsageError as error:
            faults.extend(error.faults)
    if architecture is not None and not architecture.has_sdpa and reader.value("attn_implementation") is None:
        spec = replace(spec, attn_implementation=Attention.EAGER)
    if architecture is not None and reader.sound(*IMAGE_KEYS, "max_prompt_length"):
        spec, of_images = with_images(spec, architecture, values)
        faults.extend(of_images)
    faults.extend(faults_everywhere(Case(spec=spec, architecture=architecture), sound=reader.sound))
    if reader.sound("recipe", "model", "tuning", "lora_target_modules"):
        faults.extend(unknown_targets(spec, architecture))
    if faults:
        raise UsageError(faults)
    return spec


def _sleeping_server(values: Mapping[str, object], spec: TrialSpec) -> Iterator[Fault]:
    """Check that only an engine in the process that trains is to sleep: for other engines the key has no meaning."""
    if values.get("vllm_enable_sleep_mode") is True and spec.vllm_mode is VllmMode.SERVER:
        yield Fault(
            key="vllm_enable_sleep_mode",
            found="true",
            problem="needs vllm_mode=colocate, because an engine on other GPUs leaves nothing to free",
            hint="Use vllm_mode=colocate, or leave vllm_enable_sleep_mode out.",
        )


def attention_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return a note that the model runs with eager attention because transformers has no sdpa for it, or nothing."""
    if architecture.has_sdpa or spec.attn_implementation is not Attention.EAGER:
        return ""
    return f"{spec.model}: attn_implementation=eager, because transformers has no sdpa for {architecture.model_type}."


def kernels_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return a note on layers that run in PyTorch without a GPU and by kernels of other packages on one, or nothing."""
    return "" if spec.backend is Backend.CUDA else recurrent_line(spec, architecture)


def _unknown_keys(values: Mapping[str, object]) -> list[Fault]:
    return [unknown_key(key, values[key], SPEC_KEYS) for key in values if key not in SPEC_KEYS]


def _read(reader: FieldReader) -> TrialSpec:
    given = {key.name: _READERS.get(key.name, read_given)(reader, key) for key in TRIAL_KEYS}
    if reader.value("distributed_type") is None:
        read = (key for key in TRIAL_KEYS if reader.value(key.name) is not None and reader.sound(key.name))
        given["distributed_type"] = _sharded_by(each.name for each in read if given[each.name] != each.without_meaning)
    values = given | _resolved(given)
    for key in TRIAL_KEYS:
        if values[key.name] is None and not key.null:
            values[key.name] = key.default
    return TrialSpec(**without_other_recipes(values, given["recipe"]))


def _resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys whose value depends on other keys."""
    backend = given["backend"]
    weights = Weights.RANDOM if backend.names_its_card else given["weights"]
    model_name = checkpoint if weights is Weights.PRETRAINED else canonical_model
    return {
        "gpu": _gpu(given["gpu"], backend),
        "weights": weights,
        "model": model_name(given["model"]),
        "steps_per_generation": given["steps_per_generation"] or given["gradient_accumulation_steps"],
        "bf16": not given["fp16"] if given["bf16"] is None else given["bf16"],
        **_reference(given),
        **_lora(given),
        **_engine(given),
        **_distributed(given),
        **({} if given["use_dynamic_bsz"] else {"ppo_max_token_len_per_gpu": None}),
    }


def _gpu(gpu: str | None, backend: Backend) -> str | None:
    if backend is Backend.CPU:
        return None
    return DEFAULT_GPU if gpu is None and backend.names_its_card else gpu


def _reference(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reference weighs, and the pairs that it computes before training."""
    recipe = given["recipe"]
    is_of_data = recipe.facts.has_reference_pass and not recipe.facts.has_rollout
    default = defaults_of(recipe, NEWEST)["beta"] if is_of_data else 0.0
    rows = given["precompute_ref_batch_size"] or given["per_device_train_batch_size"]
    beta = default if given["beta"] is None else given["beta"]
    return {
        "beta": beta,
        "ref_adapter": given["ref_adapter"] and beta != 0.0 and given["tuning"] is not Tuning.FULL,
        "precompute_ref_batch_size": rows if given["precompute_ref_log_probs"] else None,
    }


def _lora(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["tuning"] is Tuning.FULL:
        return {
            "lora_rank": None,
            "lora_alpha": None,
            "lora_target_modules": None,
            "lora_dropout": 0.0,
            "bnb_4bit_use_double_quant": True,
        }
    rank = given["lora_rank"] or DEFAULT_LORA_RANK
    return {
        "bnb_4bit_use_double_quant": given["bnb_4bit_use_double_quant"] or given["tuning"] is not Tuning.QLORA,
        "lora_rank": rank,
        "lora_alpha": given["lora_alpha"] or 2 * rank,
        "lora_target_modules": given["lora_target_modules"] or (ALL_LINEAR,),
    }


def _engine(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of vLLM, which have no meaning where it does not run, or not on the GPU that trains."""
    if given["use_vllm"] and given["vllm_mode"] is not VllmMode.SERVER:
        return {}
    return {**_WITHOUT_VLLM, "vllm_mode": given["vllm_mode"]} if given["use_vllm"] else _WITHOUT_VLLM


_WITHOUT_VLLM: dict[str, Any] = {key.name: key.without_meaning for key in TRIAL_KEYS if key.name.startswith("vllm_")}


def _read_gpu(reader: FieldReader, key: Key) -> str | None:
    """Return our name of the card that the user names in any way."""
    value = reader.value(key.name)
    if value is None:
        return None
    card = name_card(show(value)) if isinstance(value, str | int) and not isinstance(value, bool) else name_card("")
    if not card.name:
        reader.fail(key.name, card.problem, card.hint)
        return None
    return card.name


_KEYS_OF: Mapping[DistributedType, tuple[str, ...]] = {
    DistributedType.FSDP: ("fsdp_", "cp_"),
    DistributedType.DEEPSPEED: ("zero_", "offload_"),
}
"""How the keys begin that have a meaning with one `distributed_type` only, and imply it where none is stated."""


def _sharded_by(stated: Iterable[str]) -> DistributedType | None:
    """Return what stated keys have a meaning with: FSDP or DeepSpeed; None if they say nothing about it."""
    return next((kind for key in stated for kind, own in _KEYS_OF.items() if key.startswith(own)), None)


def _distributed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return how several GPUs train together; keys of FSDP and of DeepSpeed have no meaning without it."""
    kind = given["distributed_type"]
    if kind is None:
        kind = DistributedType.MULTI_GPU if (given["num_processes"] or 1) > 1 else DistributedType.NO
    return {"distributed_type": kind, **_keys_of_others(kind)}


@cache
def _keys_of_others(kind: DistributedType) -> Mapping[str, None]:
    prefixes = tuple(prefix for owner, own in _KEYS_OF.items() if owner is not kind for prefix in own)
    return {key.name: None for key in TRIAL_KEYS if key.name.startswith(prefixes)}


def _read_distributed(reader: FieldReader, key: Key) -> DistributedType | None:
    value = reader.value(key.name)
    if value == "ddp":
        return DistributedType.MULTI_GPU
    # YAML reads a bare `no` as false.
    return DistributedType.NO if value is False else read_given(reader, key)


def _read_backend(reader: FieldReader, key: Key) -> Backend:
    return reader.choice(key.name, Backend, also=(AUTO,))


_MODULES = re.compile(r"[ ]*[\w.-]+[ ]*(,[ ]*[\w.-]+[ ]*)*")
"""Names of modules in one text, joined by commas."""


def _read_targets(reader: FieldReader, key: Key) -> tuple[str, ...] | None:
    value = reader.value(key.name)
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    problem = f"must be {ALL_LINEAR} or a list of module names such as [q_proj,v_proj]"
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) and name.strip() for name in names):
        if len(names) == 1 and _MODULES.fullmatch(names[0]):
            return in_layer_order(names[0].split(","))
        if len(names) > 1:
            return in_layer_order(names)
        problem += (
            "; peft takes another text as a regular expression for whole paths of modules, which is not read here"
        )
    reader.fail(key.name, problem)
    return None


def _read_reward_models(reader: FieldReader, key: Key) -> tuple[str, ...] | None:
    """Return the models that score completions; a built-in one has its built-in name."""
    value = reader.value(key.name)
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) and name.strip() for name in names):
        return tuple(canonical_model(name) for name in names)
    reader.fail(key.name, "must be a model or a list of models")
    return None


_ALLOC_CONF = re.compile(r"[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+)(,[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+))*")


def _read_alloc_conf(reader: FieldReader, key: Key) -> str | None:
    value = reader.value(key.name)
    if value is None:
        return None
    if isinstance(value, str) and _is_alloc_conf(value):
        return "".join(value.split())
    reader.fail(key.name, "must be empty or PYTORCH_ALLOC_CONF's key:value,key:value")
    return None


def _is_alloc_conf(text: str) -> bool:
    """Return whether `text` has the form of PYTORCH_ALLOC_CONF; torch checks its keys and values."""
    compact = "".join(text.split())
    return not compact or _ALLOC_CONF.fullmatch(compact) is not None


_READERS: Mapping[str, Callable[[FieldReader, Key], Any]] = {
    "backend": _read_backend,
    "gpu": _read_gpu,
    "distributed_type": _read_distributed,
    "lora_target_modules": _read_targets,
    "reward_models": _read_reward_models,
    "alloc_conf": _read_alloc_conf,
}
"""Keys whose values have a grammar of their own."""
