"""A YAML file of a user's own script: what the script looks up, or without it keys of trl.

Without the script, keys of trl, transformers and peft in its sections are read. At least half of the keys that may
change memory must be known. A key that may change memory and has a name of the user's own is a fault, which the same
key on the command line settles.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from profiler.config.files.vocabulary import BY_KEYS, SHOWN, Translation, Vocabulary, leaves_of, memory_key, translated
from profiler.config.foreign_text import NoLiteralError
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.argument_keys import FREE_KEYS, FREE_KEYS_BY_REASON, KEY_OF, is_trl_key
from profiler.config.trl.argument_values import OTHER_TRAINERS, said_trainers, says_full, trainer_is_known
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault, shortened
from profiler.domain.trials.keys import Group, MemoryOrder
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named

ANY_KEY = "**"
"""The key of a mapping that may have keys which are not in the file."""


class FileKeys(Mapping[str, object]):
    """The keys of a file, or of a section of it, as a script looks them up."""

    def __init__(
        self, content: Mapping[str, object], *, read: dict[str, object], path: str = "", is_open: bool = False
    ) -> None:
        """Record in `read` what is looked up, by its path.

        Args:
            content: The keys.
            read: The values that were looked up, by their path in the file.
            path: The section; empty for the whole file.
            is_open: Whether this may be a section that the script does not name: a key that the file does not have by
                itself is then that of the only section which has it.
        """
        self._content, self._path, self.read, self.is_open = content, path, read, is_open

    def opened(self) -> "FileKeys":
        """Return the same keys for an expression of the script whose value is not known."""
        return FileKeys(self._content, read=self.read, path=self._path, is_open=True)

    def section(self, name: str) -> "FileKeys":
        """Return the keys of a section; these keys if there is none of that name."""
        content = self._content.get(name)
        return FileKeys(content, read=self.read, path=name) if isinstance(content, Mapping) else self

    def all(self) -> Mapping[str, object]:
        """Return every key, which are looked up by the section alone."""
        self.read[self._path] = self._content
        return self._content

    def __getitem__(self, key: str) -> object:
        place = self._place(key)
        if place is None:
            raise KeyError(key)
        section, path = place
        value = section[key]
        if isinstance(value, Mapping):
            return FileKeys(value, read=self.read, path=path)
        self.read[path] = value
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._place(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def _place(self, key: str) -> tuple[Mapping[str, object], str] | None:
        """Return where a key stands, and its path."""
        if key in self._content:
            return self._content, f"{self._path}.{key}" if self._path else key
        having = list(_sections_with(key, self._content, self._path)) if self.is_open else []
        return having[0] if len(having) == 1 else None


def _sections_with(key: str, content: Mapping[str, object], path: str) -> Iterator[tuple[Mapping[str, object], str]]:
    """Return the sections of any depth that have a key, but for those about other runs and models, with its path."""
    for name, inner in content.items():
        if isinstance(inner, Mapping) and name not in (*_ASIDE, *_OTHER_MODELS):
            within = f"{path}.{name}" if path else name
            if key in inner:
                yield inner, f"{within}.{key}"
            yield from _sections_with(key, inner, within)


_AUTO = "auto"
"""What a user's own script decides itself."""

_FEWEST = 2
"""Fewest keys of trl that change memory in a file that is read."""

_MOST_NAMED = 1500
"""Longest list of keys in a sentence."""

_ASIDE = frozenset(
    """
    fallback smoke smoke_test debug test tests sweep ablation ablations eval evaluation inference benchmark judge wandb
    logging paths test_run dry_run filter filtering filter_offline
    """.split()  # noqa: SIM905
)
"""Sections about other runs than the training."""

_OF_OTHER_RUNS = re.compile(r"(?:eval|evaluation|inference|test|benchmark)_|\w+_(?:eval|evaluation|test)$")

_OTHER_MODELS = frozenset({"reward_model", "teacher", "critic", "value_model", "ref_model"})
"""Sections about further models, which are on a GPU as well."""

_OF_ANY_TRAINER = frozenset({"prm", "reward"})
"""Sections that say how completions are rewarded, whatever trains on them."""

