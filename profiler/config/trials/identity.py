"""The specification of a trial as JSON and back, its id, which is a hash of it, and its labels."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from profiler.config.options.reading import FieldReader
from profiler.config.trials.key_values import read_stored
from profiler.domain.runs.outcome import NAMING_PACKAGES, TrialRecord, Versions
from profiler.domain.trials.keys import Key
from profiler.domain.trials.labels import naming
from profiler.domain.trials.trial import SPEC_KEYS, TRIAL_KEYS, Backend, DistributedType, TrialSpec

JsonValue = str | int | float | bool | list[str] | None


def _to_json(value: object) -> JsonValue:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    if isinstance(value, str):
        # A StrEnum is a str as well; json needs the plain text.
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{value!r} has no form in JSON")


ADDED_KEYS: Mapping[str, JsonValue] = {key.name: _to_json(key.earlier) for key in TRIAL_KEYS if key.since}
"""Keys that were added after version 0.1.0, with the value that earlier trials have.

At that value, a key is not part of the trial id, so that no id changes. A record without the key is read with that
value.
"""

SIMULATION_RESULTS_VERSION = 2
"""Part of the id of simulated trials. Raise it with every change that changes a result of the simulation;
`tests/simulation/test_results_version.py` and `tests/test_readme.py` detect one. Simulated trials then run again."""

_PROFILER_VERSION = "0.1.0"
"""The version of this program in the ids of trials: a later version does not run again what is finished. What changes a
result of the simulation or of the emulation has a version of its own."""

_MODEL_OF_FSDP = "read by the host"
"""Part of the id of trials by FSDP: earlier ones made their model on each card, and run again."""

_ID_CHARACTERS = 16

_REPEATED = frozenset({str, int, bool, NoneType})
_READ: dict[tuple[str, type, object], Any] = {}
"""Stored values that were read, by key, type (`True` equals 1) and value."""
_MOST_READ = 20_000

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")
"""Keys of a `config.json` that describe its origin."""


def spec_to_mapping(spec: TrialSpec) -> dict[str, JsonValue]:
    """Return `spec` as a flat mapping of JSON values, which `spec_from_mapping` reads."""
    return {key: _to_json(getattr(spec, key)) for key in SPEC_KEYS}


def stable_mapping(spec: TrialSpec) -> dict[str, JsonValue]:
    """Return `spec_to_mapping` without added keys that have the value of earlier trials: new keys do not change it."""
    return {
        key: value for key, value in spec_to_mapping(spec).items() if key not in ADDED_KEYS or value != ADDED_KEYS[key]
    }


def spec_from_mapping(values: Mapping[str, object]) -> TrialSpec:
    """Return the specification that `spec_to_mapping` or `stable_mapping` wrote.

    Values are neither normalised nor checked against bounds and rules: that was done before they were written.

    Raises:
        ValueError: A key is missing or unknown, or a value is not of its kind.
    """
    values = {**{key: value for key, value in ADDED_KEYS.items() if key not in values}, **values}
    if set(values) != set(SPEC_KEYS):
        raise ValueError(f"not a trial's specification: keys differ by {sorted(set(values) ^ set(SPEC_KEYS))}")
    reader = FieldReader(values)
    spec = TrialSpec(**{key.name: _stored(reader, key, values[key.name]) for key in TRIAL_KEYS})
    if reader.faults:
        raise ValueError("; ".join(fault.sentence() for fault in reader.faults))
    return spec


def _stored(reader: FieldReader, key: Key, value: object) -> Any:  # noqa: ANN401  of any key
    """Return the value of a key, from those that were read before: 100,000 trials have few different ones."""
    place = key.name, type(value), value
    if type(value) not in _REPEATED:
        return read_stored(reader, key)
    if place not in _READ:
        faults = len(reader.faults)
        read = read_stored(reader, key)
        if len(reader.faults) > faults or len(_READ) >= _MOST_READ:
            return read
        _READ[place] = read
    return _READ[place]


def trial_id(
    spec: TrialSpec, versions: Versions, *, hardware: str = "", content: Mapping[str, str] | None = None
) -> str:
    """Return the id of a trial: 16 hexadecimal digits of a SHA-256 over everything that decides its result.

    This is the specification, the versions of the packages, the content of the files that the specification names, for
    a simulated trial `SIMULATION_RESULTS_VERSION`, for an emulated one the versions of CUDA and of the emulation, for
    one that runs DeepSpeed or vLLM their versions, and for one by FSDP where its model is made. A trial keeps its id
    under every version of this program.

    Args:
        spec: The trial.
        versions: The versions of the packages.
        hardware: The card and the driver of a measured trial; empty for other trials.
        content: Hashes of the files that `spec` names: ``model`` of a `config.json`, ``dataset`` of local data.
    """
    named = {name: getattr(versions, name) for name in NAMING_PACKAGES} | {"profiler": _PROFILER_VERSION}
    hashed: dict[str, object] = {"spec": stable_mapping(spec), "versions": named}
    if hardware:
        hashed["hardware"] = hardware
    if content:
        hashed["content"] = dict(content)
    if spec.backend is Backend.SIMULATED:
        hashed["simulation"] = SIMULATION_RESULTS_VERSION
    if spec.backend is Backend.EMULATED:
        hashed["emulation"] = {"cuda": versions.cuda, "version": versions.emulation}
    if spec.distributed_type is DistributedType.DEEPSPEED:
        hashed["deepspeed"] = versions.deepspeed
    if spec.distributed_type is DistributedType.FSDP:
        hashed["model"] = _MODEL_OF_FSDP
    if spec.use_vllm and spec.backend.reads_counters:
        hashed["vllm"] = versions.vllm
    return _digest(hashed)


def specification_hash(spec: TrialSpec) -> str:
    """Return a hash of what the user asked for. Unlike the trial id, it is the same on every machine."""
    return _digest(stable_mapping(spec))


def config_hash(config: Mapping[str, object]) -> str:
    """Return a hash of the model that a `config.json` describes, independent of order and spacing."""
    return _digest({key: value for key, value in config.items() if key not in _NOT_OF_THE_MODEL})


def _digest(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:_ID_CHARACTERS]


class _Keys(Mapping[str, object]):
    """The keys of a specification, without a copy of them: a sweep can have 100,000."""

    __slots__ = ("_spec",)

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    def __getitem__(self, key: str) -> object:
        return getattr(self._spec, key)

    def __iter__(self) -> Iterator[str]:
        return iter(SPEC_KEYS)

    def __len__(self) -> int:
        return len(SPEC_KEYS)


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """Return one label per specification: ``"LoRA + checkpointing"``, or ``"full, num_generations=8"``.

    Two specifications have the same label exactly if they are equal but for the model.
    """
    trials = [_Keys(spec) for spec in specs]
    found = naming(trials)
    return [found.label(trial) for trial in trials]


def relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return `records` with labels that tell all of them apart, also those of different sweeps."""
    written = labels([record.spec for record in records])
    return [replace(record, label=label) for record, label in zip(records, written, strict=True)]
