"""Labels of trials, computed from their keys: ``"LoRA + checkpointing, num_generations=8, 4 GPUs, ZeRO-3"``."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import SPEC_KEYS, DistributedType, Tuning

Trial = Mapping[str, object]
"""The value of every key of one trial."""

_TUNING_WORDS = {Tuning.FULL: "full", Tuning.LORA: "LoRA", Tuning.QLORA: "QLoRA"}

CONSTRUCTED = "constructed"
"""The tag of trials that do what trl's trainer cannot: the harness adds it to that trainer."""

_CONSTRUCTED = {"critic": "critic", "use_dynamic_bsz": "dynamic batches"}
"""The word in a label for each key of which trials are constructed."""

_OF_A_METHOD = ("lora_", "fsdp_", "zero_", "offload_", "ppo_")
"""How keys begin that have a meaning with one value of `tuning`, `distributed_type` or `use_dynamic_bsz` only."""

_SHARDINGS = {
    DistributedType.NO: "",
    DistributedType.MULTI_GPU: "DDP",
    DistributedType.FSDP: "FSDP",
    DistributedType.DEEPSPEED: "ZeRO-{stage}",
}
"""The word for each value of `distributed_type`."""

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./:\-]+")


@dataclass(frozen=True, kw_only=True)
class Naming:
    """What labels have to say so that they tell the trials of one set apart."""

    names_optimizer: bool
    """Whether the method has the word of the optimizer: ``8-bit`` for `adamw_8bit`."""
    keys: tuple[str, ...]
    """The keys that labels name, in that order."""

    def method(self, trial: Trial) -> str:
        """Return the method of a trial without keys: ``"full + 8-bit + checkpointing"``."""
        words = [_TUNING_WORDS[Tuning(str(trial["tuning"]))]]
        if self.names_optimizer and (word := _optimizer_word(trial)):
            words.append(word)
        if trial["gradient_checkpointing"]:
            words.append("checkpointing")
        words.extend(constructed_words(trial).values())
        return " + ".join(words)

    def keys_of(self, trial: Trial) -> tuple[str, ...]:
        """Return the keys that the label of a trial names."""
        # Without an adapter or shards their keys have no meaning, and the label already says that there are none.
        return tuple(key for key in self.keys if trial[key] is not None or not key.startswith(_OF_A_METHOD))

    def label(self, trial: Trial, *, without: Collection[str] = ()) -> str:
        """Return the label of a trial, with the keys in `without` left out."""
        named = key_words(trial, self.keys_of(trial), without=without)
        return ", ".join([self.method(trial), *named])


def naming(trials: Sequence[Trial], *, first: Collection[str] = ()) -> Naming:
    """Return the naming whose labels are equal only for trials that differ in nothing but the model.

    The method comes first: tuning, the optimizer's word such as ``8-bit``, ``checkpointing``. A key is named if its
    value still differs between trials of the same label.

    Args:
        trials: The trials to tell apart.
        first: Keys to consider before the others. Of keys that vary together only the first is named.
    """
    groups = [tuple(trial[key] for key in ("tuning", "gradient_checkpointing", *_CONSTRUCTED)) for trial in trials]
    with_word = [(*group, _optimizer_word(trial)) for group, trial in zip(groups, trials, strict=True)]
    names_optimizer = _follows(trials, with_word, "optim")
    groups_so_far: list[tuple[object, ...]] = list(with_word if names_optimizer else groups)
    keys = []
    for key in (*first, *(key for key in SPEC_KEYS if key not in first)):
        if key != "model" and not _follows(trials, groups_so_far, key):
            keys.append(key)
            groups_so_far = [(*group, trial[key]) for group, trial in zip(groups_so_far, trials, strict=True)]
    return Naming(names_optimizer=names_optimizer, keys=tuple(keys))


def is_constructed(trial: Trial) -> bool:
    """Return whether a trial does what trl's trainer cannot."""
    return bool(constructed_words(trial))


def constructed_words(trial: Trial) -> dict[str, str]:
    """Return what of a trial is constructed, by key: ``"critic (constructed)"``. A key that is not stated is off."""
    return {key: f"{word} ({CONSTRUCTED})" for key, word in _CONSTRUCTED.items() if trial.get(key)}


def key_words(trial: Trial, keys: Sequence[str], *, without: Collection[str] = ()) -> list[str]:
    """Return the values of keys in words: ``["num_generations=8", "4 GPUs", "ZeRO-3"]``.

    Args:
        trial: The value of every key.
        keys: The keys to name.
        without: Keys that are not named.
    """
    named = [key for key in keys if key not in without]
    words = []
    for key in named:
        if key == "num_processes":
            words.append("1 GPU" if trial[key] == 1 else f"{trial[key]} GPUs")
        elif key == "distributed_type":
            is_said = "num_processes" in named
            words.append(sharding_word(trial, without=without) or ("" if is_said else "1 GPU"))
        elif key == "zero_stage":
            # With the kind of sharding, its word already has the stage.
            words.append("" if "distributed_type" in named else f"ZeRO-{trial[key]}")
        else:
            words.append(f"{key}={value_text(trial[key])}")
    return [word for word in words if word]


def sharding_word(trial: Trial, *, without: Collection[str] = ()) -> str:
    """Return how several GPUs train together, ``"ZeRO-3"``; empty for one GPU, and if `without` has the key of it."""
    if "distributed_type" in without:
        return ""
    word = _SHARDINGS[DistributedType(str(trial["distributed_type"]))].format(stage=trial["zero_stage"])
    return word.partition("-")[0] if "zero_stage" in without else word


def value_text(value: object) -> str:
    """Return a value as labels show it; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(value_text(item) for item in value)
    if not isinstance(value, str):
        return repr(value)
    # In quotes where it could be read as something else.
    return str(value) if _PLAIN_TEXT.fullmatch(value) and value != "none" else repr(str(value))


def _optimizer_word(trial: Trial) -> str:
    return Optimizer(str(trial["optim"])).traits.label


def _follows(trials: Sequence[Trial], groups: Sequence[tuple[object, ...]], key: str) -> bool:
    """Whether all trials of one group have the same value of `key`."""
    if len({trial[key] for trial in trials}) <= 1:
        return True
    values: defaultdict[tuple[object, ...], set[object]] = defaultdict(set)
    for trial, group in zip(trials, groups, strict=True):
        values[group].add(trial[key])
    return all(len(found) == 1 for found in values.values())


def names_of(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return different names for folders: their own, or the shortest ends of their paths that differ."""
    parts = [folder.parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("/".join(part[-length:]) for part in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{folder.name} ({place})" for place, folder in enumerate(folders, start=1))
