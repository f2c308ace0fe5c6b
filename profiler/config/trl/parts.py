"""Several files that describe one job: what each says in the names of trl's files, and all of them together."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.models.lookup import canonical_model
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.arguments.keys import FREE_KEYS, KEY_OF
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Part:
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
    notes: tuple[Note, ...] = ()
    unknown: tuple[str, ...] = ()
    """Keys that are unknown in a file of their kind."""
    faults: tuple[Fault, ...] = ()


FSDP_KEYS = (
    "distributed_type",
    "fsdp_version",
    "fsdp_reshard_after_forward",
    "fsdp_offload_params",
    "fsdp_activation_checkpointing",
)
"""Keys of a trial that say how FSDP shards it."""

ZERO_KEYS = ("zero_stage", "offload_optimizer_device", "offload_param_device")
"""Keys of a trial that say how DeepSpeed shards it."""

JOB_KEYS = ("num_processes", *ZERO_KEYS, *FSDP_KEYS, "deepspeed_file")
"""Keys of `Part.job`. Those of FSDP and DeepSpeed are counted where they have a closed form, and else named."""

_SHARDED_BY_STAGE = {
    1: "optimizer states",
    2: "gradients and optimizer states",
    3: "weights, gradients and optimizer states",
}

_OFFLOADED = {"offload_optimizer_device": "optimizer states", "offload_param_device": "weights"}


def merged(parts: Sequence[Part], *, given: Collection[str] = ()) -> Part:
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
    return Part(
        name=", ".join(part.name for part in parts),
        values=values,
        job=job,
        trial=trial,
        recipe=recipes[0] if recipes else None,
        notes=tuple(note for part in parts for note in part.notes),
        unknown=tuple(dict.fromkeys(key for part in parts for key in part.unknown)),
        faults=tuple(faults),
    )


def _contradictions(parts: Sequence[Part], given: Collection[str]) -> Iterator[Fault]:
    first: dict[str, tuple[Part, object]] = {}
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


def unread_notes(job: Mapping[str, object]) -> tuple[Note, ...]:
    """Return a note of a file of DeepSpeed that the job names and the user does not."""
    if "deepspeed_file" not in job or job.get("zero_stage") is not None:
        return ()
    name = show(job["deepspeed_file"])
    return (not_counted(f"what deepspeed={name} changes (read it as well: config={name})"),)


def _zero_notes(job: Mapping[str, object]) -> tuple[Note, ...]:
    """Return what an estimate leaves out that does not count ZeRO."""
    count = job.get("num_processes")
    gpus = f"{show(count)} GPUs" if count is not None else "the GPUs; num_processes= counts it"
    notes = []
    stage = job.get("zero_stage")
    if isinstance(stage, int) and stage in _SHARDED_BY_STAGE:
        what = f"{_SHARDED_BY_STAGE[stage]} over {gpus}, and keeps float32 copies of trained weights"
        notes.append(not_counted(f"what ZeRO-{stage} changes (it shards {what})"))
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
    return not_counted(f"{what}: it shards weights, gradients and optimizer states")
