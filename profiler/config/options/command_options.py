"""The options on a command line, read as their declarations say; the other words are left to the command."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from profiler.config.options.command_words import HELP_FLAGS
from profiler.config.options.option import Option, options_of, read_sound
from profiler.config.options.reading import TextReader, unknown_key
from profiler.domain.errors import Fault

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class Given(Generic[Options]):
    """Words of a command line."""

    options: Options
    """What has a fault has its default."""
    others: tuple[str, ...]
    """The words that set no option, in their order."""
    wants_help: bool
    reader: TextReader
    """Has the untyped values, and keeps the faults of the options."""


def read_given(declared: type[Options], pairs: Sequence[str]) -> Given[Options]:
    """Read `pairs`, in which options are `key=value` already. If an option is repeated, its last word counts."""
    known = options_of(declared)
    texts: dict[str, list[str]] = {}
    others = []
    for word in pairs:
        key, equals, text = word.partition("=")
        if equals and key in known:
            texts.setdefault(key, []).append(text)
        elif word not in HELP_FLAGS:
            others.append(word)
    reader = TextReader(
        {key: found[-1] for key, found in texts.items()}, {key: each.kind.read_text for key, each in known.items()}
    )
    for key, found in texts.items():
        if known[key].kind.adds_up:
            reader.put(key, [known[key].kind.read_text(text) for text in found])
    return Given(
        options=read_sound(declared, reader),
        others=tuple(others),
        wants_help=not set(pairs).isdisjoint(HELP_FLAGS),
        reader=reader,
    )


def word_fault(word: str, known: Mapping[str, Option], *, others: Collection[str] = (), hint: str = "") -> Fault:
    """Return the fault of a word that sets no option.

    Args:
        word: The word.
        known: The options of the command.
        others: Further keys of the command.
        hint: What helps if no key is near.
    """
    key, equals, text = word.partition("=")
    if equals and not key.startswith("-"):
        return unknown_key(key, text, (*others, *known), hint=hint)
    name = key.lstrip("-").replace("-", "_")
    if name in known:
        hint = f"Write {name}={known[name].kind.shown}."
    elif name in others:
        hint = f"Write {name}=VALUE."
    return Fault(key="argument", found=word or "(nothing)", problem="is not of the form key=value", hint=hint)
