"""A trial's specification as JSON and back, and the name that follows from its content."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import fields

from profiler.config.reading import FieldReader
from profiler.domain.optimizers import Optimizer
from profiler.domain.outcome import Versions
from profiler.domain.trial import (
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

JsonValue = str | int | float | bool | list[str] | None

SPEC_KEYS = tuple(field.name for field in fields(TrialSpec))
"""Every key of a trial, in the order of its specification."""

ADDED_KEYS: Mapping[str, JsonValue] = {}
"""Keys that trials have had only since some later version, with the value that trials from before have.

A key that is added to `TrialSpec` belongs in here for good, with the value that changes nothing. At that value it is no
part of a trial's name, so that every name stays as it was, and records without the key are read with it.
"""

SIMULATION_RESULTS_VERSION = 1
"""Part of the name of simulated trials. Raise it with every change after which a simulated trial finds something else:
`tests/simulation/test_results_version.py` and `tests/test_readme.py` show it. Simulated trials are then run again."""

_NAMED_VERSIONS = ("torch", "trl", "transformers", "peft", "bitsandbytes", "profiler")
"""Packages whose versions are part of a name. One that is added here would rename every trial there is."""

_MEASURED_PROFILER_VERSION = "0.1.0"
"""Stands for the version of this program in the names of measured trials: what a card did, it did, and no later version
of the program asks for it again."""

_ID_CHARACTERS = 16

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")
"""Keys of a `config.json` that say where it came from."""


def spec_to_mapping(spec: TrialSpec) -> dict[str, JsonValue]:
    """`spec` as a flat mapping of JSON values; what `spec_from_mapping` reads."""
    return {key: _to_json(getattr(spec, key)) for key in SPEC_KEYS}


def _to_json(value: object) -> JsonValue:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    if isinstance(value, str):
        # A StrEnum is a str: this leaves the plain text.
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{value!r} has no form in JSON")


def spec_from_mapping(values: Mapping[str, object]) -> TrialSpec:
    """The specification that `spec_to_mapping` wrote.

    Nothing is normalised and neither bounds nor rules between keys are checked: what was written was all that.

    Raises:
        ValueError: A key is missing or unknown, or a value is not of its kind.
    """
    values = {**{key: value for key, value in ADDED_KEYS.items() if key not in values}, **values}
    if set(values) != set(SPEC_KEYS):
        raise ValueError(f"not a trial's specification: keys differ by {sorted(set(values) ^ set(SPEC_KEYS))}")
    reader = FieldReader(values)
    spec = TrialSpec(
        backend=reader.choice("backend", Backend),
        gpu=reader.optional_text("gpu", "a card"),
        model=reader.text("model", "a model"),
        weights=reader.choice("weights", Weights),
        dataset=reader.optional_text("dataset", "a path or a hub id"),
        tuning=reader.choice("tuning", Tuning),
        lora_rank=reader.optional_count("lora_rank", maximum=None),
        lora_alpha=reader.optional_count("lora_alpha", maximum=None),
        lora_target_modules=_names(reader, "lora_target_modules"),
        optim=reader.choice("optim", Optimizer),
        num_generations=reader.count("num_generations", maximum=None),
        max_prompt_length=reader.count("max_prompt_length", maximum=None),
        max_completion_length=reader.count("max_completion_length", maximum=None),
        lengths=reader.choice("lengths", Lengths),
        per_device_train_batch_size=reader.count("per_device_train_batch_size", maximum=None),
        gradient_accumulation_steps=reader.count("gradient_accumulation_steps", maximum=None),
        steps_per_generation=reader.count("steps_per_generation", maximum=None),
        gradient_checkpointing=reader.flag("gradient_checkpointing"),
        beta=reader.number("beta", maximum=sys.float_info.max),
        attn_implementation=reader.choice("attn_implementation", Attention),
        dtype=reader.choice("dtype", Dtype),
        bf16=reader.flag("bf16"),
        logprobs=reader.choice("logprobs", Logprobs),
        rollout=reader.choice("rollout", Rollout),
        steps=reader.count("steps", maximum=None),
        alloc_conf=str(reader.value("alloc_conf")),
        seed=reader.count("seed", minimum=0, maximum=None),
    )
    if reader.faults:
        raise ValueError("; ".join(fault.sentence() for fault in reader.faults))
    return spec


def _names(reader: FieldReader, key: str) -> tuple[str, ...] | None:
    value = reader.value(key)
    if value is None:
        return None
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    reader.fail(key, "must be a list of names")
    return None


def trial_id(
    spec: TrialSpec, versions: Versions, *, hardware: str = "", content: Mapping[str, str] | None = None
) -> str:
    """The name of a trial: 16 hexadecimal digits of a SHA-256 over what decides what it finds.

    These are the specification, the versions of the packages, what the files are that it names, and of a simulated
    trial the version of the simulation's results. A measured trial keeps its name under every version of this program.

    Args:
        spec: The trial.
        versions: The versions that it runs with.
        hardware: The card and the driver that it is measured on; empty if it is not measured.
        content: Hashes of the files that `spec` names: ``model`` of a `config.json`, ``dataset`` of local data.
    """
    keys = {key: value for key, value in spec_to_mapping(spec).items() if not _is_as_before(key, value)}
    named = {name: getattr(versions, name) for name in _NAMED_VERSIONS}
    if spec.backend is Backend.CUDA:
        named["profiler"] = _MEASURED_PROFILER_VERSION
    hashed: dict[str, object] = {"spec": keys, "versions": named}
    if hardware:
        hashed["hardware"] = hardware
    if content:
        hashed["content"] = dict(content)
    if spec.backend is Backend.SIMULATED:
        hashed["simulation"] = SIMULATION_RESULTS_VERSION
    return _digest(hashed)


def _is_as_before(key: str, value: JsonValue) -> bool:
    return key in ADDED_KEYS and value == ADDED_KEYS[key]


def config_hash(config: Mapping[str, object]) -> str:
    """A hash of what a `config.json` says of its model, whatever the order and spacing."""
    return _digest({key: value for key, value in config.items() if key not in _NOT_OF_THE_MODEL})


def _digest(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:_ID_CHARACTERS]
