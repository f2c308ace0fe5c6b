"""The files that describe one job in trl's names: what each says, by its release, and all together.

Which rewards of a recipe are models: hub ids, folders, and names with the size of a model.

trl's own script takes names of functions in `reward_funcs` and a model in `reward_model_name_or_path`
(`trl/scripts/grpo.py`, 1.16); scripts of users pass `reward_funcs` on, where `GRPOTrainer` loads each text as a model.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from pathlib import PurePosixPath

from profiler.config.models.lookup import builtin_of_folder, canonical_model
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF
from profiler.config.trl_releases.behaviours import EFFECTS, UNCOUNTED
from profiler.config.trl_releases.facts import IS_LOADED, IS_WRAPPED, NEWEST, Described, defaults_of
from profiler.domain.errors import Fault
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named


def with_defaults(
    file: Mapping[str, object], recipe: Recipe, release: str, settled: Collection[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return the keys of the trial with the defaults of a release, and the keys that the file leaves open.

    Args:
        file: Keys of trl's files.
        recipe: The trainer.
        release: The release of trl.
        settled: Keys of the trial that have the default of the newest release instead.
    """
    newest, found = defaults_of(recipe, NEWEST), defaults_of(recipe, release)
    defaults = {
        key: newest.get(key, value) if key in settled else value
        for key, value in found.items()
        if recipe in key_named(key).recipes
    }
    stated = {
        KEY_OF[key]: value
        for key, value in file.items()
        if key in KEY_OF and value is not None and recipe in key_named(KEY_OF[key]).recipes
    }
    open_keys = {key: "" for key in defaults if key not in stated and key not in settled}
    if stated.get("fp16") is True and "bf16" in open_keys:
        # `__post_init__` of trl's configurations, from 0.19 on; before, it was false by itself.
        defaults["bf16"], open_keys["bf16"] = False, "fp16 takes its place"
    return {**defaults, "recipe": recipe.value, **stated}, open_keys


def effects_of(
    described: Described, recipe: Recipe, release: str, *, untouched: Collection[str]
) -> dict[str, tuple[object, str]]:
    """Return the keys of the trial that a release changes: the value, and what it does.

    Args:
        described: The job, with the defaults of the release.
        recipe: The trainer.
        release: The release of trl.
        untouched: Keys of the trial that stay as they are.
    """
    changed: dict[str, tuple[object, str]] = {}
    for effect in EFFECTS:
        if recipe not in effect.recipes or release not in effect.versions or effect.key in untouched:
            continue
        value = effect.value(described)
        if value is not None:
            changed[effect.key] = (value, effect.meaning)
            described = replace(described, point={**described.point, effect.key: value})
    return changed


def uncounted(described: Described, recipe: Recipe, release: str) -> tuple[str, ...]:
    """Return what a release needs in addition to today's, without a formula here."""
    rows = (row for row in UNCOUNTED if recipe in row.recipes and release in row.versions)
    return tuple(row.meaning for row in rows if row.applies(described))


_SIZE = re.compile(r"(?<![a-z0-9])\d+(?:[._]\d+)?[bm](?![a-z0-9])", re.IGNORECASE)
"""Billions or millions of parameters in a name: ``8B`` in ``skywork-qwen3-8b``."""


def reward_models(flat: Mapping[str, object]) -> list[str]:
    """Return the models that score completions, without a slash by the built-in model that they are named after."""
    return list(dict.fromkeys(_counted(name) for name in _named(flat)))


def reward_notes(flat: Mapping[str, object]) -> Iterator[Note]:
    """Return a note per model that is counted by its name."""
    for name in dict.fromkeys(_named(flat)):
        if _counted(name) != name:
            yield Note(key="reward_models", text=f"the reward model {name} as {_counted(name)} (by its name)")


def _named(flat: Mapping[str, object]) -> list[str]:
    functions = [name for name in _texts(flat.get("reward_funcs")) if "/" in name or _SIZE.search(name)]
    return [*_texts(flat.get("reward_model_name_or_path")), *functions]


def _texts(value: object) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each]


