"""Untyped values of the keys of a trial, read as their declarations say."""

import sys
from collections.abc import Mapping
from typing import Any

from profiler.config.options.reading import FieldReader, show
from profiler.domain.errors import Fault
from profiler.domain.trials.keys import Key, Kind
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS

DEFAULTS: Mapping[str, object] = {
    key.name: None if key.null_given else key.default for key in TRIAL_KEYS if key.null_given or not key.required
}
"""Values of the keys that a user leaves out, as a user would write them. `backend` and `model` have no default."""


def read_given(reader: FieldReader, key: Key) -> Any:  # noqa: ANN401  of any key
    """Return the value of `key` that a user wrote; for null, where that is allowed, what null always means or None."""
    name = key.name
    if reader.value(name) is None and key.null_given:
        return key.given_default
    match key.kind:
        case Kind.CHOICE if key.choices is not None:
            return reader.choice(name, key.choices)
        case Kind.CHOICE:
            return reader.word(name, key.values)
        case Kind.COUNT:
            return reader.count(name, minimum=key.minimum, maximum=key.maximum, why=key.why_minimum)
        case Kind.NUMBER:
            return reader.number(name)
        case Kind.FLAG:
            return reader.flag(name)
        case Kind.NAMES:
            return reader.names(name)
        case Kind.TEXT:
            return reader.text(name, key.meaning + (", or null" if key.null_given else ""))


def read_stored(reader: FieldReader, key: Key) -> Any:  # noqa: ANN401  of any key
    """Return the value of `key` in a stored specification. Bounds of a user's values are not checked again."""
    name, value = key.name, reader.value(key.name)
    if value is None and key.null:
        return None
    if key.kind is Kind.COUNT:
        return reader.count(name, minimum=min(key.minimum, 1), maximum=None)
    if key.kind is Kind.NUMBER:
        return reader.number(name, maximum=sys.float_info.max)
    if key.kind is Kind.CHOICE and key.choices is None:
        # A card that the program no longer knows is still part of what was stored.
        return reader.text(name, "a word")
    if key.kind is Kind.TEXT and value == key.default:
        return value
    return read_given(reader, key)


def without_other_recipes(
    values: Mapping[str, Any], recipe: Recipe, keys: tuple[Key, ...] = TRIAL_KEYS
) -> dict[str, Any]:
    """Return `values` where each key that `recipe` does not have says that it has no meaning."""
    other = {key.name: key.without_meaning for key in keys if recipe not in key.recipes}
    return {**values, **other}


def other_recipe_faults(
    values: Mapping[str, object], recipe: Recipe, keys: tuple[Key, ...] = TRIAL_KEYS
) -> list[Fault]:
    """Return one fault per value that a user gave to a key that `recipe` does not have; a default is no fault."""
    return [
        Fault(
            key=key.name,
            found=show(values[key.name]),
            problem=f"has no meaning with recipe={recipe}",
            hint=f"Leave it out, or use recipe={' or recipe='.join(sorted(key.recipes))}.",
        )
        for key in keys
        if recipe not in key.recipes and key.name in values and values[key.name] not in (None, key.default)
    ]
