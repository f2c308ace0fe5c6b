"""The keys of a job of verl from a run script, a file and overrides, in the form of a flat configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.models.lookup import builtin_of_folder
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.options.value_grammar import ValueTextError, read_into, read_value
from profiler.config.shell.run_script import Override, RunScript
from profiler.config.verl.effects import changes_memory, earlier_defaults, effect_text, padding_notes
from profiler.config.verl.keys import ENGINE, FREE_KEYS, FREE_PREFIXES, LATER_MEMORY_KEYS, MEMORY_KEYS, unstated
from profiler.domain.errors import Fault, shortened

_PATH = "actor_rollout_ref.model.path"
_LONGEST_SHOWN = 60

_ENGINES = {"dp": False, "megatron": True}
"""Whether an engine that has formulas is Megatron; `dp` is FSDP."""

_CONFIG_NAME = "--config-name"

_CONFIGURATIONS = {"": False, "ppo_trainer": False, "ppo_megatron_trainer": True}
"""Verl's configurations, and whether they are Megatron's."""

_DEFAULTS = "defaults"

_OWN_SECTIONS = frozenset({"_self_", "hydra", "ppo_trainer", "ppo_megatron_trainer", "legacy_reward_impl"})


@dataclass(frozen=True, kw_only=True)
class VerlSource:
    """What one source says of a job."""

    values: Mapping[str, object] = field(default_factory=dict)
    megatron: bool = False
    """Whether it names verl's trainer for Megatron."""
    is_configuration: bool = False
    """Whether it is a file of the kind that a script names with ``--config-name``."""
    names_engine: bool = False
    """Whether it states `ENGINE`."""
    added: frozenset[str] = frozenset()
    """Keys that it adds by ``+`` or ``++`` to a configuration that may lack them."""
    new: frozenset[str] = frozenset()
    """Those of them that it adds by ``+``, so that its verl lacks them."""
    notes: tuple[Note, ...] = ()
    faults: tuple[Fault, ...] = ()


def script_source(script: RunScript, *, name: str) -> VerlSource:
    """Return what the run script `name` passes to verl; a value that it does not state keeps verl's default."""
    values: dict[str, object] = {}
    notes, faults = [Note(key="", text=f"nothing of {word} ({name} does not state it)") for word in script.unread], []
    notes += [not_counted(f"what {each} makes otherwise than verl's main_ppo") for each in script.of_fork]
    for key, override in script.overrides.items():
        if override.is_known:
            values[key] = _value(override.text)
        elif override.because and _decides(key):
            faults.append(_ambiguous(key, override, name))
        elif key == _PATH:
            model = builtin_of_folder(override.text.rstrip("/"))
            if model is None:
                problem = f"is not stated in {name}; give {_PATH}= as well"
                faults.append(Fault(key=key, found=shortened(override.text, _LONGEST_SHOWN), problem=problem))
            else:
                values[key] = model
                notes.append(Note(key=_PATH, text=f"model={model} (by its name in {name})"))
        elif key in (*MEMORY_KEYS, *LATER_MEMORY_KEYS):
            notes.append(unstated(key, f"{name} does not state it", key=key))
        elif changes_memory(key):
            notes.append(not_counted(effect_text(key, shortened(override.text, _LONGEST_SHOWN))))
    groups = {key: _value(group.text) for key, group in script.groups.items() if group.is_known}
    faults += [_ambiguous(key, group, name) for key, group in script.groups.items() if not group.is_known]
    megatron, engine_faults = _engine(groups)
    own = script.config_name not in _CONFIGURATIONS
    if own:
        problem = (
            f"is a configuration of its own, whose values {name} does not state; name its file before it, config=FILE"
        )
        faults.append(Fault(key=_CONFIG_NAME, found=shortened(script.config_name, _LONGEST_SHOWN), problem=problem))
    values.update({key: value for key, value in groups.items() if "@" not in key and key != ENGINE})
    is_megatron = megatron or ("megatron" in script.config_name if own else _CONFIGURATIONS[script.config_name])
    new = frozenset(key for key, override in script.overrides.items() if override.is_new)
    notes += padding_notes(script.overrides, new, is_megatron=is_megatron)
    return VerlSource(
        values=values,
        megatron=is_megatron,
        names_engine=ENGINE in groups,
        added=frozenset(key for key, override in script.overrides.items() if override.is_added),
        new=new,
        notes=tuple(notes),
        faults=(*faults, *engine_faults),
    )


