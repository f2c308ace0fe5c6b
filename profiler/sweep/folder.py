"""Whether results can be written where the user wants them, found out before anything starts."""

import os
import tempfile
from pathlib import Path

from profiler.domain.errors import Fault, UsageError

_KEY = "results_dir"


def writable_faults(folder: Path) -> list[Fault]:
    """What speaks against writing into `folder`, as far as can be told without making it."""
    ancestor = folder
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        return [_fault(folder, f"{ancestor} is no folder")]
    if not os.access(ancestor, os.W_OK | os.X_OK):
        return [_fault(folder, f"{ancestor} is not writable")]
    return []


def make_writable(folder: Path) -> None:
    """Make `folder` and write something into it.

    Raises:
        UsageError: It does not work.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError([_fault(folder, error.strerror or str(error))]) from error


def _fault(folder: Path, reason: str) -> Fault:
    return Fault(
        key=_KEY,
        found=str(folder.parent),
        problem=f"results cannot be written there ({reason})",
        hint=f"Name another folder with {_KEY}=PATH.",
    )
