"""The parsed command line of `python -m profiler.seams`."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.command_words import as_pairs
from profiler.config.reading import TextReader
from profiler.domain.errors import Fault, UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line without faults."""

    lists_all: bool
    """Whether every detail is listed."""


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program).

    Raises:
        UsageError: Another word than the only key is there, or its value is not one.
    """
    given = [word.partition("=") for word in as_pairs(words)]
    faults = [_unknown(key, text) for key, _, text in given if key != "all"]
    reader = TextReader({key: text for key, _, text in given if key == "all"})
    lists_all = bool({"all"} & {key for key, _, _ in given}) and reader.flag("all")
    if faults := [*faults, *reader.faults]:
        raise UsageError(faults)
    return Command(lists_all=lists_all)


def _unknown(key: str, value: str) -> Fault:
    return Fault(key=key, found=value or "given", problem="is unknown; the only key is all", hint=nearest(key, ["all"]))
