"""Words of the tools of maintainers: `key=value`, which may be spelled as in every command."""

from collections.abc import Mapping, Sequence

from profiler.command_line import print_text
from profiler.config.options.command_words import as_pairs
from profiler.config.options.reading import unknown_key
from profiler.config.options.value_grammar import read_into
from profiler.domain.errors import Fault, UsageError


def read_words(words: Sequence[str], defaults: Mapping[str, object]) -> tuple[dict[str, object], list[Fault]]:
    """Return the value of each key of `defaults`, and the faults of `words`."""
    values: dict[str, object] = dict(defaults)
    faults: list[Fault] = []
    for word in as_pairs(words):
        key, equals, text = word.partition("=")
        if not equals:
            faults.append(Fault(key="argument", found=word, problem="is not of the form key=value"))
        elif key not in defaults:
            faults.append(unknown_key(key, text, tuple(defaults)))
        else:
            read_into(values, key, text, faults)
    return values, faults


def asks_for_help(words: Sequence[str], usage: str) -> bool:
    """Print `usage` if the words of a command that takes none ask for it, and return whether they do.

    Raises:
        UsageError: There are other words.
    """
    if {"-h", "--help"} & set(words):
        print_text(usage)
        return True
    if words:
        raise UsageError([Fault(key=words[0], found=words[0], problem="is unknown; the command takes no words")])
    return False
