"""`python -m profiler.seams`: which details of other libraries hold for the installed versions."""

import logging
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from profiler.command_line import as_command, print_error, print_text, readable
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.seams.checked.checking import MovedSeam, find_moved
from profiler.seams.checked.tested import TESTED, installed, untested
from profiler.seams.command import read_command, usage
from profiler.seams.registry import SEAMS


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
    with readable():
        console = Console()
        console.print(_versions(moved))
        if command.options.lists_all:
            console.print(_details(moved))
    for each in moved:
        print_error(str(each))
    return EXIT_SOME_TRIALS_FAILED if moved else EXIT_OK


def _versions(moved: Sequence[MovedSeam]) -> Table:
    """One row per library."""
    table = Table("library", "installed", "tested", "seams", "moved")
    never_tested = untested()
    for library, tested in TESTED.items():
        count = sum(seam.library == library for seam in SEAMS)
        mark = " (never tested)" if library in never_tested else ""
        table.add_row(
            library,
            f"{installed(library) or 'not installed'}{mark}",
            ", ".join(tested),
            str(count),
            str(sum(each.seam.library == library for each in moved)),
        )
    return table


def _details(moved: Sequence[MovedSeam]) -> Table:
    """One row per seam."""
    table = Table("seam", "expected", "since", "holds", "used by", "why", show_lines=True)
    problems = {each.seam.key: each.problem for each in moved}
    for seam in SEAMS:
        table.add_row(
            seam.key,
            str(seam.expected),
            seam.since,
            problems.get(seam.key, "yes"),
            "\n".join(seam.used_by),
            seam.why,
        )
    return table
