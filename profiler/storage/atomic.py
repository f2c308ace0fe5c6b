"""Files that are there whole or not at all."""

import os
from pathlib import Path

from profiler.domain.errors import ProfilerError


class StorageError(ProfilerError):
    """The disk did not take or give what it should: full, unwritable, or a table that contradicts itself."""


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`: written beside, fsynced, renamed. Makes the folder where it is missing.

    Raises:
        StorageError: The file could not be written; nothing partial is left, and what was there before still is.
    """
    # The process id keeps two writers of one path from truncating each other's file.
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


def remove_partial(folder: Path, stem: str) -> None:
    """Remove what killed writers of `<folder>/*/<stem>.*` left next to it. The caller alone may write these files."""
    for beside in folder.glob(f"*/.{stem}.*.part"):
        beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # Without this the rename itself can be lost with the power.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
