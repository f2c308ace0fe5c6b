"""The operating systems that commands run on, and how other Python processes are started there."""

import sys
from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import listed

LINUX = "Linux"
SYSTEMS = (LINUX, "macOS", "Windows")
"""Those that the core runs on."""


def require_linux(key: str, found: str, *, everywhere: str) -> None:
    """Check that this is Linux: trials, scripts and watched commands are followed by its /proc and its signals.

    Args:
        key: What needs it.
        found: The words of the user.
        everywhere: The commands that run on every system, for the sentence.

    Raises:
        UsageError: It is another system.
    """
    if not sys.platform.startswith("linux"):
        problem = f"runs on {LINUX} only, and this is {sys.platform}"
        hint = f"Use a container or, on Windows, WSL 2. {everywhere} run on {listed(SYSTEMS)}."
        raise UsageError([Fault(key=key, found=found, problem=problem, hint=hint)])


def safe_path_flags() -> tuple[str, ...]:
    """Return `-P`, unless this process finds modules in the current folder too, as `python -m` does.

    `python -m` and `python -c` look there first. The current folder can be a checkout of somebody else, whose
    ``yaml.py`` a child of the console script would run.
    """
    return () if _finds_in_current_folder() else ("-P",)


def safe_path_variables() -> dict[str, str]:
    """Return the environment variable that does what `safe_path_flags` does, for those whose flags are not ours."""
    return {} if _finds_in_current_folder() else {"PYTHONSAFEPATH": "1"}


def _finds_in_current_folder() -> bool:
    return "" in sys.path or str(Path.cwd()) in sys.path