def file_source(values: Mapping[str, object], *, name: str) -> VerlSource:
    """Return what a configuration of verl in YAML says, flat; its `defaults` name the engine, or another file."""
    defaults = values.get(_DEFAULTS)
    entries = defaults if isinstance(defaults, list) else []
    groups = {str(key): value for entry in entries if isinstance(entry, Mapping) for key, value in entry.items()}
    groups = {
        key.removeprefix("override ").lstrip("/"): value for key, value in groups.items() if "$" not in str(value)
    }
    if ENGINE in values:
        groups[ENGINE] = values[ENGINE]
    megatron, faults = _engine(groups)
    others = [each for each in entries if isinstance(each, str) and each.lstrip("/") not in _OWN_SECTIONS | {name}]
    problem = "builds on a configuration whose values it does not state; state them in one file"
    faults += [Fault(key=_DEFAULTS, found=shortened(each, _LONGEST_SHOWN), problem=problem) for each in others]
    return VerlSource(
        values={key: value for key, value in values.items() if key != ENGINE},
        megatron=megatron or "ppo_megatron_trainer" in entries,
        is_configuration=True,
        names_engine=ENGINE in groups,
        faults=tuple(faults),
    )


def override_source(words: Sequence[str]) -> VerlSource:
    """Return the values of Hydra's overrides, ``key=value`` with ``+`` or ``++`` before it."""
    values: dict[str, object] = {}
    faults: list[Fault] = []
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        read_into(values, key, text, faults)
    groups = {ENGINE: values.pop(ENGINE)} if ENGINE in values else {}
    megatron, engine_faults = _engine(groups)
    return VerlSource(
        values=values,
        megatron=megatron,
        names_engine=bool(groups),
        added=frozenset(word.lstrip("+").partition("=")[0] for word in words if word.startswith("+")),
        new=frozenset(word[1:].partition("=")[0] for word in words if word.startswith("+") and word[1:2] != "+"),
        faults=(*faults, *engine_faults),
    )


def _engine(groups: Mapping[str, object]) -> tuple[bool, list[Fault]]:
    """Return whether groups of Hydra's configuration choose Megatron, and a fault per group that is not known."""
    faults = []
    is_megatron = False
    for key, value in groups.items():
        name = show(value)
        engine = (
            name if key == ENGINE else name.partition("_")[0] if key.startswith(("actor@", "ref@", "critic@")) else ""
        )
        if key == ENGINE or engine:
            is_megatron |= _ENGINES.get(engine, False)
            if engine not in _ENGINES:
                problem = "is an engine of verl that has no formulas here; those of FSDP (dp) and megatron are known"
                faults.append(Fault(key=key, found=shortened(name, _LONGEST_SHOWN), problem=problem))
    return is_megatron, faults


def _decides(key: str) -> bool:
    """Return whether a key may decide memory; a key of verl's trainer that verl does not have is of its logs."""
    if key in FREE_KEYS or key.startswith(FREE_PREFIXES):
        return False
    return not key.startswith("trainer.") or key in MEMORY_KEYS or changes_memory(key)


def _ambiguous(key: str, override: Override, name: str) -> Fault:
    """Return the fault of a value for which branches of a script differ."""
    found = shortened(override.text, _LONGEST_SHOWN)
    guard = shortened(override.because, _LONGEST_SHOWN) if override.because else "the machine"
    values = " or ".join(shortened(each, _LONGEST_SHOWN) or "empty" for each in override.alternatives)
    differs = f"is {values}" if values else "is not stated"
    return Fault(key=key, found=found, problem=f"{differs} in {name}, by its branch ({guard}); give {key}= as well")


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
    if any(source.is_configuration for source in sources):
        faults = [fault for fault in faults if fault.key != _CONFIG_NAME]
    added, new = (frozenset[str]().union(*(getattr(each, field) for each in sources)) for field in ("added", "new"))
    earlier = earlier_defaults(values, added, new)
    values.update(earlier.values)
    notes = [*(note for note in notes if note.key not in earlier.values), *earlier.notes]
    faults += earlier.faults
    return VerlSource(
        values=values,
        megatron=any(source.megatron for source in sources),
        names_engine=any(source.names_engine for source in sources),
        added=added,
        new=new,
        notes=tuple(notes),
        faults=tuple(faults),
    )


def _value(text: str) -> object:
    """Return the value of a text; the text itself where it is none, because most keys need no memory."""
    try:
        return read_value(text)
    except ValueTextError:
        return show(text)