def _counted(name: str) -> str:
    return name if "/" in name else builtin_of_folder(name) or name


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """What one file says, or several together."""

    name: str
    """The file, for faults."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Keys of trl's files."""
    job: Mapping[str, object] = field(default_factory=dict)
    """How processes share the work (`JOB_KEYS`), which files of trl do not say."""
    trial: Mapping[str, object] = field(default_factory=dict)
    """Keys of a trial that a program with a trainer of its own decides, whatever trl's releases do."""
    recipe: Recipe | None = None
    """The trainer, where the file names it."""
    kernels: OtherKernels | None = None
    """The program that trains by trl with kernels of its own; None for trl's own."""
    notes: tuple[Note, ...] = ()
    unknown: tuple[str, ...] = ()
    """Keys that are unknown in a file of their kind."""
    faults: tuple[Fault, ...] = ()
    earlier: tuple[Fault, ...] = ()
    """What only a trainer of an earlier release takes; a release that the user states settles it."""

    def for_release(self, stated: str | None) -> "JobFile":
        """Return what the file says of a release that the user states; None if the keys decide."""
        if stated is None:
            return replace(self, faults=(*self.faults, *self.earlier), earlier=())
        why = (f"although {each.found} gives {each.key} to the trainer" for each in self.earlier)
        notes = (Note(key="", text=f"trl {stated} as stated, {each}") for each in why)
        return replace(self, notes=(*self.notes, *notes), earlier=())


FSDP_KEYS = (
    "distributed_type",
    "fsdp_version",
    "fsdp_reshard_after_forward",
    "fsdp_offload_params",
    "fsdp_activation_checkpointing",
    "fsdp_cpu_ram_efficient_loading",
    "cp_size",
)
"""Keys of a trial that say how FSDP shards it."""

ZERO_KEYS = ("zero_stage", "offload_optimizer_device", "offload_param_device")
"""Keys of a trial that say how DeepSpeed shards it."""

IS_LAUNCHED = "is_launched"

_OF_FILES = ("deepspeed_file", "accelerate_file", IS_LAUNCHED, IS_LOADED, IS_WRAPPED)
JOB_KEYS = ("num_processes", *ZERO_KEYS, *FSDP_KEYS, *_OF_FILES)
"""Keys of `JobFile.job`. Those of FSDP and DeepSpeed are counted where they have a closed form, and else named.

The two files are named and not here; `is_launched` is true where a file of accelerate was read, `is_loaded` where a
script hands over a model that it has loaded, and `is_wrapped` where peft has put an adapter into it.
"""

_SHARDED_BY_STAGE = {
    1: "optimizer states",
    2: "gradients and optimizer states",
    3: "weights, gradients and optimizer states",
}

_OFFLOADED = {"offload_optimizer_device": "optimizer states", "offload_param_device": "weights"}


def merged(parts: Sequence[JobFile], *, given: Collection[str] = ()) -> JobFile:
    """Return all parts together.

    Two files that state different values of a key that affects memory are a fault, unless the key of the trial is
    among `given`, those of the command line, which win.
    """
    values: dict[str, object] = {}
    job: dict[str, object] = {}
    trial: dict[str, object] = {}
    faults: list[Fault] = []
    for part in parts:
        values.update(part.values)
        trial.update(part.trial)
        job.update(part.job)
        faults.extend(part.faults)
    faults.extend(_contradictions(parts, given))
    recipes = list(dict.fromkeys(part.recipe for part in parts if part.recipe is not None))
    if len(recipes) > 1:
        problem = f"are the recipes of these files, and one is allowed: {', '.join(part.name for part in parts)}"
        faults.append(Fault(key="recipe", found=show(recipes), problem=problem))
    return JobFile(
        name=", ".join(dict.fromkeys(part.name for part in parts)),
        values=values,
        job=job,
        trial=trial,
        recipe=recipes[0] if recipes else None,
        kernels=next((part.kernels for part in parts if part.kernels is not None), None),
        notes=tuple(note for part in parts for note in part.notes if not _is_settled(note, part, parts)),
        unknown=tuple(dict.fromkeys(key for part in parts for key in part.unknown)),
        earlier=tuple(fault for part in parts for fault in part.earlier),
        faults=tuple(faults),
    )


