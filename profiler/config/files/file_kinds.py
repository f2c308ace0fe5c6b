"""Which program a file with keys and values is for, and what is assumed where it leaves a key out."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from profiler.config.files.arguments import environment_notes, launch_part
from profiler.config.files.companion_files import (
    ACCELERATE_KEYS,
    accelerate_part,
    adapter_part,
    deepspeed_part,
    with_inner_deepspeed,
)
from profiler.config.files.own_sections import own_part
from profiler.config.files.vocabulary import leaves_of, mostly_unknown, renamed_keys, unknown_leaves
from profiler.config.notes import SIZES, Note
from profiler.config.options.reading import show
from profiler.config.trials.specification import DEFAULT_LORA_RANK
from profiler.config.trl.argument_keys import KEY_OF, NEUTRAL_VALUES, is_trl_key
from profiler.config.trl.argument_values import OTHERS, recipe_of
from profiler.config.trl.config import EVALUATED_ROWS, PEFT_TARGETS, TRL_DEFAULTS
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named

_ACCELERATE = frozenset({"compute_environment", "distributed_type", "main_training_function", "machine_rank"})
_DEEPSPEED = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"})
_MODEL = ("model_type", "architectures")
_OF_TRL = "model_name_or_path"
"""The key that recipes of trl have and files next to them do not."""


def part_of(name: str, values: Mapping[str, object]) -> JobFile:
    """Return what the file `name` says: of accelerate, DeepSpeed or peft, and else of trl."""
    return companion_part(name, values) or trl_part(name, with_references(values))


_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.-]*)\}")
"""A value of another key of the same file, as OmegaConf reads it: ``${training.seed}``."""


def with_references(values: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with the values that they take from other keys of the file."""
    leaves = dict(leaves_of(values))

    def taken(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: taken(each) for key, each in value.items()}
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return value if found is None else leaves.get(found[1], value)

    return {key: taken(value) for key, value in values.items()}


_PEFT = frozenset({"peft_type", "base_model_name_or_path"})
"""Keys of `adapter_config.json`."""

_TRAINING = frozenset({"per_device_train_batch_size", "learning_rate", "output_dir", "num_train_epochs", "max_steps"})
"""Keys of a recipe that names no model, which may say `peft_type` as well."""


def companion_part(name: str, values: Mapping[str, object]) -> JobFile | None:
    """Return what a file of accelerate, DeepSpeed, peft or a model says; None for another file."""
    is_recipe = _OF_TRL in values
    if not is_recipe and (_ACCELERATE & values.keys() or _only_accelerate(values)):
        return _checked(accelerate_part(name, values), values, "accelerate")
    if not is_recipe and _PEFT & values.keys() and not _TRAINING & values.keys():
        return adapter_part(name, values)
    if not is_recipe and _DEEPSPEED & values.keys():
        return _checked(deepspeed_part(name, values), values, "DeepSpeed")
    if all(key in values for key in _MODEL):
        problem = "is the config.json of a model"
        return JobFile(name=name, faults=(Fault(key="config", found=name, problem=problem, hint="Give it as model=."),))
    return None


def _only_accelerate(values: Mapping[str, object]) -> bool:
    return "num_processes" in values and values.keys() <= ACCELERATE_KEYS


def _checked(part: JobFile, values: Mapping[str, object], program: str) -> JobFile:
    """Return `part` with a fault if most keys of its file are unknown in files of `program`."""
    unknown = unknown_leaves(values, lambda key: key not in part.unknown)
    fault = mostly_unknown(part.name, unknown, known=len(values) - len(part.unknown), program=program)
    return replace(part, faults=(*part.faults, fault)) if fault is not None else part


EXTENDS = ("extends", "_base_", "base_config", "inherits", "inherit_from", "parent_config")
"""Keys by which files of users name others, over whose keys their own count."""


def extended_files(value: object) -> list[str]:
    """Return the files that a value of such a key names; none for a value of another kind."""
    names = value if isinstance(value, list) else [value]
    files = [each for each in names if isinstance(each, str) and each.endswith((".yaml", ".yml", ".json"))]
    return files if len(files) == len(names) else []


def _lacking(name: str, values: Mapping[str, object]) -> Iterator[Fault]:
    """Return a fault per file that is extended and was not read."""
    for key in EXTENDS:
        for file in extended_files(values.get(key)):
            problem = f"is what {name} extends ({key}), and there is no such file here"
            yield Fault(key="config", found=file, problem=problem, hint="Give it as well, as config=FILE.")


def _is_of_trl(key: str) -> bool:
    return is_trl_key(key) or any(key in other.keys for other in OTHERS)


