"""What a command line and its configuration file describe: untyped keys, and what had to be assumed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiler.config.model_lookup import builtin_architecture, builtin_of_folder
from profiler.config.notes import Note, note_lines
from profiler.config.parts import Part, merged
from profiler.config.reading import show
from profiler.config.trl_config import read_trl_config
from profiler.config.verl_sources import VerlSource, joined, override_source
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.domain.recipe import Recipe
from profiler.domain.trial import Backend
from profiler.estimate.cards import capability_note
from profiler.estimate.command import Command
from profiler.estimate.config_file import load_config
from profiler.estimate.counting import ModelCounter, counted_by_transformers, read_and_counted
from profiler.estimate.prompts import KEY as PROMPT_KEY
from profiler.estimate.prompts import Measure, measured_by_transformers, prompt_note
from profiler.storage.model_config import is_local

ModelConfigLoader = Callable[[str], Mapping[str, object]]
"""Returns the content of the `config.json` of a model that is not built in."""

ArchitectureLookup = Callable[[str], Architecture]

_LONGEST_LIST = 2000
"""Most characters of a list of keys."""


@dataclass(frozen=True, kw_only=True)
class ShardedInputs:
    """Keys of a trial that FSDP or DeepSpeed shards, for where it has a closed form."""

    keys: Mapping[str, object]
    notes: tuple[str, ...]


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


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """What the files of a command describe: a job of trl, or one of verl."""

    part: Part | None = None
    """A job of trl; None if no file describes one."""
    verl: VerlSource | None = None


def read_inputs(command: Command, part: Part | None, *, measure: Measure = measured_by_transformers) -> Inputs:
    """Return what `command` and its files describe; keys of the command win.

    Args:
        command: The command line.
        part: What its files say of a job of trl; None if there are none.
        measure: Measures the prompts of a data set on this machine.
    """
    keys: dict[str, object] = {"backend": Backend.SIMULATED.value}
    faults = list(command.faults)
    notes: list[Note] = []
    unknown: tuple[str, ...] = ()
    reading = None
    if part is not None:
        given = {key: command.keys[key] for key in ("num_processes",) if key in command.keys}
        job = {**part.job, **given}
        reading = read_trl_config(part.values, strict=command.strict, recipe=_recipe(command, part), job=job)
        keys.update(reading.point)
        settled = {*command.keys, *command.axes}
        faults += [fault for fault in (*reading.faults, *part.faults) if fault.key not in settled]
        faults += _foreign_faults(part, strict=command.strict)
        unknown = () if command.strict else (*reading.unknown, *part.unknown)
        notes = [*_folder_taken_by_name(keys), *reading.notes, *part.notes]
    named = keys.get("model") if part is None else part.values.get("model_name_or_path")
    keys.update(command.keys)
    if keys.get("recipe") != Recipe.SFT.value:
        source = command.keys.get("dataset", None if part is None else part.values.get("dataset_name"))
        notes = _with_prompts(keys, notes, (command.keys.get("model", named), source), command, measure)
    if keys.get("gpu") is not None and capability_note(show(keys["gpu"])):
        notes.append(Note(key="", text=capability_note(show(keys["gpu"]))))
    stated = {*command.keys, *command.axes}
    if keys["backend"] == "auto":
        keys["backend"] = Backend.SIMULATED.value
    notes = [note for note in notes if note.key not in stated]
    lines, sharded = note_lines(notes), None
    if reading is not None and reading.left_out and "distributed_type" not in stated:
        own = {key: value for key, value in reading.sharding.items() if key not in stated}
        sharded = ShardedInputs(keys={**keys, **own}, notes=lines)
        lines = note_lines([*notes, *reading.left_out])
    return Inputs(
        keys=keys,
        notes=lines,
        sharded=sharded,
        stated=frozenset(stated),
        ignored=_ignored_line(unknown),
        faults=tuple(faults),
    )


def _with_prompts(
    keys: dict[str, object], notes: Sequence[Note], named: tuple[object, object], command: Command, measure: Measure
) -> list[Note]:
    """Take the length of the longest prompt where nothing states a length and model and data set are here.

    Args:
        keys: The keys of the trial, which get the length.
        notes: The notes so far, without one on the length afterwards if it is measured.
        named: Model and data set as the user names them.
        command: The command line.
        measure: Measures prompts.
    """
    is_stated = PROMPT_KEY in command.keys or PROMPT_KEY in command.axes
    if is_stated or PROMPT_KEY in keys or "model" in command.axes:
        return list(notes)
    found = prompt_note(*named, measure)
    if isinstance(found, tuple):
        keys[PROMPT_KEY], note = found
        return [note, *(each for each in notes if each.key != PROMPT_KEY)]
    return [*notes, found] if found is not None else list(notes)


def _recipe(command: Command, part: Part) -> Recipe | None:
    """Return the trainer that the command or a file names; the command wins. None if neither does."""
    given = command.keys.get("recipe")
    return Recipe(str(given)) if given in list(Recipe) else part.recipe


def _foreign_faults(part: Part, *, strict: bool) -> list[Fault]:
    """Return a fault per key that is unknown in a companion file."""
    problem = f"is unknown in {part.name}, which strict=true refuses"
    return [Fault(key=key, found=key, problem=problem) for key in part.unknown] if strict else []


def _ignored_line(unknown: Sequence[str]) -> str:
    names = shortened(", ".join(unknown), _LONGEST_LIST)
    return printable(f"Ignored, because trl has no such keys: {names}.") if unknown else ""


def _folder_taken_by_name(keys: dict[str, object]) -> list[Note]:
    """Replace a folder of another machine by the built-in model of its name, and return the note that says so."""
    model = keys.get("model")
    if not isinstance(model, str) or not model.startswith(("/", ".", "~")) or is_local(model):
        return []
    builtin = builtin_of_folder(model)
    if builtin is None:
        return []
    keys["model"] = builtin
    return [Note(key="model", text=f"model={builtin} (by its name, because there is no {model} here)")]


def architecture_lookup(
    load_model: ModelConfigLoader, count: ModelCounter = counted_by_transformers
) -> ArchitectureLookup:
    """Return a lookup that reads each model once, built in or by `load_model`, and counts it where it is unknown."""

    def read(model: str) -> Architecture:
        return read_and_counted(load_model(model), model=model, count=count)

    return _remembered(lambda model: builtin_architecture(model) or read(model))


def _remembered(architecture_of: Callable[[str], Architecture]) -> Callable[[str], Architecture]:
    """Return `architecture_of` with each model read once, also if it cannot be read."""
    found: dict[str, Architecture | UsageError] = {}

    def remembered(model: str) -> Architecture:
        if model not in found:
            try:
                found[model] = architecture_of(model)
            except UsageError as error:
                found[model] = error
        result = found[model]
        if isinstance(result, UsageError):
            raise UsageError(result.faults)
        return result

    return remembered


def job_files(command: Command) -> JobFiles:
    """Return what the files of the command describe.

    Raises:
        UsageError: A file cannot be read, or files of verl are mixed with others.
    """
    files, faults = [], list(command.faults)
    for path in command.configs:
        try:
            files.append(load_config(path))
        except UsageError as error:
            faults.extend(error.faults)
    of_verl = [file for file in files if file.verl is not None]
    if of_verl and len(of_verl) < len(files):
        problem = "is a configuration of verl, which is not read with files of trl"
        faults.append(Fault(key="config", found=of_verl[0].path, problem=problem))
    if command.overrides and not of_verl and command.configs:
        problem = "is a key of verl, and the files are not"
        faults.extend(Fault(key=word.partition("=")[0], found=word, problem=problem) for word in command.overrides[:1])
    if len(faults) > len(command.faults):
        raise UsageError(faults)
    if of_verl or command.overrides:
        sources = [file.verl for file in of_verl if file.verl is not None]
        return JobFiles(verl=joined([*sources, override_source(command.overrides)]))
    parts = [file.part for file in files if file.part is not None]
    return JobFiles(part=merged(parts, given={*command.keys, *command.axes}) if parts else None)
