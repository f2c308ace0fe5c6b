"""Words of a command line: `--key value` and `--key=value` are other spellings of `key=value`, in every command."""

import re
from collections.abc import Collection, Sequence

HELP_FLAGS = ("-h", "--help")

END = "--"
"""After this word none is ours."""

_OPTION = re.compile(r"--([A-Za-z_][\w.-]*)(=.*)?", re.DOTALL)
_NO_VALUE = re.compile(r"-(?![0-9.])|[+~]{0,2}[A-Za-z_][\w.]*=")
"""How a word begins that is not the value of the option before it: another option, which no number is, or `key=`."""


def as_pairs(words: Sequence[str], *, flags: Collection[str] = ()) -> tuple[str, ...]:
    """Return `words` with options as `key=value`: ``--num-generations 8`` becomes ``num_generations=8``.

    An option takes the word after it, unless that is another option or a `key=value`; `-1` is a value. An option
    without a value stays as it stands, so that the command refuses it.

    Args:
        words: Words of a command line.
        flags: Words that stay as they stand, besides those that ask for help.
    """
    left = list(words)
    pairs = []
    while left:
        word = left.pop(0)
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
