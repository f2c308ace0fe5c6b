"""What a command line and its configuration file describe: untyped keys, and what had to be assumed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from profiler.config.models.lookup import builtin_architecture, remembered, taken_by_name, taken_text
from profiler.config.notes import DECIDES, SIZES, Note, note_lines
from profiler.config.options.command_words import CONFIG
from profiler.config.options.reading import show
from profiler.config.trials.key_values import without_absent_targets
from profiler.config.trl_releases.facts import KEY as TRL
from profiler.config.trl_releases.facts import NEWEST
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.recipe import OF_DATA, Recipe
from profiler.domain.trials.trial import Backend, key_named
from profiler.estimate.command import Command, capability_note
from profiler.estimate.job.counting import KEY as PROMPT_KEY
from profiler.estimate.job.counting import (
    Measure,
    ModelCounter,
    counted_by_transformers,
    measured_by_transformers,
    prompt_note,
    read_and_counted,
    remembered_measure,
)
from profiler.storage.foreign.model_config import is_local

if TYPE_CHECKING:  # What reads files takes 60 ms to import, and many jobs are described by keys alone.
    from profiler.config.trl.config import TrlReading
    from profiler.config.trl.interval import TrlVariant
    from profiler.config.trl.parts import JobFile
    from profiler.config.verl.sources import VerlSource

ModelConfigLoader = Callable[[str], Mapping[str, object]]
"""Returns the content of the `config.json` of a model that is not built in."""

ArchitectureLookup = Callable[[str], Architecture]

_ENGINE_ROW = "vllm_max_model_length"

_OF_DATA = tuple(recipe.value for recipe in OF_DATA)
"""Recipes of which the longest prompt decides nothing: rows have a length of their own."""

_BY_TRL = "For what trl's own trainer needs, give the keys of a trial: model=NAME tuning=qlora ..."

_LONGEST_LIST = 2000
"""Most characters of a list of keys."""


@dataclass(frozen=True, kw_only=True)
class ShardedInputs:
    """Keys of a trial that FSDP or DeepSpeed shards, for where it has a closed form."""

    keys: Mapping[str, object]
    notes: tuple[str, ...]
    said: str = ""
    """What a verdict says of the number of GPUs, where no file states it."""
    left_out: str = ""
    """The same without the sharding."""
    refusal: Fault | None = None
    """Why no number is answered without the sharding; None if nothing shards the job."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What all trials of a command share."""

    keys: Mapping[str, object]
    """Untyped keys of a trial."""
    notes: tuple[str, ...]
    """What was assumed, and what is not counted."""
    sharded: ShardedInputs | None
    """The same as FSDP or DeepSpeed shards it; None if no file says so."""
    stated: frozenset[str]
    """Keys of the command line."""
    ignored: str
    """A line that lists the keys of the file that trl does not have; empty if there are none."""
    faults: tuple[Fault, ...]
    open_sizes: str = ""
    """A line that goes with an answer: sizes that the files take from elsewhere; empty if there are none."""
    releases: tuple[str, ...] = ()
    """The releases of trl for which this holds; empty without a file of trl."""
    whole_rows: bool = False
    """Whether vLLM's `vllm_max_model_length` is prompt and completion, whatever these are."""
    kernels: OtherKernels | None = None
    """The program that trains by trl with kernels of its own, so that there are bounds; None for trl's own."""
    others: tuple["Inputs", ...] = ()
    """The same in other releases that the file can be written for, where they describe another trial."""

    def without(self, names: Collection[str]) -> "Inputs":
        """Return the same without the values of some keys."""
        kept = [{key: part.keys[key] for key in part.keys if key not in names} for part in (self, self.sharded or self)]
        sharded = self.sharded and replace(self.sharded, keys=kept[1])
        return replace(self, keys=kept[0], sharded=sharded, others=tuple(each.without(names) for each in self.others))

    def at(self, changes: Mapping[str, object], *, sharded: bool = False) -> dict[str, object]:
        """Return the untyped keys of a trial with other values of some."""
        own = self.sharded.keys if sharded and self.sharded is not None else self.keys
        keys = {**own, **changes}
        lengths = [keys.get("max_prompt_length"), keys.get("max_completion_length")]
        whole = [length for length in lengths if isinstance(length, int)]
        if self.whole_rows and len(whole) == len(lengths):
            keys[_ENGINE_ROW] = sum(whole)
        return keys


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """What the files of a command describe: a job of trl, or one of verl."""

    part: "JobFile | None" = None
    """A job of trl; None if no file describes one."""
    verl: "VerlSource | None" = None


