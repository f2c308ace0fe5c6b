"""Keys that a user's own script gave to a recipe: which of them change nothing, and which would be lost.

Recipes have keys of the user's script next to trl's: of 506 public ones with trl's `model_name_or_path`, at most 45 %
are such keys. Files of scripts with keys of their own have at least 50 %, or state trl's under another name.

The names that a format has for keys of trl, as one table, for `foreign_formats.FORMATS` and a user's own YAML.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.files.companion_files import with_inner_deepspeed
from profiler.config.notes import Note
from profiler.config.options.reading import show
from profiler.config.trials.key_values import OTHER_TRAINER
from profiler.config.trl.argument_keys import CONTAINERS, FREE_KEYS, KEY_OF, is_trl_key
from profiler.config.trl.config import TRL_DEFAULTS
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault
from profiler.domain.trials.keys import Kind
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS

SHOWN = 6
"""Most unknown keys that a sentence names."""

RUN_IT = "python -m profiler.run gpus=1xCARD runs the command itself on an emulated card (docs/scripts.md)."
BY_KEYS = "the job by keys of a trial (model=NAME tuning=lora ...)"
"""What answers for a file that is not read."""
_HINT = f"Give {BY_KEYS}, or as a YAML file with trl's keys."

_OTHER_NAMES: Mapping[str, str] = {
    "model_name_or_path": (
        "model_name model_path model_id base_model base_model_name base_model_path pretrained_model "
        "pretrained_model_name_or_path pretrained_model_path pretrain"
    ),
    "per_device_train_batch_size": (
        "batch_size micro_batch_size train_batch_size per_device_batch_size mini_batch_size batch_size_per_device "
        "per_gpu_train_batch_size"
    ),
    "gradient_accumulation_steps": "grad_accum grad_accum_steps grad_accumulation_steps accumulation_steps",
    "num_generations": (
        "group_size num_samples_per_prompt samples_per_prompt num_return_sequences generations_per_prompt "
        "num_generations_per_prompt rollouts_per_prompt rollouts_per_example num_rollouts"
    ),
    "max_completion_length": "max_new_tokens max_response_length max_gen_length max_completion_tokens generate_max_len",
    "max_prompt_length": "max_prompt_len prompt_max_len max_prompt_tokens",
    "max_length": "max_seq_len max_sequence_length seq_length seq_len sequence_len sequence_length cutoff_len",
    "beta": "kl_beta kl_coef kl_coeff kl_penalty kl_weight kl_loss_coef init_kl_coef",
    "lora_r": "lora_rank",
    "lora_target_modules": "target_modules lora_modules",
    "use_peft": "use_lora use_qlora peft_config lora_config peft_enabled enable_peft lora_enabled enable_lora",
    "load_in_4bit": "use_4bit load_4bit bits quant_bits",
    "optim": "optimizer",
    "dtype": "precision model_dtype",
    "attn_implementation": "attention_implementation attn_impl",
    "gradient_checkpointing": (
        "use_gradient_checkpointing grad_checkpointing gradient_ckpt grad_checkpoint grad_ckpt use_checkpointing "
        "activation_checkpointing gradient_checkpoint enable_gradient_checkpointing checkpoint_activations"
    ),
}
"""Names that own scripts give to what trl has a key for, from 120 public repositories."""

_KEY_BY_OTHER_NAME = {other: key for key, others in _OTHER_NAMES.items() for other in others.split()}

_SETTLES = {"use_peft": "tuning", "load_in_4bit": "tuning"}
"""Keys of a trial that settle keys of trl which no single key of a trial is."""

_SAME = (frozenset({"max_length", "max_seq_length"}), frozenset({"dtype", "torch_dtype"}))
"""trl's names of the same key in several versions."""

_MEMORY_WORDS: Mapping[str, str] = {
    "model_name_or_path": "model base_model pretrained policy checkpoint",
    "use_peft": "lora qlora peft adapter rank freeze dora target_modules tuning quantization quantize 4bit 8bit bnb",
    "per_device_train_batch_size": "batch micro minibatch",
    "gradient_accumulation_steps": "accum accumulation",
    "num_generations": "group rollouts generations samples_per_prompt",
    "max_completion_length": "new_tokens response_length completion max_tokens length seq_len max_len obs",
    "max_prompt_length": "prompt_length prompt_len pixels image_size",
    "dtype": "dtype precision half bfloat16 float16 fp8",
    "gradient_checkpointing": "checkpointing",
    "optim": "optimizer optim",
    "vllm_gpu_memory_utilization": "vllm gpu_memory",
    "vllm_max_model_length": "max_model_len",
    "vllm_tensor_parallel_size": "tensor_parallel",
    "num_processes": "num_gpus n_gpus gpus nodes world_size",
    "beta": "kl ref_model",
    "distributed_type": "fsdp deepspeed zero zero_stage offload",
}
"""Words in names of keys that may change memory, by trl's key for it."""