_MODEL = ("model", "policy", "base_model", "model_args", "model_loading_args")
_NAMES_OF_MODELS = ("name", "id", "model_id", "name_or_path", "model_name", "base_model", "base", "path", "hf_id")
_ADAPTER = ("lora", "qlora", "peft", "lora_config", "peft_config", "lora_parameters", "lora_params", "lora_args")
_NAMES_OF_ADAPTERS = {
    "r": "lora_r",
    "rank": "lora_r",
    "lora_rank": "lora_r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "enabled": "use_peft",
    "enable": "use_peft",
    "use_lora": "use_peft",
    "using_lora": "use_peft",
    "use_rslora": "use_rslora",
    "task_type": "lora_task_type",
    "bias": "lora_task_type",
}

_PLAIN = frozenset(key for keys in FREE_KEYS_BY_REASON.values() for key in keys)
_OF_DATA = ("dataset_name", "eval_strategy", "per_device_eval_batch_size")
"""Keys without memory of their own that decide what is counted. Others are left out: they would tell the release of
trl, and a user's own script may give such names to what it likes."""

_SHARDS = re.compile(r"(?:.*/)?(?:deepspeed|ds_|zero)(?:[\w/-]*?\d)?\w*(?:\.json)?|(fsdp)\w*", re.IGNORECASE)


def _shared(leaves: Mapping[str, object]) -> Iterator[Fault]:
    """Return a fault per key of the user's own that shares the training among GPUs: trl's are in another file."""
    for path, value in leaves.items():
        last = path.rpartition(".")[2]
        is_how = last in _STRATEGIES or not _ENGINES.isdisjoint(path.split("."))
        how = _SHARDS.fullmatch(value) if isinstance(value, str) and is_how else None
        moved = _MOVED.get(last, "") if value is True else ""
        key = moved or ("" if how is None else "sharding" if how[1] else "zero_stage")
        if key:
            problem = f"is {path} in a file of a script of its own, which shares the training among GPUs"
            hint = f"Give num_processes= with {key}= as well."
            yield Fault(key=key, found=show(value), problem=problem, hint=hint)


_PRECISION = "mixed_precision"
"""accelerate's key, which transformers' `bf16` is for a trainer."""


