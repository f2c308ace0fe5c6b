"""What a command line and its configuration file describe: untyped keys, and what had to be assumed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiler.config.architecture import read_architecture
from profiler.config.model_lookup import builtin_architecture, builtin_of_folder
from profiler.config.trl_config import Note, note_lines, read_trl_config
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.domain.trial import Backend
from profiler.estimate.command import Command
from profiler.estimate.config_file import load_config
from profiler.storage.model_config import is_local

ModelConfigLoader = Callable[[str], Mapping[str, object]]
"""Returns the content of the `config.json` of a model that is not built in."""

ArchitectureLookup = Callable[[str], Architecture]

_LONGEST_LIST = 2000
"""Most characters of a list of keys."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What all trials of a command share."""

    keys: Mapping[str, object]
    """Untyped keys of a trial."""
    notes: tuple[str, ...]
    """What was assumed, and what is not counted."""
    ignored: str
    """A line that lists the keys of the file that trl does not have; empty if there are none."""
    faults: tuple[Fault, ...]


def read_inputs(command: Command, values: Mapping[str, object] | None) -> Inputs:
    """Return what `command` and the `values` of its file describe; keys of the command win."""
    keys: dict[str, object] = {"backend": Backend.SIMULATED.value}
    faults = list(command.faults)
    notes: list[Note] = []
    unknown: tuple[str, ...] = ()
    if values is not None:
        reading = read_trl_config(values, strict=command.strict)
        keys.update(reading.point)
        faults.extend(reading.faults)
        notes, unknown = [*_folder_taken_by_name(keys), *reading.notes], () if command.strict else reading.unknown
    keys.update(command.keys)
    given = {*command.keys, *command.axes}
    lines = note_lines([note for note in notes if note.key not in given])
    if keys["backend"] == "auto":
        keys["backend"] = Backend.SIMULATED.value
    return Inputs(keys=keys, notes=lines, ignored=_ignored_line(unknown), faults=tuple(faults))


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


def architecture_lookup(load_model: ModelConfigLoader) -> ArchitectureLookup:
    """Return a lookup that reads each model once, built in or by `load_model`."""
    return _remembered(lambda model: builtin_architecture(model) or read_architecture(load_model(model), model=model))


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


def file_values(command: Command) -> Mapping[str, object] | None:
    """Return the content of the configuration file; None if none is named."""
    if command.config is None:
        return None
    try:
        return load_config(command.config)
    except UsageError as error:
        raise UsageError((*command.faults, *error.faults)) from error