_WORD_OF = dict(
    sorted(
        ((word, key) for key, words in _MEMORY_WORDS.items() for word in words.split()), key=lambda each: -len(each[0])
    )
)
"""The longest word first, because it is the more exact one."""

_NO_MEMORY = re.compile(
    r"(?:^|_)(?:path|dir|file|files|folder|url|name|id|project|entity|steps|every|interval|limit|lr|learning|rate|reward|"
    r"rewards|weight|coef|penalty|temperature|clip|epsilon|seed|patien\w*|ratio|log|logging|eval|save|wandb|data|dataset|"
    r"column|field|revision|warmup|scheduler|prompt_template|system|mask|shuffle|streaming|min|top|bonus|score|cosine|gguf|push|"
    r"upload|publish|short|tag|alias|slug|estimator)(?:_|$)"
)
"""Words in names of keys that say where, when, or by which number."""

_COUNTS = frozenset(key.name for key in TRIAL_KEYS if key.kind is Kind.COUNT)


def memory_key(name: str) -> str:
    """Return the key of a trial that a key of unknown meaning may stand for, by its name; empty if none."""
    last = name.rpartition(".")[2].lower()
    known = _KEY_BY_OTHER_NAME.get(last)
    if known is None and _NO_MEMORY.search(last):
        return ""
    words = f"_{last}_"
    found = known or next((key for word, key in _WORD_OF.items() if f"_{word}_" in words), "")
    return _SETTLES.get(found, KEY_OF.get(found, found)) if found else ""


def unknown_leaves(values: Mapping[str, object], is_known: Callable[[str], bool]) -> list[str]:
    """Return the unknown keys; of a section that is unknown, each key in it as ``section.key``."""
    return [leaf for key, value in values.items() if not is_known(str(key)) for leaf in _leaves(str(key), value)]


def _leaves(name: str, value: object) -> list[str]:
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{name}.{key}", inner)]