def _precision(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return `bf16` where a section about the launch says it, and no key of trl does."""
    stated = any(path.rpartition(".")[2] == "bf16" for path in leaves)
    is_bf16 = any(path.rpartition(".")[2] == _PRECISION and value == "bf16" for path, value in leaves.items())
    return {"bf16": True} if is_bf16 and not stated else {}


_LENGTHS = ("max_length", "max_seq_length")
"""Keys that users give to any trainer."""

_STRATEGIES = ("strategy", "distributed_strategy", "distributed_type", "backend")
_ENGINES = frozenset({"engine", "distributed", "parallel", "parallelism", "accelerate", "launcher"})
_MOVED = {"offload_optimizer": "offload_optimizer_device", "offload_param": "offload_param_device"}
"""Switches of DeepSpeed in files of users, with the key that says the same."""

OWN = Vocabulary(
    version="a user's own script",
    names={
        **{f"{section}.{name}": "model_name_or_path" for section in _MODEL for name in _NAMES_OF_MODELS},
        **{
            f"{section}.{name}": key
            for section in _ADAPTER
            for name, key in _NAMES_OF_ADAPTERS.items()
            if name != "bias"
        },
        **dict.fromkeys(("base_model", "training.base_model"), "model_name_or_path"),
        **dict.fromkeys(
            ("training.per_device_batch_size", "train.per_device_batch_size"), "per_device_train_batch_size"
        ),
        "vllm.enabled": "use_vllm",
        "vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
        "vllm.max_model_len": "vllm_max_model_length",
        "vllm.mode": "vllm_mode",
        "vllm.tensor_parallel_size": "vllm_tensor_parallel_size",
        "grpo.group_size": "num_generations",
        "grpo.max_new_tokens": "max_completion_length",
        "generation.max_new_tokens": "max_completion_length",
        "rollout.max_new_tokens": "max_completion_length",
        "grpo.kl_coef": "beta",
        "*.use_lora": "use_peft",
        "*.lora_rank": "lora_r",
        "*.bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    },
    values={key: {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"} for key in ("dtype", "torch_dtype")},
    rules=(_precision,),
    checks=(_shared,),
    changes={f"*.{_PRECISION}": ("bf16",)},
    free=frozenset({"bias", "device_map", "low_cpu_mem_usage"}),
)
"""Names in sections that can mean one thing only."""


def own_part(name: str, values: Mapping[str, object]) -> JobFile | None:
    """Return what the keys of a user's own file say; None for one without sections, or without keys of trl."""
    if not any(isinstance(value, Mapping) and value for value in values.values()):
        return None
    kept = {key: value for key, value in values.items() if str(key) not in {*_aside(values), *_OTHER_MODELS}}
    found = translated(OWN, name, kept)
    known = [path for path in found.read if path.rpartition(" as ")[2].rpartition(".")[2] not in FREE_KEYS]
    of_trl = [path for path in known if _changes_memory(path.rpartition(".")[2])]
    open_paths = [path for path in found.unknown if memory_key(path)]
    if len(of_trl) < _FEWEST:
        return None
    if len(known) < len(open_paths):
        return JobFile(name=name, faults=(_below_half(name, known, open_paths),))
    recipe, faults = _recipe(name, values, found)
    faults += [*_both_tunings(name, kept, found)]
    others = [Note(key="recipe", text=f"recipe={recipe} (by the names in {name})")] if recipe is not None else []
    content = _counted(found)
    left = [*found.unknown, *_aside(values)]
    others += [not_counted(f"what {key} of {name} changes") for key in values if str(key) in _OTHER_MODELS]
    for path, value in leaves_of(kept):
        if value is True and "unsloth" in path:
            others.append(not_counted(f"Unsloth ({path} of {name})"))
        elif value == _AUTO and path in open_paths:
            key = memory_key(path)
            others.append(Note(key=key, text=f"trl's default of {key} ({name} has {path}: {_AUTO})"))
    read = shortened(", ".join(found.read), _MOST_NAMED)
    return JobFile(
        name=name,
        values=content,
        recipe=recipe,
        notes=(Note(key="", text=f"{name} is of a script of its own, and these keys of it are trl's: {read}"), *others),
        unknown=tuple(left),
        faults=(*_once(found.faults), *faults),
    )


def _aside(values: Mapping[str, object]) -> list[str]:
    """Return the sections about other runs, by their names or by how these begin: ``eval_ood``."""
    sections = [str(key) for key, value in values.items() if isinstance(value, Mapping)]
    return [*(str(key) for key in values if str(key) in _ASIDE), *filter(_OF_OTHER_RUNS.match, sections)]


def parts_with_own_file(script: JobFile, name: str, values: Mapping[str, object], keys: FileKeys) -> list[JobFile]:
    """Return what a script and its file say together; nothing if the script looks up no key of the file.

    What the script states itself wins. Other keys of the file count as without the script.

    Args:
        script: What the script says, with `keys`.
        name: The file.
        values: Its keys.
        keys: The same, with what the script has looked up.
    """
    if not keys.read:
        return []
    trainers = {each.value for each in Recipe if script.recipe not in (None, each)}
    found = translated(OWN, name, _without(values, keys.read, others={*trainers, *_ASIDE, *_aside(values)}))
    stated = {KEY_OF.get(key, key) for key, value in script.values.items() if value is not None}
    content = {key: value for key, value in _counted(found).items() if KEY_OF.get(key, key) not in stated}
    looked_up = [path for path in keys.read if memory_key(path) or _changes_memory(path.rpartition(".")[2])]
    own = JobFile(
        name=name,
        values=content,
        notes=(Note(key="", text=f"{name} as {script.name} reads it ({', '.join(looked_up)})"),) if looked_up else (),
        faults=tuple(fault for fault in _once(found.faults) if fault.key not in stated),
    )
    return [script, own]


def _changes_memory(key: str) -> bool:
    if not is_trl_key(key) or key in FREE_KEYS:
        return False
    of_trial = key_named(KEY_OF[key]) if key in KEY_OF else None
    return of_trial is None or (of_trial.memory is not MemoryOrder.NO_EFFECT and of_trial.group is not Group.DATA)


def _without(
    values: Mapping[str, object], paths: Collection[str], above: str = "", *, others: Collection[str] = ()
) -> dict[str, object]:
    """Return the keys without those of some paths, and without sections of other trainers and runs."""
    found: dict[str, object] = {}
    for key, value in values.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            left = {} if key in others else _without(value, paths, f"{path}.", others=others)
            found.update({key: left} if left else {})
        elif path not in paths:
            found[key] = value
    return found


def _counted(found: Translation) -> dict[str, object]:
    """Return the keys that decide memory; a section of an adapter says that there is one."""
    content = {key: value for key, value in found.values.items() if key not in _PLAIN or key in _OF_DATA}
    sections = {path.partition(" as ")[0].rpartition(".")[0].rpartition(".")[2] for path in found.read}
    if not sections.isdisjoint(_ADAPTER):
        content.setdefault("use_peft", True)
    return content


def _both_tunings(name: str, values: Mapping[str, object], found: Translation) -> Iterator[Fault]:
    """Return a fault if a file that describes an adapter also has full fine-tuning, which its script chooses from."""
    by = says_full(dict(leaves_of(values))) if _counted(found).get("use_peft") else ""
    if by:
        problem = f"is full by {by} and an adapter by other keys in {name}"
        yield Fault(key="tuning", found="null", problem=problem, hint="Give tuning=full or tuning=lora as well.")


def _once(faults: tuple[Fault, ...]) -> Iterator[Fault]:
    """Return one fault per key."""
    yield from {fault.key: fault for fault in reversed(faults)}.values()


def _of_training(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the keys by their paths, without those of other runs, of data and of rewards, and of deeper sections."""
    return {
        path: value
        for path, value in leaves_of(values)
        if path.count(".") < _FEWEST
        and not re.match(r"data|eval|test|reward", path)
        and path.partition(".")[0] not in _ASIDE
    }


def _below_half(name: str, known: list[str], unknown: list[str]) -> Fault:
    shown = ", ".join(unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
    count = f"has {len(unknown)} of {len(known) + len(unknown)}"
    problem = f"{count} keys that may change memory by names that trl does not have ({shown})"
    return Fault(key="config", found=name, problem=problem, hint=f"Give {BY_KEYS}, or the script with it.")


def _recipe(name: str, values: Mapping[str, object], found: Translation) -> tuple[Recipe | None, list[Fault]]:
    """Return the trainer by the sections, and a fault if they are of several or of one without a recipe."""
    sections = {str(key).lower() for key, value in values.items() if isinstance(value, Mapping)}
    # A section of a trainer may be in that of the training: ``training: {orpo: {...}}``.
    trainings = [each for key, each in values.items() if "train" in str(key) and isinstance(each, Mapping)]
    inner = {str(key).lower() for each in trainings for key in each}
    names = {*said_trainers(_of_training(values)), *(sections - _OF_ANY_TRAINER), *(inner & {*OTHER_TRAINERS})}
    named = [each for each in Recipe if each in names]
    others = [each for each in OTHER_TRAINERS if each in names]
    if len(named) > 1:
        problem = f"has sections of {' and '.join(named)}, and one recipe is allowed"
        return None, [Fault(key="recipe", found=name, problem=problem, hint="Give recipe= as well.")]
    if named:
        return named[0], []
    own = {key: value for key, value in found.values.items() if key not in _LENGTHS}
    of_file = [each for each in Recipe if each in re.findall("[a-z]+", name.lower())]
    if not others and len(of_file) == 1 and not trainer_is_known(own):
        return of_file[0], []
    if others or not trainer_is_known(found.values):
        what = f"is for {others[0]}, which has no recipe here" if others else "does not say which trainer it is for"
        return None, [Fault(key="recipe", found=name, problem=what, hint=f"The recipes are {', '.join(Recipe)}.")]
    return None, []


def contained(owner: object, key: object) -> bool:
    """Return whether a list or mapping has a value or key; raise a `NoLiteralError` if that is not in the file."""
    match owner:
        case FileKeys(is_open=False) | dict():
            if show(key) not in owner and ANY_KEY in owner:
                raise NoLiteralError
            return show(key) in owner
        case list():
            return key in owner
        case str() if isinstance(key, str):
            return key in owner
    raise NoLiteralError


def item_of(owner: object, key: object) -> object:
    """Return an entry of a mapping or an item of a list.

    Raises:
        NoLiteralError: It has none.
    """
    match owner, key:
        case Mapping(), _ if show(key) in owner:
            return owner[show(key)]
        case list(), int() if -len(owner) <= key < len(owner):
            return owner[key]
    raise NoLiteralError