def trl_part(name: str, values: Mapping[str, object]) -> JobFile:
    """Return what a file of trl says; DeepSpeed's configuration may be inside, and keys of `accelerate launch`."""
    if lacking := tuple(_lacking(name, values)):
        return JobFile(name=name, faults=lacking)
    unknown = unknown_leaves(values, _is_of_trl)
    known = sum(_is_of_trl(str(key)) for key in values)
    fault = mostly_unknown(name, unknown, known=known, program="trl", is_certain=_OF_TRL in values)
    if fault is not None:
        own = own_part(name, values)
        return JobFile(name=name, faults=(fault,)) if own is None else _with_open_sizes(own)
    launched = launch_part(name, values)
    adapter = [] if values.get("peft_type") is None else adapter_part(name, {"peft_type": values["peft_type"]}).faults
    renamed = tuple(renamed_keys(name, values))
    sizes = next((key for key in _OF_AN_ADAPTER if values.get(key) is not None), "")
    is_open = bool(sizes) and not any(values.get(key) for key in ("use_peft", "load_in_4bit", "peft_type"))
    switch = [_without_switch(name, sizes, values[sizes])] if is_open and (renamed or unknown) else []
    faults = (*renamed, *switch, *launched.faults, *adapter)
    uncut = [uncut_note(name)] if any(key in values and values[key] is None for key in LENGTHS) else []
    if is_open and not switch:
        uncut.append(Note(key="tuning", text=f"no effect of {sizes}: trl makes an adapter where use_peft is true"))
    notes = (*launched.notes, *environment_notes(name, values), *uncut)
    part = JobFile(name=name, values={**launched.values, **values}, job=launched.job, notes=notes, faults=faults)
    return with_inner_deepspeed(part)


_OF_AN_ADAPTER = ("lora_r", "lora_rank", "lora_alpha")


def _without_switch(name: str, key: str, value: object) -> Fault:
    """Return the fault of a file that has sizes of an adapter and no key of trl that makes one, and keys of its own."""
    problem = f"is of an adapter in {name}, which is of a script with keys of its own and has no use_peft"
    return Fault(key="tuning", found=f"{key}={show(value)}", problem=problem, hint="Give tuning=lora or tuning=full.")


def _with_open_sizes(part: JobFile) -> JobFile:
    """Return a user's own file with the sizes as assumed that it does not state: its script may have other defaults."""
    stated = {*(KEY_OF.get(key, key) for key in part.values), *(fault.key for fault in part.faults)}
    why = f"{part.name} leaves it to its script"
    return replace(part, notes=(*part.notes, *assumed_sizes(part.recipe or recipe_of(part.values)[0], stated, why)))


_DEFAULTS: Mapping[str, object] = {
    **TRL_DEFAULTS,
    "lora_rank": DEFAULT_LORA_RANK,
    "lora_target_modules": PEFT_TARGETS,
}

_EVALUATED = "per_device_eval_batch_size"

_LEFT_OUT = ("load_in_4bit", "use_peft", "generation_batch_size", "deepspeed", "fsdp")
"""Keys that are off where they are absent."""


def assumed_note(key: str, why: str) -> Note | None:
    """Return the note of an open value; None for a key that changes no memory."""
    if key in KEY_OF:
        name = KEY_OF[key]
        return Note(key=name, text=f"{name}={show(assumed_value(name))} ({why})", is_open=True)
    if key in NEUTRAL_VALUES:
        return Note(key="", text=f"{key}={show((*NEUTRAL_VALUES[key], None)[0])} ({why})")
    if key == _EVALUATED:
        return Note(key=key, text=f"{key}={EVALUATED_ROWS} ({why})", is_open=True)
    return Note(key="", text=f"no {key} ({why})") if key in _LEFT_OUT else None


def assumed_value(name: str) -> object:
    """Return the value of an open key of a trial."""
    return _DEFAULTS.get(name, key_named(name).assumed)


LENGTHS = key_named("max_length").trl_names
"""trl's names of the length to which a row is cut; null cuts none."""


def uncut_note(where: str) -> Note:
    """Return the note of rows that are not cut, whose length is that of the data."""
    text = f"max_length={key_named('max_length').given_default} ({where} cuts no row: give the length of your longest)"
    return Note(key="max_length", text=text, is_open=True)


_ENGINE = "use_vllm"
"""What decides more than sizes do, where all may be stated elsewhere."""


def assumed_sizes(recipe: Recipe | None, known: Collection[str], why: str) -> Iterator[Note]:
    """Yield the notes of sizes, other than the `known` ones, that a file may state in a way that is not read."""
    for key in (*SIZES, _ENGINE):
        note = assumed_note(key, why)
        if note is not None and key not in known and recipe in key_named(key).recipes:
            yield note