def mostly_unknown(
    name: str, unknown: Sequence[str], *, known: int, program: str, is_certain: bool = False
) -> Fault | None:
    """Return the fault of a file of which half of the keys are unknown in files of `program`; None if fewer are.

    Args:
        name: The file.
        unknown: Its keys that are unknown.
        known: The number of the others.
        program: The program that it seems to be for.
        is_certain: Whether it has a key that only files of `program` have; then more than half must be unknown.
    """
    if not unknown or len(unknown) < known + is_certain:
        return None
    shown = ", ".join(unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
    problem = f"has {len(unknown)} of {known + len(unknown)} keys that {program} does not have ({shown})"
    return Fault(key="config", found=name, problem=f"{problem}, so it is no file of {program}", hint=_HINT)


def renamed_keys(name: str, values: Mapping[str, object]) -> Iterator[Fault]:
    """Return a fault per key of a file of trl that has another name there, and whose meaning would be lost.

    The fault has the key of the trial, so that the same key on the command line settles it.
    """
    for other, value in values.items():
        key = _KEY_BY_OTHER_NAME.get(str(other))
        # `kl_coef` is a key of RLOO's trainer before trl 0.25, and means `beta`.
        is_of_trl = is_trl_key(str(other)) and other != "kl_coef"
        if key is None or is_of_trl or _states(values, key) or _changes_nothing(key, value):
            continue
        by = _SETTLES.get(key, KEY_OF.get(key, key))
        problem = f"is {other} in {name}, and trl's key is {key}, so the file is of a script with keys of its own"
        yield Fault(key=by, found=show(value), problem=problem, hint=f"Give {by}= as well, or rename it.")


def _changes_nothing(key: str, value: object) -> bool:
    """Return whether a value says what trl does without the key."""
    return value is None or (value is False and TRL_DEFAULTS.get(key) is not True) or TRL_DEFAULTS.get(key) == value


def _states(values: Mapping[str, object], key: str) -> bool:
    names = next((names for names in _SAME if key in names), frozenset({key}))
    return any(values.get(each) is not None for each in names)


Rule = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Returns keys of trl that follow from the file's keys by their paths, and that no single key states."""

Check = Callable[[Mapping[str, object]], Iterable[Fault | Note]]
"""Returns what is refused, assumed or not counted, from the file's keys by their paths."""

_WHOLE = (*CONTAINERS, "gradient_checkpointing_kwargs", "fsdp_config", "deepspeed", "lr_scheduler_kwargs")
"""Keys of trl whose value has keys."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The names of one format."""

    version: str
    """The program and the version whose source these were read from."""
    names: Mapping[str, str] = field(default_factory=dict)
    """trl's key by the format's: ``key``, ``section.key``, or ``*.key`` in any section."""
    values: Mapping[str, Mapping[object, object]] = field(default_factory=dict)
    """By trl's key, its value by the format's word for it."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """The format's defaults by trl's key, where they are not trl's."""
    recipe_key: str = ""
    """The key that names the trainer; empty if trl's keys tell."""
    recipes: Mapping[object, Recipe] = field(default_factory=dict)
    """The trainers that have a recipe, by their names there."""
    unread: Mapping[object, str] = field(default_factory=dict)
    """Why another trainer is not read, by its name there: what it does, after "because it"."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """The trainer that a key names by being true, where `recipe_key` is absent."""
    trainer: str = ""
    """The name of the trainer where no key names one; empty if trl's keys tell then."""
    rules: tuple[Rule, ...] = ()
    """What several keys decide together; they win over single keys."""
    trial: tuple[Rule, ...] = ()
    """Keys of a trial, not of trl, that follow: what its trainer does otherwise than trl's releases."""
    by_rule: frozenset[str] = frozenset()
    """Keys that `rules` and `checks` read, whatever trl's key of the same name is."""
    checks: tuple[Check, ...] = ()
    """What several keys together refuse or leave open."""
    free: frozenset[str] = frozenset()
    """Keys that change no memory."""
    ignored: frozenset[str] = frozenset()
    """Keys and sections that the program has not, although their names say that they change memory."""
    changes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys or sections that change memory and have no equal in trl, each with the values that change nothing, as null
    does."""


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A file in the names of trl."""

    values: Mapping[str, object]
    """Keys of trl."""
    read: tuple[str, ...]
    """Paths of the keys that were read, with trl's name where it is another: ``model.name as model_name_or_path``."""
    unknown: tuple[str, ...]
    """Paths of the other keys."""
    recipe: Recipe | None
    notes: tuple[Note, ...]
    faults: tuple[Fault, ...]


def part_by(
    vocabulary: Vocabulary, name: str, values: Mapping[str, object], undecided: Mapping[str, str] | None = None
) -> JobFile:
    """Return what a file or a command says by the names of its format.

    Args:
        vocabulary: The names.
        name: The file, or how the command is called in sentences.
        values: Its keys.
        undecided: Keys whose value it does not state, with what it says.
    """
    found = translated(vocabulary, name, values)
    texts = [f"the names of {name} are those of {vocabulary.version}"]
    texts += [f"no effect of {key}: {vocabulary.version} has no such key" for key in vocabulary.ignored & values.keys()]
    part = JobFile(
        name=name,
        values=found.values,
        trial=_trial(vocabulary, values) if found.recipe is not None else {},
        recipe=found.recipe,
        notes=(*(Note(key="", text=text) for text in texts), *found.notes),
        unknown=tuple(path for path in found.unknown if not _is_named(vocabulary, path)),
        faults=(*found.faults, *_open(vocabulary, name, undecided or {})),
    )
    return with_inner_deepspeed(part)


def _is_named(vocabulary: Vocabulary, path: str) -> bool:
    """Return whether the format has a key, although trl has none for it."""
    is_free = not vocabulary.free.isdisjoint((path, path.rpartition(".")[2], path.partition(".")[0]))
    return is_free or _neutral(vocabulary, path) is not None


def _trial(vocabulary: Vocabulary, values: Mapping[str, object]) -> dict[str, object]:
    leaves = dict(leaves_of(values))
    return {key: value for rule in vocabulary.trial for key, value in rule(leaves).items()}


def _open(vocabulary: Vocabulary, name: str, undecided: Mapping[str, str]) -> Iterator[Fault]:
    """Return the fault of each key that changes memory and whose value is not stated: a default would be a guess."""
    for path, said in undecided.items():
        key = None if path in vocabulary.by_rule else _trl_name(vocabulary, path)
        if key in FREE_KEYS or (key is None and path in vocabulary.free):
            continue
        changes = path in vocabulary.by_rule or path in vocabulary.changes or path == vocabulary.recipe_key
        own = "zero_stage" if path == "deepspeed" else path if changes else None
        if settled_by := own or (KEY_OF.get(key, key) if key is not None else memory_key(path)):
            problem = f"is {path} in {name}, which does not say what it is"
            is_key = settled_by in ("zero_stage", *KEY_OF.values())
            hint = f"Give {settled_by}= as well." if is_key else f"State {path} in {name}."
            yield Fault(key=settled_by, found=said, problem=problem, hint=hint)


def translated(vocabulary: Vocabulary, name: str, values: Mapping[str, object]) -> Translation:
    """Return what a file says, in the names of trl.

    Args:
        vocabulary: The names of its format.
        name: The file, for sentences.
        values: Its keys.
    """
    found: dict[str, object] = {}
    places: dict[str, str] = {}
    read: list[str] = []
    unknown: list[str] = []
    faults: list[Fault] = []
    renamed: list[tuple[Fault, object]] = []
    leaves = {path: value for path, value in leaves_of(values) if path.partition(".")[0] not in vocabulary.ignored}
    for path, value in leaves.items():
        if path in vocabulary.by_rule:
            read.append(path)
            continue
        key = _trl_name(vocabulary, path)
        if key is None:
            unknown.append(path)
            renamed += [(fault, value) for fault in _without_equal(vocabulary, name, path, value)]
            continue
        read.append(path if path.rpartition(".")[2] == key else f"{path} as {key}")
        words = vocabulary.values.get(key, {})
        value = words.get(value, value) if isinstance(value, str | int | float | bool | None) else value
        if value is None:
            continue
        if key in found and found[key] != value and key not in FREE_KEYS:
            problem = f"is {show(found[key])} by {places[key]} and {show(value)} by {path} in {name}"
            settled_by = KEY_OF.get(key, key)
            faults.append(
                Fault(key=settled_by, found=show(value), problem=problem, hint=f"Give {settled_by}= as well.")
            )
        found.setdefault(key, value)
        places.setdefault(key, path)
    for rule in vocabulary.rules:
        found.update(rule(leaves))
    # A key of trl that is stated as well, to the same value, settles what another name of it says.
    stated = [(KEY_OF.get(key, key), value) for key, value in found.items()]
    faults += [fault for fault, value in renamed if (fault.key, value) not in stated]
    trainer = leaves.get(vocabulary.recipe_key) or _switched(vocabulary, leaves) or vocabulary.trainer
    recipe = vocabulary.recipes.get(trainer)
    if trainer in vocabulary.unread:
        faults, unknown = [], []
    said = [each for check in vocabulary.checks if trainer not in vocabulary.unread for each in check(leaves)]
    if recipe is None and trainer:
        faults.append(_no_recipe(vocabulary, trainer))
    return Translation(
        values={**vocabulary.defaults, **found},
        read=tuple(read),
        unknown=tuple(path for path in unknown if path != vocabulary.recipe_key),
        recipe=recipe,
        notes=tuple(each for each in said if isinstance(each, Note)),
        faults=(*faults, *(each for each in said if isinstance(each, Fault))),
    )


def _switched(vocabulary: Vocabulary, leaves: Mapping[str, object]) -> str | None:
    return next((name for key, name in vocabulary.switches.items() if leaves.get(key) is True), None)


def leaves_of(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Return each key that has no keys below it by its path, ``section.key``, with its value."""
    for key, value in values.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value and str(key) not in _WHOLE:
            yield from leaves_of(value, path)
        else:
            yield path, value


def _trl_name(vocabulary: Vocabulary, path: str) -> str | None:
    last = path.rpartition(".")[2]
    for name in (path, ".".join(path.split(".")[-2:]), f"*.{last}"):
        if name in vocabulary.names:
            return vocabulary.names[name]
    return last if is_trl_key(last) and path not in vocabulary.free and _neutral(vocabulary, path) is None else None


def _without_equal(vocabulary: Vocabulary, name: str, path: str, value: object) -> Iterator[Fault]:
    """Return the fault of a key that changes memory and is not read."""
    last = path.rpartition(".")[2]
    neutral = _neutral(vocabulary, path)
    if neutral is not None and value not in (None, "") and value not in neutral:
        problem = f"of {name} ({vocabulary.version}) changes memory in a way that has no formula"
        yield Fault(key=path, found=show(value), problem=problem)
    elif neutral is None and path not in vocabulary.free and last not in vocabulary.free:
        key = memory_key(path) if value not in (None, "", "auto", "none", "default") else ""
        is_on = value is not False or TRL_DEFAULTS.get(key) is True
        if key and is_on and not (isinstance(value, bool) and key in _COUNTS):  # completion_only: true
            problem = f"is {path} in {name}, and trl has no key of that name"
            yield Fault(key=key, found=show(value), problem=problem, hint=f"Give {key}= as well.")


def _neutral(vocabulary: Vocabulary, path: str) -> tuple[object, ...] | None:
    """Return the values of a key, or of a section that it is in, that change no memory; None for other keys."""
    names = (path, f"*.{path.rpartition('.')[2]}", path.partition(".")[0])
    return next((vocabulary.changes[name] for name in names if name in vocabulary.changes), None)


def _no_recipe(vocabulary: Vocabulary, found: object) -> Fault:
    why = f", because it {vocabulary.unread[found]}" if found in vocabulary.unread else ""
    problem = f"{OTHER_TRAINER} {vocabulary.version} that is not read{why}; those that are: "
    problem += ", ".join(map(str, vocabulary.recipes))
    return Fault(key=vocabulary.recipe_key, found=show(found), problem=problem, hint=RUN_IT)
