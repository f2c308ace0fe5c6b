"""Untyped keys of one point of a grid -> one normalised `TrialSpec`, or every fault in them.

Normalised means that two points that mean the same trial become equal specs:

- `attn_implementation` null is transformers' default: sdpa, and eager where transformers has no sdpa for the model;
- `steps_per_generation` null is trl's default, `gradient_accumulation_steps`;
- `lora_*` is None with full fine-tuning; else `lora_rank` null is 16, `lora_alpha` null is twice the rank, and
  `lora_target_modules` null is peft's word all-linear; names are in the order of the layer, each once;
- a hub id of a built-in model is that model's name, but for pretrained weights: there the checkpoint matters, and a
  built-in name is the hub id of its base model;
- `gpu` is None on the CPU; on a simulated backend null is h100-80gb; on a real GPU null is the whole card;
- `weights` is random on a simulated backend: memory does not depend on values, so none are read there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace

from profiler.config.identity import SPEC_KEYS
from profiler.config.model_lookup import canonical_model, checkpoint
from profiler.config.reading import FieldReader, show
from profiler.config.rules import broken_rules, in_layer_order, is_alloc_conf
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    TrialSpec,
    Tuning,
    Weights,
)

DEFAULT_SIMULATED_GPU = "h100-80gb"

DEFAULT_LORA_RANK = 16

MAX_SEED = 2**32 - 1
"""What NumPy takes, which transformers' `set_seed` seeds too."""

AUTO = "auto"
"""The word for `backend` that the entry point replaces before a point is read: what is visible is not known here."""

ArchitectureLookup = Callable[[str], Architecture]
"""The architecture of a model by built-in name, local path or hub id; raises `UsageError` where it cannot be had."""

DEFAULTS: Mapping[str, object] = {
    field.name: field.default for field in fields(TrialSpec) if field.default is not MISSING
} | {"attn_implementation": None, "gpu": None, "steps_per_generation": None}
"""What a key that is absent means. `backend` and `model` have no default."""


def parse_points(
    points: Iterable[Mapping[str, object]], *, architecture_of: ArchitectureLookup
) -> tuple[TrialSpec, ...]:
    """The specs of `points` in order, each once.

    Raises:
        UsageError: Something is wrong; carries every fault of every point, each once.
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
    """The normalised spec that `values` describe.

    Args:
        values: Flat keys as a user writes them; `backend` is resolved already, so never ``auto``.
        architecture_of: Where the model's architecture comes from.

    Raises:
        UsageError: Carries every fault found, not only the first.
    """
    reader = FieldReader({**DEFAULTS, **values})
    unknown = _unknown_keys(values)
    spec = _read(reader)
    architecture = None
    faults = [*unknown, *reader.faults]
    if reader.sound("model"):
        try:
            architecture = architecture_of(spec.model)
        except UsageError as error:
            faults.extend(error.faults)
    if architecture is not None and not architecture.has_sdpa and reader.value("attn_implementation") is None:
        spec = replace(spec, attn_implementation=Attention.EAGER)
    faults.extend(broken_rules(spec, architecture, sound=reader.sound))
    if faults:
        raise UsageError(faults)
    return spec


def attention_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Say that the model runs with eager attention because transformers has no sdpa for it; empty otherwise."""
    if architecture.has_sdpa or spec.attn_implementation is not Attention.EAGER:
        return ""
    return f"{spec.model}: attn_implementation=eager, because transformers has no sdpa for {architecture.model_type}."


def _unknown_keys(values: Mapping[str, object]) -> list[Fault]:
    return [unknown_key(key, values[key], SPEC_KEYS) for key in values if key not in SPEC_KEYS]


def unknown_key(key: str, value: object, known: Iterable[str]) -> Fault:
    """The fault of a key that does not exist."""
    names = list(known)
    return Fault(
        key=key,
        found=show(value),
        problem=f"is no key; the keys are {', '.join(names)}",
        hint=nearest(key, names),
    )


