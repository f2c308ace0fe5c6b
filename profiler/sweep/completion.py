"""Shell completion for `grpo-vram sweep`: Hydra's own, which knows the grids and the keys.

Hydra completes the words of a command, and has no notion of a subcommand. So its script is changed to ask
`grpo-vram sweep`, and the word `sweep` is removed from the line that it completes.
"""

import io
import os
import sys
from contextlib import redirect_stdout

from profiler.domain.errors import EXIT_OK
from profiler.sweep.command import COMPLETION_FLAGS, Command
from profiler.sweep.composition import show_instead

_PROGRAM, _SUBCOMMAND = "grpo-vram", "sweep"

_ASK = " -sc query="
"""How Hydra's scripts ask a program for completions."""

_LINE = "COMP_LINE"
"""Environment variable with the command line that is completed."""


def is_completion(command: Command) -> bool:
    """Return whether a command line asks for completions, or for the script that installs completion."""
    return any(flag.partition("=")[0] in COMPLETION_FLAGS for flag in command.show_flags)


def complete(command: Command) -> int:
    """Print Hydra's answer to `--shell-completion`, and return the exit code."""
    line = os.environ.get(_LINE)
    if line is not None:
        words = line.split(maxsplit=2)
        if words[1:2] != [_SUBCOMMAND]:
            return EXIT_OK
        rest = line.partition(_SUBCOMMAND)[2].lstrip()
        os.environ[_LINE] = f"{_PROGRAM} {rest}"
    script = io.StringIO()
    try:
        with redirect_stdout(script):
            code = show_instead(command, program=_PROGRAM)
    finally:
        if line is not None:
            os.environ[_LINE] = line
    sys.stdout.write(script.getvalue().replace(_ASK, f" {_SUBCOMMAND}{_ASK}"))
    return code
