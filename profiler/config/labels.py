"""The method's name in tables, computed from the specification: a row says what it is, and no two say the same."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from profiler.config.identity import SPEC_KEYS
from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import TrialSpec, Tuning

_TUNING_WORDS = {Tuning.FULL: "full", Tuning.LORA: "LoRA", Tuning.QLORA: "QLoRA"}

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./:\-]+")


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """One label a spec, in order: ``"LoRA + checkpointing"``, or ``"full, num_generations=8"``.

    The method comes first: tuning, ``8-bit`` for `adamw_8bit`, ``checkpointing``. A `key=value` follows for each key
    that still differs between specs of the same label, the model apart. Two specs have the same label exactly when
    they are equal but for the model.
    """
    names_8bit = _follows(specs, [_method(spec, names_8bit=True) for spec in specs], "optim")
    written = [_method(spec, names_8bit=names_8bit) for spec in specs]
    for key in SPEC_KEYS:
        if key == "model" or _follows(specs, written, key):
            continue
        written = [label + _suffix(spec, key) for label, spec in zip(written, specs, strict=True)]
    return written


def relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Records labelled among each other: those of several sweeps differ in keys that no single sweep varied."""
    written = labels([record.spec for record in records])
    return [replace(record, label=label) for record, label in zip(records, written, strict=True)]


def _method(spec: TrialSpec, *, names_8bit: bool) -> str:
    words = [_TUNING_WORDS[spec.tuning]]
    if names_8bit and spec.optim.traits.label:
        words.append(spec.optim.traits.label)
    if spec.gradient_checkpointing:
        words.append("checkpointing")
    return " + ".join(words)


def _follows(specs: Sequence[TrialSpec], written: Sequence[str], key: str) -> bool:
    """Whether the value of `key` follows from the labels as written so far."""
    values: defaultdict[str, set[object]] = defaultdict(set)
    for spec, label in zip(specs, written, strict=True):
        values[label].add(getattr(spec, key))
    return all(len(found) == 1 for found in values.values())


def _suffix(spec: TrialSpec, key: str) -> str:
    value = getattr(spec, key)
    if value is None and key.startswith("lora_"):
        # Without an adapter the key has no meaning, and the method already says that there is none.
        return ""
    return f", {key}={_value_text(value)}"


def _value_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(_value_text(item) for item in value)
    if not isinstance(value, str):
        return repr(value)
    # Quoted where it could be read as something else, so that different values stay different texts.
    return str(value) if _PLAIN_TEXT.fullmatch(value) and value != "none" else repr(str(value))
