"""`python -m profiler.emulation`: make an environment for the emulated card, and check one."""

import sys
from collections.abc import Sequence

from profiler.command_line import as_command, print_line
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.units import gib_text, mib_text
from profiler.emulation.checking import check
from profiler.emulation.command import INSTALL, Command, read_command
from profiler.emulation.environments.installing import install
from profiler.emulation.environments.pins import default_torch
from profiler.emulation.launch import EmulatedPython, emulated_python

USAGE = """\
python -m profiler.emulation install [torch=VERSION] [python=PATH]
python -m profiler.emulation check [python=PATH] [gpu=NAME] [strict=false]

torch's own CUDA build on a card that has memory and computes nothing. Linux on
x86-64, with gcc and g++; no GPU, no driver, no library of the vendor.

install makes an environment of its own (2 GB) in the cache folder; the present
one stays as it is.

  torch=VERSION   such as 2.13.0, which is the default
  python=PATH     the interpreter that makes the environment; by default this one

check builds the emulated libraries, once per installed torch, and runs a small
CUDA program.

  python=PATH     interpreter of an environment with a CUDA build of torch; by
                  default the installed one, or that in EMULATION_PYTHON
  gpu=NAME        the emulated card, also by a short name such as 4090
                  (default: h100-80gb)
  strict=false    accept a version of torch that was never tried, and entry
                  points of the driver that have no answer (default: true)

GRPO_VRAM_CACHE names another cache folder than ~/.cache/grpo-vram-profiler.

Examples:
  python -m profiler.emulation install
  python -m profiler.emulation check
  python -m profiler.emulation check gpu=4090"""


@as_command("emulation", when_interrupted="Run the same command: it starts again with what is not complete.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command = read_command(sys.argv[1:] if argv is None else argv)
    if command.faults:
        raise UsageError(command.faults)
    if command.wants_help:
        print_line(USAGE)
        return EXIT_OK
    python = _python(command)
    print_line(f"torch {python.torch}, CUDA {python.cuda}: {python.executable}")
    print_line(f"emulated libraries: {python.libraries}")
    found = check(python, command.gpu, strict=command.strict)
    print_line(
        f"{found.card} (emulated), {gib_text(found.memory_bytes, 2)}: a small program allocated "
        f"{mib_text(found.allocated_bytes)} and reserved {mib_text(found.reserved_bytes)}; values: {found.values}"
    )
    return EXIT_OK


def _python(command: Command) -> EmulatedPython:
    if command.action == INSTALL:
        torch = command.torch or default_torch()
        return emulated_python(install(torch, base=command.python, announce=print_line), strict=command.strict)
    return emulated_python(command.python, strict=command.strict)
