"""The keys of a job of verl from a run script and from overrides, in the form of a flat configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.model_lookup import builtin_of_folder
from profiler.config.notes import Note
from profiler.config.reading import show
from profiler.config.run_script import RunScript
from profiler.config.value_grammar import ValueTextError, read_into, read_value
from profiler.config.verl_keys import MEMORY_KEYS
from profiler.domain.errors import Fault, shortened

_PATH = "actor_rollout_ref.model.path"

_LONGEST_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class VerlSource:
    """What one source says of a job."""

    values: Mapping[str, object] = field(default_factory=dict)
    megatron: bool = False
    """Whether it names verl's trainer for Megatron."""
    notes: tuple[Note, ...] = ()
    faults: tuple[Fault, ...] = ()


def script_source(script: RunScript, *, name: str) -> VerlSource:
    """Return what the run script `name` passes to verl; a value that it does not state keeps verl's default."""
    values: dict[str, object] = {}
    notes, faults = [], []
    for key, override in script.overrides.items():
        if override.is_known:
            values[key] = _value(override.text)
        elif key == _PATH:
            model = builtin_of_folder(override.text.rstrip("/"))
            if model is None:
                problem = f"is not stated in {name}; give {_PATH}= as well"
                faults.append(Fault(key=key, found=shortened(override.text, _LONGEST_SHOWN), problem=problem))
            else:
                values[key] = model
                notes.append(Note(key=_PATH, text=f"model={model} (by its name in {name})"))
        elif key in MEMORY_KEYS:
            notes.append(Note(key=key, text=f"verl's default of {key} ({name} does not state it)"))
    megatron = "megatron" in script.config_name
    return VerlSource(values=values, megatron=megatron, notes=tuple(notes), faults=tuple(faults))


def override_source(words: Sequence[str]) -> VerlSource:
    """Return the values of Hydra's overrides, ``key=value`` with ``+`` or ``++`` before it."""
    values: dict[str, object] = {}
    faults: list[Fault] = []
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        read_into(values, key, text, faults)
    return VerlSource(values=values, faults=tuple(faults))


def joined(sources: Sequence[VerlSource]) -> VerlSource:
    """Return all sources together; the values of later ones win, and settle what earlier ones left open."""
    values: dict[str, object] = {}
    for source in sources:
        values.update(source.values)
    notes, faults = [], []
    for number, source in enumerate(sources):
        settled = {key for later in sources[number + 1 :] for key in later.values}
        notes += [note for note in source.notes if note.key not in settled]
        faults += [fault for fault in source.faults if fault.key not in settled]
    return VerlSource(
        values=values,
        megatron=any(source.megatron for source in sources),
        notes=tuple(notes),
        faults=tuple(faults),
    )


def _value(text: str) -> object:
    """Return the value of a text; the text itself where it is none, because most keys need no memory."""
    try:
        return read_value(text)
    except ValueTextError:
        return show(text)
