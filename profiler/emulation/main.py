"""`python -m profiler.emulation`: make an environment for the emulated card, and check one."""

import sys
from collections.abc import Sequence
from pathlib import Path

from profiler.command_line import as_command, print_line, print_text
from profiler.commands import COMMANDS
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.memory import gib_text, mib_text
from profiler.emulation.command import INSTALL, Command, EmulationOptions, read_command, usage
from profiler.emulation.installing import Contents, default_torch, for_trials, install, of_file
from profiler.emulation.launch import EmulatedPython, check, emulated_python


@as_command("emulation", when_interrupted="Run the same command: it starts again with what is not complete.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command = read_command(sys.argv[1:] if argv is None else argv)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.faults:
        raise UsageError(command.faults)
    python = _python(command)
    print_line(f"torch {python.torch}, CUDA {python.cuda}: {python.executable}")
    print_line(f"emulated libraries: {python.libraries}")
    found = check(python, KNOWN_GPUS[command.options.gpu], strict=command.options.strict)
    print_line(
        f"{found.card} (emulated), {gib_text(found.memory_bytes, 2)}: a small program allocated "
        f"{mib_text(found.allocated_bytes)} and reserved {mib_text(found.reserved_bytes)}; values: {found.values}"
    )
    return EXIT_OK


def _python(command: Command) -> EmulatedPython:
    options = command.options
    python = None if options.python is None else Path(options.python)
    if command.action == INSTALL:
        python = install(_contents(options), base=python, announce=print_line)
    return emulated_python(python, strict=options.strict)


def _contents(options: EmulationOptions) -> Contents:
    if options.requirements is None:
        found = for_trials(options.torch or default_torch())
    else:
        found = of_file(Path(options.requirements).expanduser().absolute())
        if options.torch is not None and options.torch != found.torch:
            problem = f"and {options.requirements} pins {found.torch}"
            raise UsageError([Fault(key="torch", found=options.torch, problem=problem, hint="Leave one of them out.")])
    if found.has_trainer:
        COMMANDS["emulation"].uses[INSTALL].check("command", INSTALL)
    return found
