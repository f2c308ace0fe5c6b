"""The operating systems that commands run on."""

import sys

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
