"""The operating systems that commands run on."""

import sys

from profiler.domain.errors import Fault, UsageError

_HINT = (
    "Use a container or, on Windows, WSL 2. estimate, solve, advise, replay and, without a command, monitor run on "
    "Linux, macOS and Windows."
)


def require_linux(key: str, found: str) -> None:
    """Check that this is Linux: trials, scripts and watched commands are followed by its /proc and its signals.

    Raises:
        UsageError: It is another system.
    """
    if not sys.platform.startswith("linux"):
        problem = f"runs on Linux only, and this is {sys.platform}"
        raise UsageError([Fault(key=key, found=found, problem=problem, hint=_HINT)])
