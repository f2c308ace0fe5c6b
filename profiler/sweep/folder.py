"""Check before anything starts that results can be written to the chosen folder."""

import os
import tempfile
from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.storage.foreign_files import Kind, kind_of, reason

_KEY = "results_dir"


def writable_faults(folder: Path) -> list[Fault]:
    """Return the faults of `folder` that can be found without creating it."""
    ancestor = folder
    try:
        while (kind := kind_of(ancestor)) is Kind.MISSING and ancestor != ancestor.parent:
            ancestor = ancestor.parent
    except OSError as error:
        return [_fault(folder, reason(error))]
    if kind is not Kind.FOLDER:
        return [_fault(folder, f"{ancestor} is not a folder")]
    if not os.access(ancestor, os.W_OK | os.X_OK):
        return [_fault(folder, f"{ancestor} is not writable")]
    return []


def make_writable(folder: Path) -> None:
    """Create `folder` and write a temporary file into it.

    Raises:
        UsageError: The folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError([_fault(folder, error.strerror or str(error))]) from error


def _fault(folder: Path, why: str) -> Fault:
    return Fault(
        key=_KEY,
        found=str(folder.parent),
        problem=f"results cannot be written there ({why})",
        hint=f"Choose another folder with {_KEY}=PATH.",
    )
