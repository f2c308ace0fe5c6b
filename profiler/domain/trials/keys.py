"""The declaration of a key of a trial. Every list of keys in this project is derived from these declarations."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from profiler.domain.trials.recipe import ALL_RECIPES, Recipe

MAX_COUNT = 2**31 - 1
"""Largest count of a key: a product of two still fits into a table's column of 64 bits."""

_METADATA = "declaration"


class Kind(StrEnum):
    """The kind of value that a key has, derived from its type."""

    CHOICE = "choice"
    """One of a closed set of words."""
    COUNT = "count"
    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"
    NAMES = "names"
    """A list of words."""


class Group(StrEnum):
    """What a key describes."""

    PLACE = "place"
    """Where the trial runs."""
    MODEL = "model"
    METHOD = "method"
    """How the model is trained."""
    DATA = "data"
    """Where weights, prompts and random numbers come from."""


class MemoryOrder(StrEnum):
    """How the memory of a trial follows one key while the others stay equal."""

    SAME = "same"
    """No order: two trials are compared only where they have the same value."""
    GROWS = "grows"
    """A larger number never needs less memory, within the limits that `profiler.config.trials.demand` states."""
    ORDERED = "ordered"
    """An order of its own, which `profiler.config.trials.demand` defines."""
    NO_EFFECT = "no effect"
    """Memory does not depend on the key."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Everything about a key that its name, type and default do not say."""

    meaning: str
    """A phrase for the documentation of tables."""
    group: Group
    memory: MemoryOrder
    unit: str
    null: str
    """What null means in a specification; empty where it is never null."""
    null_given: str
    """What a user's null, or a key that the user leaves out, means; empty where null is refused."""
    given_default: object
    """The value that a user's null means where that is one value; None where it depends on other keys."""
    values: tuple[str, ...]
    """The allowed words of a text; empty where any text is allowed or the type lists them."""
    hints: Mapping[str, str]
    """What to do about words that are not allowed, by word."""
    minimum: int
    maximum: int
    why_minimum: str
    trl_names: tuple[str, ...]
    """The names of the same key in trl's configuration files."""
    recipes: frozenset[Recipe]
    """The recipes in which the key has a meaning."""
    since: str
    """The version that added the key; empty for the keys of version 0.1.0."""
    earlier: object
    """The value that trials of versions before `since` had."""


def declared(
    meaning: str,
    *,
    group: Group,
    memory: MemoryOrder,
    unit: str = "",
    null: str = "",
    null_given: str = "",
    given_default: object = None,
    values: tuple[str, ...] = (),
    hints: Mapping[str, str] = MappingProxyType({}),
    minimum: int = 1,
    maximum: int = MAX_COUNT,
    why_minimum: str = "",
    trl_names: tuple[str, ...] = (),
    recipes: frozenset[Recipe] = ALL_RECIPES,
    since: str = "",
    earlier: object = None,
) -> Mapping[str, Declaration]:
    """Return the `metadata` of the dataclass field of a key; arguments as in `Declaration`."""
    return {
        _METADATA: Declaration(
            meaning=meaning,
            group=group,
            memory=memory,
            unit=unit,
            null=null,
            null_given=null_given,
            given_default=given_default,
            values=values,
            hints=hints,
            minimum=minimum,
            maximum=maximum,
            why_minimum=why_minimum,
            trl_names=trl_names,
            recipes=recipes,
            since=since,
            earlier=earlier,
        )
    }


@dataclass(frozen=True, kw_only=True)
class Key(Declaration):
    """One key of a trial."""

    name: str
    kind: Kind
    choices: type[StrEnum] | None
    """The type of a `CHOICE` whose values are an enumeration."""
    default: object
    """Value in a specification that does not state the key; None where `required`."""
    required: bool
    """Whether a specification has to state the key."""

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers, so that trials can be placed along an axis of the key."""
        return self.kind in (Kind.COUNT, Kind.NUMBER)

    @property
    def allowed(self) -> tuple[str, ...]:
        """The allowed words; empty where they are not a closed set."""
        return tuple(map(str, self.choices)) if self.choices is not None else self.values

    @property
    def assumed(self) -> object:
        """The value where nothing states the key; None where it depends on other keys."""
        return self.default if self.given_default is None else self.given_default

    @property
    def without_meaning(self) -> object:
        """Value in a specification whose recipe does not have the key: null where it can be null, else the default."""
        return None if self.null else self.default


def keys_of(specification: type[Any]) -> tuple[Key, ...]:
    """Return the keys that the fields of a dataclass declare, in order."""
    types = get_type_hints(specification)
    return tuple(_key(each, types[each.name]) for each in fields(specification))


def _key(field: Field[Any], hint: object) -> Key:
    kind, choices = _kind(hint)
    declaration: Declaration = field.metadata[_METADATA]
    return Key(
        **vars(declaration),
        name=field.name,
        kind=Kind.CHOICE if declaration.values else kind,
        choices=choices,
        default=None if field.default is MISSING else field.default,
        required=field.default is MISSING,
    )


_KINDS: Mapping[object, Kind] = {bool: Kind.FLAG, int: Kind.COUNT, float: Kind.NUMBER, str: Kind.TEXT}


def _kind(hint: object) -> tuple[Kind, type[StrEnum] | None]:
    """Return the kind of a type, which may be optional, and the enumeration if it is one."""
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return Kind.NAMES, None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Kind.CHOICE, hint
    return _KINDS[hint], None
