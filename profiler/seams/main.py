"""`python -m profiler.seams`: its options, and which details of other libraries hold for the installed versions."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from profiler.command_line import as_command, print_error, print_text
from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, option, options_of
from profiler.config.options.run_options import option_lines
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, Fault, UsageError
from profiler.rendering.document import Block, Column, Details, Document, Section, Table, Text, text_columns
from profiler.rendering.layouts.plain_text import plain_text
from profiler.seams.checked import TESTED, MovedSeam, find_moved, installed, untested
from profiler.seams.libraries import SEAMS
from profiler.seams.seam import Seam


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


@as_command("seams")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    command = read_command(arguments)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.faults:
        raise UsageError(command.faults)
    # At its import bitsandbytes warns about a kernel for the CPU that the profiler does not use.
    logging.disable(logging.WARNING)
    moved = find_moved(SEAMS)
    print_text(plain_text(_document(moved, lists_all=command.options.lists_all)))
    for each in moved:
        print_error(str(each))
    return EXIT_SOME_TRIALS_FAILED if moved else EXIT_OK


def _document(moved: Sequence[MovedSeam], *, lists_all: bool) -> Document:
    blocks: list[Block] = [_versions(moved)]
    if lists_all:
        problems = {each.seam.key: each.problem for each in moved}
        blocks += [Section("", [_details(seam, problems.get(seam.key, ""))]) for seam in SEAMS]
    return Document(title="Seams", blocks=blocks)


def _versions(moved: Sequence[MovedSeam]) -> Table:
    """Return one row per library."""
    never_tested = untested()
    rows = []
    for library, tested in TESTED.items():
        count = sum(seam.library == library for seam in SEAMS)
        mark = " (never tested)" if library in never_tested else ""
        number = f"{installed(library) or 'not installed'}{mark}"
        rows.append((library, number, ", ".join(tested), str(count), str(_count(moved, library))))
    numbers = (Column(title=title) for title in ("seams", "moved"))
    return Table((*text_columns(("library", "installed", "tested")), *numbers), rows)


def _count(moved: Sequence[MovedSeam], library: str) -> int:
    return sum(each.seam.library == library for each in moved)


def _details(seam: Seam, problem: str) -> Details:
    """Return what is expected of a name, whether it holds, and what relies on it."""
    expected = f"expected: {seam.expected}; since {seam.since}; {problem or 'holds'}"
    return Details(seam.key, [Text(expected), Text(seam.why), Text(f"used by {', '.join(seam.used_by)}")])