def _is_settled(note: Note, part: JobFile, parts: Sequence[JobFile]) -> bool:
    """Return whether another file states what this one leaves open."""
    stating = [each for each in parts if note.key in {KEY_OF.get(key, key) for key in each.values}]
    return note.is_counted and bool(stating) and part not in stating


def _contradictions(parts: Sequence[JobFile], given: Collection[str]) -> Iterator[Fault]:
    first: dict[str, tuple[JobFile, object]] = {}
    for part in parts:
        for key, value in (*part.values.items(), *part.job.items()):
            name = KEY_OF.get(key, key)
            if key in FREE_KEYS or name in given or value is None:
                continue
            earlier, known = first.setdefault(name, (part, value))
            if earlier is not part and _comparable(name, known) != _comparable(name, value):
                problem = f"is {show(known)} in {earlier.name} and {show(value)} in {part.name}"
                yield Fault(key=name, found=show(value), problem=problem, hint=_hint(name))


def _hint(name: str) -> str:
    is_of_trial = name in KEY_OF.values() or name == "num_processes"
    return f"Give {name}= on the command line, or change one of them." if is_of_trial else "Change one of them."


def _comparable(name: str, value: object) -> object:
    if isinstance(value, list | tuple):
        return sorted(map(show, value))
    text = show(value).removeprefix("torch.")
    return canonical_model(text) if name == "model" else value if isinstance(value, int | float) else text


def unread_faults(job: Mapping[str, object], given: Collection[str]) -> Iterator[Fault]:
    """Refuse a file that says how memory is shared, that the job names, and that is not here.

    Args:
        job: How processes share the work.
        given: Keys of the trial that the command line states.
    """
    if job.get("zero_stage") is not None or "distributed_type" in given:
        return
    if job.get("accelerate_file") is not None and job.get(IS_LAUNCHED) is not True:
        yield _unread("distributed_type", "accelerate", show(job["accelerate_file"]))
    elif job.get("deepspeed_file") is not None:
        yield _unread("zero_stage", "DeepSpeed", show(job["deepspeed_file"]))


def _unread(key: str, program: str, file: str) -> Fault:
    stated = "zero_stage=" if key == "zero_stage" else "distributed_type=no|multi_gpu|fsdp|deepspeed"
    name = "FILE" if "$" in file or "," in file else PurePosixPath(file).name
    return Fault(
        key=key,
        found=file,
        problem=f"is a file of {program} that is not here, and it says how GPUs share memory",
        hint=f"Give it as well, as config={name}, or {stated}.",
    )


def _zero_notes(job: Mapping[str, object]) -> tuple[Note, ...]:
    """Return what an estimate leaves out that does not count ZeRO."""
    count = job.get("num_processes")
    gpus = f"{show(count)} GPUs" if count is not None else "the GPUs"
    notes = []
    stage = job.get("zero_stage")
    if isinstance(stage, int) and stage in _SHARDED_BY_STAGE:
        what = f"it shards {_SHARDED_BY_STAGE[stage]} over {gpus}" if count != 1 else _ONE_GPU
        what += ", and keeps float32 copies of trained weights"
        notes.append(not_counted(f"what {sharding_name(job)} changes ({what})"))
    elif stage == 0:
        what = "it shards nothing, and keeps float32 copies and gradients of trained weights"
        notes.append(not_counted(f"what DeepSpeed changes ({what})"))
    for key, what in _OFFLOADED.items():
        if job.get(key) not in (None, "none"):
            notes.append(not_counted(f"that {what} are offloaded ({key}={show(job[key])})"))
    return tuple(notes)


