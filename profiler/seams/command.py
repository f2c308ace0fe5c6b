"""The command line of `python -m profiler.seams`: its option, how it is read, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, option, options_of
from profiler.config.options.run_options import option_lines
from profiler.domain.errors import Fault


@dataclass(frozen=True, kw_only=True)
class SeamsOptions:
    """The options, in the order of the help text."""

    lists_all: bool = option(
        False, FLAG, "list every detail, with the reason why the profiler relies on it", name="all"
    )


OPTIONS = options_of(SeamsOptions)
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    options: SeamsOptions
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(SeamsOptions, as_pairs(words))
    faults = (*(word_fault(word, OPTIONS) for word in given.others), *given.reader.faults)
    return Command(options=given.options, wants_help=given.wants_help, faults=faults)


def usage() -> str:
    """Return the help text."""
    return f"""\
Usage: python -m profiler.seams [all=true]

Compare what the profiler relies on in torch, trl, transformers, peft,
bitsandbytes and accelerate with the installed versions, and print what has
moved.

{option_lines(OPTIONS.values(), indent=18)}
Exit code: 0 if everything holds, 3 if something has moved.

Examples:
  python -m profiler.seams
  python -m profiler.seams all=true
  python -m profiler.seams all=true | grep -A 3 peft
"""
