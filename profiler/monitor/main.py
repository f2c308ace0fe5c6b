"""`python -m profiler.monitor [key=value ...] [COMMAND ...]`: the GPUs now, or the memory of any command.

Exit codes: docs/exit_codes.md. With a command its own exit code, 128 + n if signal n ended it.
"""

import sys
from collections.abc import Sequence

from profiler.command_line import as_command, print_error, print_text
from profiler.commands import COMMANDS, WATCHING
from profiler.config.options.command_words import wants_help_first
from profiler.domain.errors import EXIT_OK, Fault, ProfilerError, UsageError
from profiler.monitor.command import Command, read_command, usage
from profiler.storage.files.atomic import last_resort
from profiler.storage.files.foreign_files import expanded, reason

MONITOR = "monitor"
"""Folder of the results of commands, in `results_dir`."""


@as_command(MONITOR)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if wants_help_first(words):
        print_text(usage())
        return EXIT_OK
    command = read_command(words)
    if command.words:
        return _watch(command)
    from profiler.monitor.gpus import Machine, show_gpus

    show_gpus(command.options, Machine())
    return EXIT_OK


def _watch(command: Command) -> int:
    """Run and sample the command; its exit code stays, whatever happens to the results."""
    COMMANDS[MONITOR].uses[WATCHING].check("command", f"{MONITOR} {command.words[0]}")
    from profiler.monitor.watch.running import signals_wait
    from profiler.monitor.watch.watching import report, watch

    try:
        folder = expanded(str(command.options.results_dir)) / MONITOR / command.name
    except OSError as error:
        found = str(command.options.results_dir)
        raise UsageError(
            [Fault(key="results_dir", found=found, problem=f"cannot be used ({reason(error)})")]
        ) from error
    with signals_wait() as mask:
        watched = watch(command, folder, mask)
    try:
        with last_resort(MONITOR, folder=folder):
            report(folder, watched)
    except ProfilerError as error:
        print_error(str(error))
    return watched.exit_code
