"""Environments with torch's CUDA build: finding and making them."""

import os
from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.emulation.cache import environments_folder

VARIABLE = "EMULATION_PYTHON"
"""Environment variable: the interpreter of an environment with a CUDA build of torch."""


def installed_environment() -> Path:
    """Return the interpreter that `VARIABLE` names, or that of the environment that was installed last.

    Raises:
        UsageError: There is none.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given)
    found = sorted(environments_folder().glob("*/bin/python"), key=lambda path: path.lstat().st_mtime)
    if not found:
        raise UsageError(
            [
                Fault(
                    key="python",
                    found="none",
                    problem="no environment with a CUDA build of torch was found",
                    hint=f"Run python -m profiler.emulation install, or set {VARIABLE} to an interpreter.",
                )
            ]
        )
    return found[-1]