def read_inputs(
    command: Command,
    part: "JobFile | None",
    *,
    measure: Measure = measured_by_transformers,
    with_bounds: bool = False,
    with_evaluations: bool = False,
    solved: Collection[str] = (),
) -> Inputs:
    """Return what `command` and its files describe; keys of the command win.

    Args:
        command: The command line.
        part: What its files say of a job of trl; None if there are none.
        measure: Measures the prompts of a data set on this machine.
        with_bounds: Whether bounds are an answer, which is all there is of a program with kernels of its own.
        with_evaluations: Whether the answer counts evaluations of rows, so that no note says that they are left out.
        solved: Keys of which the answer is a value: nothing is assumed of them.

    Raises:
        UsageError: The files are of no job that is read: what else is missing in them does not matter.
    """
    read_as = partial(_inputs, command, with_evaluations=with_evaluations, solved=solved)
    if part is None:
        return read_as(None, None, (), measure)
    part = part.for_release(command.options.trl)
    of_files = [fault for fault in part.faults if fault.key == CONFIG]
    if part.kernels is not None and not of_files and not with_bounds:
        problem = f"trains by {part.kernels.program}, of whose memory there are only the bounds of `estimate`"
        of_files.append(Fault(key=CONFIG, found=part.name, problem=problem, hint=_BY_TRL))
    if of_files:
        raise UsageError((*command.faults, *of_files))
    from profiler.config.trl.interval import read_trl_variants
    from profiler.config.trl.parts import ZERO_KEYS

    found = read_trl_variants(
        part.values,
        strict=command.options.strict,
        recipe=_recipe(command, part),
        job={**part.job, **{key: command.keys[key] for key in ("num_processes", *ZERO_KEYS) if key in command.keys}},
        # A program with a trainer of its own has no release of trl whose defaults would hold.
        stated=command.options.trl or (NEWEST if part.trial else None),
        given={**part.trial, **command.keys},
        # Other kernels make log-probabilities in their own way, whatever the release.
        settled={*(note.key for note in part.notes if note.key), *(() if part.kernels is None else ("logprobs",))},
        kernels=part.kernels,
    )
    measured = remembered_measure(measure)
    read = [read_as(part, each, found.notes, measured) for each in found.variants]
    first, *others = (replace(each, faults=(*each.faults, *found.faults)) for each in read)
    return replace(first, others=tuple(others))


def _inputs(
    command: Command,
    part: "JobFile | None",
    variant: "TrlVariant | None",
    version_notes: Sequence[Note],
    measure: Measure,
    *,
    with_evaluations: bool,
    solved: Collection[str],
) -> Inputs:
    """Return what a command and its files describe in some releases of trl."""
    keys: dict[str, object] = {"backend": Backend.SIMULATED.value}
    faults = list(command.faults)
    notes: list[Note] = []
    unknown: tuple[str, ...] = ()
    reading = variant.reading if variant is not None else None
    if part is not None and reading is not None:
        keys.update({**reading.point, **part.trial})
        settled = {*command.keys, *command.axes}
        of_file = {fault.key for fault in part.faults}  # They know more of the file than its keys say.
        found = *(fault for fault in reading.faults if fault.key not in of_file), *part.faults
        faults += [fault for fault in found if fault.key not in settled]
        faults += _foreign_faults(part, strict=command.options.strict)
        unknown = () if command.options.strict else (*reading.unknown, *part.unknown)
        # A default is not named a second time where the file takes the value from elsewhere, or by release.
        of_part = (each for each in part.notes if each.is_open or each.key == "num_processes")
        named_keys = {*part.trial, *(each.key for each in (*version_notes, *of_part) if each.key)}
        own = [note for note in reading.notes if note.key not in named_keys]
        notes = [*_folder_taken_by_name(keys), *own, *part.notes, *version_notes]
    named = keys.get("model") if part is None else part.values.get("model_name_or_path")
    keys.update(command.keys)
    if part is not None and part.kernels is None and "lora_target_modules" not in command.keys:
        notes.extend(without_absent_targets(keys))
    if keys.get("recipe") not in _OF_DATA:
        source = command.keys.get("dataset", None if part is None else part.values.get("dataset_name"))
        is_cut = reading is not None and PROMPT_KEY in reading.taken
        notes = _with_prompts(keys, notes, (command.keys.get("model", named), source), command, measure, is_cut=is_cut)
    if keys.get("gpu") is not None and capability_note(show(keys["gpu"])):
        notes.append(Note(key="", text=capability_note(show(keys["gpu"]))))
    stated = {*command.keys, *command.axes, *solved}
    keys["backend"] = Backend.SIMULATED.value if keys["backend"] == "auto" else keys["backend"]
    notes = [note for note in notes if note.key not in stated and not (with_evaluations and note.is_evaluation)]
    left_out = reading.left_out if reading is not None and "distributed_type" not in stated else ()
    sharded = _sharded(reading, keys, notes, stated) if reading is not None and left_out else None
    return Inputs(
        keys=keys,
        notes=note_lines([*notes, *left_out]),
        sharded=sharded,
        stated=frozenset(stated),
        ignored=_ignored_line(unknown),
        open_sizes=_open_line(notes, keys.get("recipe")),
        faults=(*faults, *_all_open(keys, notes, "" if part is None else part.name)),
        releases=variant.releases if variant is not None else (),
        kernels=_kernels(part, notes),
        whole_rows=reading is not None and _ENGINE_ROW in reading.taken and _ENGINE_ROW not in stated,
    )


