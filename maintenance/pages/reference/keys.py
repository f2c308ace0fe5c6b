"""The page of all keys of a trial, with what each value means."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from maintenance.pages.members import marked, meanings_of, table, table_of
from profiler.config.options.reading import show
from profiler.domain.trials.keys import Group, Key, Kind, MemoryOrder
from profiler.domain.trials.recipe import ALL_RECIPES
from profiler.domain.trials.trial import TRIAL_KEYS

_HEAD = """\
# Keys

A trial is described by {count} keys, spelled as trl, transformers and peft spell them. Every command that answers for a
trial takes all of them, as `key=value`, `--key value` or `--key=value`. [How to describe a job](how_to/recipe.md) says
how files are read, [the refused combinations](reference/refused.md) which keys exclude each other, and
[run options](run_options.md) how a sweep runs its trials. Defaults are those of a trial; what a file of trl leaves
open has the defaults of [its release](reference/trl_releases.md)."""

_GROUPS: Mapping[Group, str] = {
    Group.PLACE: "Where the trial runs",
    Group.MODEL: "The model",
    Group.METHOD: "How it is trained",
    Group.DATA: "Weights, prompts and random numbers",
}

_ORDERS: Mapping[MemoryOrder, str] = {
    MemoryOrder.SAME: "",
    MemoryOrder.GROWS: "grows",
    MemoryOrder.ORDERED: "ordered",
    MemoryOrder.NO_EFFECT: "no effect",
}

_FOOT = """\
*grows*: a larger value never needs less memory. *ordered*: values have an order of their own, by which a sweep skips
trials that need at least as much as one that ran out of memory. *no effect*: memory does not depend on the key."""


def keys_page() -> str:
    """Return the whole page."""
    blocks = [_HEAD.format(count=len(TRIAL_KEYS))]
    for group, title in _GROUPS.items():
        blocks += [f"## {title}", _table([key for key in TRIAL_KEYS if key.group is group])]
    return "\n\n".join([*blocks, _FOOT, "## Values", *_values()]) + "\n"


def _table(keys: list[Key]) -> str:
    rows = [
        (f"`{key.name}`", _meaning(key), _default(key), key.unit, _allowed(key), _ORDERS[key.memory]) for key in keys
    ]
    return table(("key", "meaning", "default", "unit", "allowed", "memory"), rows)


def _default(key: Key) -> str:
    if key.name == "backend":
        return "`auto` in a sweep: `cuda` where a GPU is visible, else `simulated`"
    if key.required and not key.null_given:
        return "required"
    value = key.given_default if key.default is None and key.given_default is not None else key.default
    if value is None or value == "":
        return marked(key.null_given) or "`null`"
    return f"`{show(value)}`"


def _allowed(key: Key) -> str:
    if key.name == "gpu":
        return "[a card](reference/cards.md)"
    if key.name == "model":
        return "[a model](reference/models.md)"
    if key.allowed:
        return ", ".join(f"`{word}`" for word in key.allowed)
    words = {Kind.FLAG: "`true`, `false`", Kind.TEXT: "text", Kind.NAMES: "names", Kind.NUMBER: "a number"}
    return words.get(key.kind) or f"a whole number of at least {key.minimum}"


def _meaning(key: Key) -> str:
    parts = [marked(key.meaning)]
    if key.null:
        parts.append(f"null in tables: {marked(key.null)}")
    if key.recipes != ALL_RECIPES:
        parts.append("only with `recipe=" + "`, `".join(sorted(key.recipes)) + "`")
    others = [name for name in key.trl_names if name != key.name]
    if others:
        parts.append("in files of trl `" + "`, `".join(others) + "`")
    return "; ".join(parts)


def _values() -> Iterator[str]:
    """Yield a heading and a table for each key whose words mean more than they say."""
    for key in TRIAL_KEYS:
        choices: type[StrEnum] | None = key.choices
        if choices is not None and any(meanings_of(choices).values()):
            yield f"### {key.name}"
            yield table_of(choices)
