"""`python -m profiler.seams`: which details of other libraries hold for the installed versions."""

import logging
import sys
from collections.abc import Sequence

from profiler.command_line import as_command, print_error, print_text
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.rendering.document import Block, Column, Details, Document, Section, Table, Text, text_columns
from profiler.rendering.layouts.plain_text import plain_text
from profiler.seams.checked import TESTED, MovedSeam, find_moved, installed, untested
from profiler.seams.command import read_command, usage
from profiler.seams.libraries import SEAMS
from profiler.seams.seam import Seam


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