def _sharded(
    reading: "TrlReading", keys: Mapping[str, object], notes: Sequence[Note], stated: Collection[str]
) -> ShardedInputs:
    """Return the keys and notes of the job as it is sharded, on the fewest GPUs where no number is stated."""
    own = {**keys, **{key: value for key, value in reading.sharding.items() if key not in stated}}
    is_stated = "num_processes" in stated
    gpus = None if is_stated else reading.sharding.get("num_processes")
    if (shares := reading.shares) is None:
        return ShardedInputs(keys=own, notes=note_lines(notes))
    without_form = is_stated or gpus is not None
    return ShardedInputs(
        keys=own,
        notes=note_lines(shares.noted(notes, gpus)),
        said="" if is_stated else shares.counted(own.get("num_processes")),
        left_out=shares.left_out(without_form=without_form),
        refusal=shares.refusal(without_form=without_form),
    )


def _kernels(part: "JobFile | None", notes: Sequence[Note]) -> OtherKernels | None:
    """Return the kernels of a file, with whether the notes leave nothing out."""
    if part is None or part.kernels is None:
        return None
    return replace(part.kernels, counts_everything=all(note.is_counted for note in notes))


def _with_prompts(
    keys: dict[str, object],
    notes: Sequence[Note],
    named: tuple[object, object],
    command: Command,
    measure: Measure,
    *,
    is_cut: bool,
) -> list[Note]:
    """Take the length of the longest prompt where nothing states a length and model and data set are here.

    Args:
        keys: The keys of the trial, which get the length.
        notes: The notes so far, without one on the length afterwards if it is measured.
        named: Model and data set as the user names them.
        command: The command line.
        measure: Measures prompts.
        is_cut: Whether the length in `keys` is the one to which trl cuts prompts.
    """
    is_stated = PROMPT_KEY in command.keys or PROMPT_KEY in command.axes or (PROMPT_KEY in keys and not is_cut)
    if is_stated or "model" in command.axes:
        return list(notes)
    found = prompt_note(*named, measure)
    if isinstance(found, tuple):
        longest, note = found
        most = keys.get(PROMPT_KEY)
        keys[PROMPT_KEY] = min(longest, most) if isinstance(most, int) else longest
        return [note, *(each for each in notes if each.key != PROMPT_KEY)]
    return [*notes, found] if found is not None else list(notes)


def _recipe(command: Command, part: "JobFile") -> Recipe | None:
    """Return the trainer that the command or a file names; the command wins. None if neither does."""
    given = command.keys.get("recipe")
    return Recipe(str(given)) if given in list(Recipe) else part.recipe


def _foreign_faults(part: "JobFile", *, strict: bool) -> list[Fault]:
    """Return a fault per key that is unknown in a companion file."""
    problem = f"is unknown in {part.name}, which strict=true refuses"
    return [Fault(key=key, found=key, problem=problem) for key in part.unknown] if strict else []


def _ignored_line(unknown: Sequence[str]) -> str:
    names = shortened(", ".join(unknown), _LONGEST_LIST)
    return printable(f"Ignored, because trl has no such keys: {names}.") if unknown else ""


