"""Environments that `python -m profiler.emulation install` made, and the one that a user names instead."""

import os
from collections.abc import Mapping
from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.emulation.building.build import environments_folder, refuse_of_others

VARIABLE = "EMULATION_PYTHON"
"""Environment variable: the interpreter of an environment with a CUDA build of torch."""

COMPLETE = "emulation-complete"
"""File of an environment, written when its installation has finished."""


def installed_environment(environment: Mapping[str, str] | None = None) -> Path:
    """Return the interpreter that `VARIABLE` names, or that of the environment that was installed last.

    Raises:
        UsageError: There is none, or other users can write to it.
    """
    found = os.environ if environment is None else environment
    if given := found.get(VARIABLE):
        return Path(given).expanduser()
    complete = sorted(environments_folder(found).glob(f"*/{COMPLETE}"), key=lambda path: path.stat().st_mtime)
    if not complete:
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
    refuse_of_others(complete[-1].parent / "bin")
    return interpreter_in(complete[-1].parent)


def interpreter_in(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"
