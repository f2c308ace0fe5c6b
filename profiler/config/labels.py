"""The labels of trials in tables, computed from their specifications."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from profiler.domain.label import Label
from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import SPEC_KEYS, TrialSpec, Tuning

_TUNING_WORDS = {Tuning.FULL: "full", Tuning.LORA: "LoRA", Tuning.QLORA: "QLoRA"}


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """Return the text of one label per specification, in order: ``"full, num_generations=8"``."""
    return [label.text for label in label_parts(specs)]


def label_parts(specs: Sequence[TrialSpec]) -> list[Label]:
    """Return one label per specification, in order.

    The method comes first: tuning, ``8-bit`` for `adamw_8bit`, ``checkpointing``. Then follows each key, apart from the
    model, that still differs between specifications of the same label. Two specifications have the same label exactly
    if they are equal apart from the model.
    """
    names_8bit = _follows(specs, [_method(spec, names_8bit=True) for spec in specs], "optim")
    found = [Label(method=_method(spec, names_8bit=names_8bit), keys={}) for spec in specs]
    for key in SPEC_KEYS:
        if key != "model" and not _follows(specs, [label.text for label in found], key):
            found = [_with_key(label, spec, key) for label, spec in zip(found, specs, strict=True)]
    return found


def relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return records with labels that tell all of them apart, as trials of several sweeps need."""
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
    """Return whether the value of `key` follows from the labels as written so far."""
    values: defaultdict[str, set[object]] = defaultdict(set)
    for spec, label in zip(specs, written, strict=True):
        values[label].add(getattr(spec, key))
    return all(len(found) == 1 for found in values.values())


def _with_key(label: Label, spec: TrialSpec, key: str) -> Label:
    value = getattr(spec, key)
    if value is None and key.startswith("lora_"):
        # The method already says that there is no adapter.
        return label
    return replace(label, keys={**label.keys, key: value})