def _open_line(notes: Sequence[Note], recipe: object) -> str:
    """Return which sizes are assumed because a file takes them from elsewhere."""
    names = ", ".join(each for each in _open_keys(notes) if each != "beta" or recipe in (Recipe.GRPO, Recipe.RLOO))
    return printable(f"Assumed, because the files take them from elsewhere: {names}. {_GIVE_THEM}") if names else ""


def _all_open(keys: Mapping[str, object], notes: Sequence[Note], name: str) -> list[Fault]:
    """Return the fault of a file that states no size: what would be answered are trl's defaults."""
    sizes, found = [name for name in SIZES if keys.get("recipe") in key_named(name).recipes], _open_sizes(notes)
    if not found or any(name not in found for name in sizes):
        return []
    problem = f"takes every size from elsewhere ({', '.join(sizes)})"
    return [Fault(key=CONFIG, found=name, problem=problem, hint=_GIVE_THEM)]


def _open_sizes(notes: Sequence[Note]) -> list[str]:
    return [key for key in _open_keys(notes) if key in SIZES]


def _open_keys(notes: Sequence[Note]) -> list[str]:
    return list(dict.fromkeys(note.key for note in notes if note.is_open and note.key in (*SIZES, *DECIDES)))


_GIVE_THEM = "Give them, or the YAML or shell script that states them (config=FILE)."


def _folder_taken_by_name(keys: dict[str, object]) -> list[Note]:
    """Replace a folder of another machine by the built-in model of its name, and return the note that says so."""
    model = keys.get("model")
    builtin = taken_by_name(model)
    if builtin is None or is_local(str(model)):
        return []
    keys["model"] = builtin
    return [Note(key="model", text=taken_text(builtin, model))]


def architecture_lookup(
    load_model: ModelConfigLoader, count: ModelCounter = counted_by_transformers
) -> ArchitectureLookup:
    """Return a lookup that reads each model once, built in or by `load_model`, and counts it where it is unknown."""

    def read(model: str) -> Architecture:
        return read_and_counted(load_model(model), model=model, count=count)

    return remembered(lambda model: builtin_architecture(model) or read(model))


def job_files(command: Command) -> JobFiles:
    """Return what the files of the command describe.

    Raises:
        UsageError: A file cannot be read, or files of verl are mixed with others.
    """
    if not command.configs and not command.overrides and command.options.launch is None and not command.options.verl:
        return JobFiles()
    from profiler.config.trl.parts import merged
    from profiler.config.verl.sources import joined, override_source
    from profiler.estimate.job.config_file import load_command, load_config, pinned

    files, faults = [], list(command.faults)
    refused: dict[str, Sequence[Fault]] = {}
    for path in command.configs:
        try:
            others = [other for other in command.configs if other != path]
            files.append(pinned(load_config(path, others, show(command.keys.get("recipe", "")))))
        except UsageError as error:
            refused[path] = error.faults
    if command.options.launch is not None:
        try:
            files.append(load_command(command.options.launch, command.configs, show(command.keys.get("recipe", ""))))
        except UsageError as error:
            faults.extend(error.faults)
    named = {path for file in files for path in file.read}
    # A file that another one reads need not say anything by itself.
    faults.extend(fault for path, found in refused.items() if path not in named for fault in found)
    files = [file for file in files if file.path not in named]
    of_verl = [file for file in files if file.verl is not None]
    if of_verl and len(of_verl) < len(files):
        problem = "is a configuration of verl, which is not read with files of trl"
        faults.append(Fault(key="config", found=of_verl[0].path, problem=problem))
    if command.overrides and not of_verl and command.configs:
        problem = "is a key of verl, and the files are not"
        faults.extend(Fault(key=word.partition("=")[0], found=word, problem=problem) for word in command.overrides[:1])
    if of_verl and command.options.trl is not None:
        faults.append(Fault(key=TRL, found=command.options.trl, problem="is for files of trl, and these are of verl"))
    if command.options.verl is not None and not (of_verl or command.overrides or len(faults) > len(command.faults)):
        problem = "is for a job of verl, and this is none"
        faults.append(Fault(key="verl", found=command.options.verl, problem=problem))
    if len(faults) > len(command.faults):
        raise UsageError(faults)
    if of_verl or command.overrides:
        sources = [file.verl for file in of_verl if file.verl is not None]
        return JobFiles(verl=joined([*sources, override_source(command.overrides)]))
    parts = [part for file in files for part in file.parts]
    return JobFiles(part=merged(parts, given={*command.keys, *command.axes}) if parts else None)
