"""A trial's specification as JSON and back, and the name that follows from its content."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields

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

_ID_CHARACTERS = 16


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

    Nothing is normalised and no rule between keys is checked: what was written was both.

    Raises:
        ValueError: A key is missing or unknown, or a value is not of its kind.
    """
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
        lora_rank=reader.optional_count("lora_rank"),
        lora_alpha=reader.optional_count("lora_alpha"),
        lora_target_modules=_names(reader, "lora_target_modules"),
        optim=reader.choice("optim", Optimizer),
        num_generations=reader.count("num_generations"),
        max_prompt_length=reader.count("max_prompt_length"),
        max_completion_length=reader.count("max_completion_length"),
        lengths=reader.choice("lengths", Lengths),
        per_device_train_batch_size=reader.count("per_device_train_batch_size"),
        gradient_accumulation_steps=reader.count("gradient_accumulation_steps"),
        steps_per_generation=reader.count("steps_per_generation"),
        gradient_checkpointing=reader.flag("gradient_checkpointing"),
        beta=reader.number("beta"),
        attn_implementation=reader.choice("attn_implementation", Attention),
        dtype=reader.choice("dtype", Dtype),
        bf16=reader.flag("bf16"),
        logprobs=reader.choice("logprobs", Logprobs),
        rollout=reader.choice("rollout", Rollout),
        steps=reader.count("steps"),
        alloc_conf=str(reader.value("alloc_conf")),
        seed=reader.count("seed", minimum=0),
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


def trial_id(spec: TrialSpec, versions: Versions, *, hardware: str = "") -> str:
    """The name of a trial: 16 hexadecimal digits of a SHA-256 over what it is and the versions that decide its memory.

    The same specification under other versions is another trial. The model counts by name: the content of a local
    `config.json` is not part of it. `hardware` is the card and the driver that a trial is measured on; empty otherwise.
    """
    content: dict[str, object] = {"spec": spec_to_mapping(spec), "versions": asdict(versions)}
    if hardware:
        content["hardware"] = hardware
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:_ID_CHARACTERS]
