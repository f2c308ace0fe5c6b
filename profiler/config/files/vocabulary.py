"""The names that a format has for keys of trl, as one table, and the reading of a file by it.

A format that is read is a row of `foreign_formats.FORMATS` with such a table; a user's own YAML has one as well.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from profiler.config.files.own_keys import memory_key
from profiler.config.options.reading import show
from profiler.config.trl.arguments.keys import CONTAINERS, FREE_KEYS, KEY_OF, is_trl_key
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe

Rule = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Returns keys of trl that follow from the file's keys by their paths, and that no single key states."""

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
    rules: tuple[Rule, ...] = ()
    """What several keys decide together; they win over single keys."""
    free: frozenset[str] = frozenset()
    """Keys that change no memory."""
    changes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that change memory and have no equal in trl, each with the values that change nothing, as null does."""


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
    faults: tuple[Fault, ...]


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
    leaves = dict(leaves_of(values))
    for path, value in leaves.items():
        key = _trl_name(vocabulary, path)
        if key is None:
            unknown.append(path)
            faults.extend(_without_equal(vocabulary, name, path, value))
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
    recipe = None
    if vocabulary.recipe_key and leaves.get(vocabulary.recipe_key) is not None:
        recipe = vocabulary.recipes.get(leaves[vocabulary.recipe_key])
        if recipe is None:
            faults.append(_no_recipe(vocabulary, leaves[vocabulary.recipe_key]))
    return Translation(
        values={**vocabulary.defaults, **found},
        read=tuple(read),
        unknown=tuple(path for path in unknown if path != vocabulary.recipe_key),
        recipe=recipe,
        faults=tuple(faults),
    )


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
    return last if is_trl_key(last) and path not in vocabulary.free else None


def _without_equal(vocabulary: Vocabulary, name: str, path: str, value: object) -> Iterator[Fault]:
    """Return the fault of a key that changes memory and is not read."""
    last = path.rpartition(".")[2]
    neutral = vocabulary.changes.get(path, vocabulary.changes.get(f"*.{last}"))
    if neutral is not None and value is not None and value not in neutral:
        problem = f"of {name} ({vocabulary.version}) changes memory in a way that has no formula"
        yield Fault(key=path, found=show(value), problem=problem)
    elif neutral is None and path not in vocabulary.free and last not in vocabulary.free:
        key = memory_key(path) if value not in (None, False, "", "auto", "none", "default") else ""
        if key:
            problem = f"is {path} in {name}, and trl has no key of that name"
            yield Fault(key=key, found=show(value), problem=problem, hint=f"Give {key}= as well.")


def _no_recipe(vocabulary: Vocabulary, found: object) -> Fault:
    problem = f"is a trainer of {vocabulary.version} without a recipe here; the recipes are {', '.join(Recipe)}"
    return Fault(key="recipe", found=show(found), problem=problem)