def _read(reader: FieldReader) -> TrialSpec:
    backend = reader.choice("backend", Backend, also=(AUTO,))
    tuning = reader.choice("tuning", Tuning)
    rank, alpha, targets = _read_lora(reader, tuning)
    accumulation = reader.count("gradient_accumulation_steps")
    weights = _read_weights(reader, backend)
    return TrialSpec(
        backend=backend,
        gpu=_read_gpu(reader, backend),
        model=_read_model(reader, weights),
        weights=weights,
        dataset=reader.optional_text("dataset", "a local path or a hub id"),
        tuning=tuning,
        lora_rank=rank,
        lora_alpha=alpha,
        lora_target_modules=targets,
        optim=reader.choice("optim", Optimizer),
        num_generations=reader.count("num_generations", minimum=2, why="GRPO compares the completions of one prompt"),
        max_prompt_length=reader.count("max_prompt_length"),
        max_completion_length=reader.count("max_completion_length"),
        lengths=reader.choice("lengths", Lengths),
        per_device_train_batch_size=reader.count("per_device_train_batch_size"),
        gradient_accumulation_steps=accumulation,
        steps_per_generation=reader.optional_count("steps_per_generation") or accumulation,
        gradient_checkpointing=reader.flag("gradient_checkpointing"),
        beta=reader.number("beta"),
        attn_implementation=reader.optional_choice("attn_implementation", Attention) or Attention.SDPA,
        dtype=reader.choice("dtype", Dtype),
        bf16=reader.flag("bf16"),
        logprobs=reader.choice("logprobs", Logprobs),
        rollout=reader.choice("rollout", Rollout),
        steps=reader.count("steps"),
        alloc_conf=_read_alloc_conf(reader),
        seed=reader.count("seed", minimum=0, maximum=MAX_SEED),
    )


def _read_gpu(reader: FieldReader, backend: Backend) -> str | None:
    value = reader.value("gpu")
    if value is not None and value not in KNOWN_GPUS:
        reader.one_of("gpu", tuple(KNOWN_GPUS))
    if backend is Backend.CPU:
        return None
    if value is None:
        return DEFAULT_SIMULATED_GPU if backend is Backend.SIMULATED else None
    return str(value)


def _read_model(reader: FieldReader, weights: Weights) -> str:
    model = reader.text("model", "a built-in name, a local path or a hub id")
    return checkpoint(model) if weights is Weights.PRETRAINED else canonical_model(model)


def _read_weights(reader: FieldReader, backend: Backend) -> Weights:
    weights = reader.choice("weights", Weights)
    return Weights.RANDOM if backend is Backend.SIMULATED else weights


def _read_lora(reader: FieldReader, tuning: Tuning) -> tuple[int | None, int | None, tuple[str, ...] | None]:
    """Rank, alpha and targets. Read in any case, so that a wrong value is not passed over in silence."""
    rank = reader.optional_count("lora_rank") or DEFAULT_LORA_RANK
    alpha = reader.optional_count("lora_alpha") or 2 * rank
    targets = _read_targets(reader)
    return (None, None, None) if tuning is Tuning.FULL else (rank, alpha, targets)


def _read_targets(reader: FieldReader) -> tuple[str, ...]:
    value = reader.value("lora_target_modules")
    if value is None:
        return (ALL_LINEAR,)
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) and name.strip() for name in names):
        return in_layer_order(names)
    reader.fail("lora_target_modules", f"must be {ALL_LINEAR} or a list of module names such as [q_proj,v_proj]")
    return (ALL_LINEAR,)


def _read_alloc_conf(reader: FieldReader) -> str:
    value = reader.value("alloc_conf")
    if value is None:
        return ""
    if isinstance(value, str) and is_alloc_conf(value):
        return "".join(value.split())
    reader.fail("alloc_conf", "must be empty or PYTORCH_ALLOC_CONF's key:value,key:value")
    return ""
