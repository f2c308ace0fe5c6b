"""Words of a command line: how options are spelled, whose words they are, and the options that they set.

`--key value` and `--key=value` are other spellings of `key=value`, in every command.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from profiler.config.options.option import Option, options_of, read_sound
from profiler.config.options.reading import TextReader, unknown_key
from profiler.domain.errors import Fault

HELP_FLAGS = ("-h", "--help")

END = "--"
"""After this word none is ours."""

_OPTION = re.compile(r"--([A-Za-z_][\w.-]*)(=.*)?", re.DOTALL)
_NO_VALUE = re.compile(r"-(?![0-9.])|[+~]{0,2}[A-Za-z_][\w.]*=")
"""How a word begins that is not the value of the option before it: another option, which no number is, or `key=`."""


def as_pairs(words: Sequence[str], *, flags: Collection[str] = (), rest: str = "") -> tuple[str, ...]:
    """Return `words` with options as `key=value`: ``--num-generations 8`` becomes ``num_generations=8``.

    An option takes the word after it, unless that is another option or a `key=value`; `-1` is a value. An option
    without a value stays as it stands, so that the command refuses it.

    Args:
        words: Words of a command line.
        flags: Words that stay as they stand, besides those that ask for help.
        rest: The option whose value the words after `END` are, quoted as a shell reads them; empty for none.
    """
    left = list(words)
    pairs: list[str] = []
    while left:
        word = left.pop(0)
        if rest and word == END:
            return (*pairs, f"{rest}={shlex.join(left)}")
        option = None if word.partition("=")[0] in (*flags, *HELP_FLAGS) else _OPTION.fullmatch(word)
        if option is not None and option[2] is not None:
            pairs.append(_pair(option[1], option[2][1:]))
        elif option is not None and left and not _NO_VALUE.match(left[0]):
            pairs.append(_pair(option[1], left.pop(0)))
        else:
            pairs.append(word)
    return tuple(pairs)


def own_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return our words, as `key=value`, and those of the program that the command runs, as they stand.

    Ours end at the first word that is neither an option with its value nor a `key=value`, or at `END`, which is in
    neither.
    """
    place = 0
    while place < len(words) and words[place] != END:
        length = _own_length(words[place : place + 2])
        if length == 0:
            return as_pairs(words[:place]), tuple(words[place:])
        place += length
    return as_pairs(words[:place]), tuple(words[place + 1 :])


def wants_help_first(words: Sequence[str]) -> bool:
    """Return whether help is asked for before the program that the command runs, which has a `--help` of its own."""
    _, others = own_words(words)
    return bool(others) and others[0] in HELP_FLAGS and END not in words[: words.index(others[0])]


def _own_length(words: Sequence[str]) -> int:
    """Return how many of the first two words are one `key=value`; 0 for none."""
    for length in range(1, len(words) + 1):
        pairs = as_pairs(words[:length])
        if len(pairs) == 1 and "=" in pairs[0] and not pairs[0].startswith("-"):
            return length
    return 0


def _pair(name: str, value: str) -> str:
    return f"{name.replace('-', '_')}={value}"


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


CONFIG = "config"
"""The key that names the file of a job."""

_FILES_OF_JOBS = (".py", ".ipynb", ".sh", ".yaml", ".yml", ".json")


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
    elif CONFIG in known and word.endswith(_FILES_OF_JOBS):
        hint = f"Write {CONFIG}={word}."
    return Fault(key="argument", found=word or "(nothing)", problem="is not of the form key=value", hint=hint)