def sharding_keys(job: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of a trial that FSDP or DeepSpeed shards; none if the job is neither."""
    if job.get("zero_stage") is not None:
        zero = {key: job[key] for key in ZERO_KEYS if job.get(key) is not None}
        return {**zero, "distributed_type": "deepspeed"}
    found = {key: job[key] for key in FSDP_KEYS if job.get(key) is not None}
    if "distributed_type" not in found:
        return {}
    # accelerate refuses to checkpoint twice.
    return {**found, "gradient_checkpointing": False} if found.get("fsdp_activation_checkpointing") is True else found


def sharding_notes(job: Mapping[str, object]) -> tuple[Note, ...]:
    """Return what an estimate leaves out that does not count the sharding of `sharding_keys`."""
    if job.get("zero_stage") is not None:
        return _zero_notes(job)
    return (_fsdp_note(job),) if sharding_keys(job) else ()


def _fsdp_note(job: Mapping[str, object]) -> Note:
    said = ", ".join(f"{key}={show(job[key])}" for key in FSDP_KEYS[1:] if job.get(key) not in (None, False))
    what = f"what FSDP changes ({said})" if said else "what FSDP changes"
    shards = "it shards weights, gradients and optimizer states"
    if job.get("num_processes") == 1:
        shards = f"{_ONE_GPU}, and keeps trained weights in float32"
    return not_counted(f"{what}: {shards}")


_ONE_GPU = "on one GPU it shards nothing"


def sharding_name(job: Mapping[str, object]) -> str:
    """Return what shards the job: ``"ZeRO-3"`` or ``"FSDP"``; empty if nothing does."""
    stage = job.get("zero_stage")
    if stage is not None:
        return f"ZeRO-{stage}" if stage in _SHARDED_BY_STAGE else ""
    return "FSDP" if sharding_keys(job) else ""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What a file says of the GPUs that share a job."""

    name: str
    gpus: object
    """Their number; None if it is not stated."""

    def noted(self, notes: Sequence[Note], gpus: object) -> list[Note]:
        """Return the notes with the number of GPUs that is assumed; as they are if None is."""
        if gpus is None:
            return list(notes)
        text = f"num_processes={gpus} (the fewest over which {self.name} shards)"
        return [*(note for note in notes if note.key != "num_processes"), Note(key="num_processes", text=text)]

    def counted(self, gpus: object) -> str:
        """Return what a verdict says whose trial has the sharding; empty where the number is stated."""
        said = f"That is {self.name} on {gpus} GPUs, the fewest that the files allow; num_processes= states yours."
        return said if self.gpus is None else ""

    def left_out(self, *, without_form: bool) -> str:
        """Return what a verdict says whose trial leaves the sharding out."""
        if self.gpus is None and not without_form:
            return f"That is one GPU without {self.name}: no file states num_processes."
        one = "one GPU " if self.gpus is None else ""
        return f"That is {one}without {self.name}, which has no formula for this job."

    def refusal(self, *, without_form: bool) -> Fault:
        """Return why nothing is answered, where an answer without the sharding would be another job's."""
        key, found = "distributed_type", self.name
        if self.gpus is None and not without_form:
            problem = "shares memory among GPUs of which no file says how many"
            return Fault(key=key, found=found, problem=problem, hint="Give num_processes=.")
        hint = "distributed_type=multi_gpu, or no on one GPU, answers as if nothing were sharded."
        return Fault(key=key, found=found, problem="has no formula for this job", hint=hint)


def sharing_of(job: Mapping[str, object]) -> Sharing | None:
    """Return what shards a job; None if nothing does."""
    name = sharding_name(job)
    return Sharing(name=name, gpus=job.get("num_processes")) if name else None


def fewest_sharing(
    job: Mapping[str, object], point: Mapping[str, object], flat: Mapping[str, object]
) -> dict[str, object]:
    """Return the keys of the trial on the fewest GPUs that share it, where no file states their number.

    None where other keys need several GPUs already, or where the rows of a generation are none for so many.

    Args:
        job: How processes share the work.
        point: The trial on the fewest GPUs that its other keys allow.
        flat: Keys of trl's files.
    """
    if sharding_name(job) == "" or job.get("num_processes") is not None or point.get("num_processes", 1) != 1:
        return {}
    parts = job.get("cp_size")
    gpus = lcm(2, parts) if isinstance(parts, int) and parts > 0 else 2
    if flat.get("generation_batch_size") is None:
        return {"num_processes": gpus}
    steps = point.get("steps_per_generation")
    if not isinstance(steps, int) or steps % gpus:
        return {}
    return {"num_processes": gpus, "steps_per_generation": steps // gpus}


def fewest_whole(group: object, rows: object) -> int:
    """Return the number of processes whose `rows` are whole groups: 7 of 32 rows need 7. 1 where one is no count."""
    if not isinstance(group, int) or not isinstance(rows, int) or group < 1 or rows < 1:
        return 1
    return group // gcd(group, rows)
