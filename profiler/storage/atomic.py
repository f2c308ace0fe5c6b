"""Atomic writes: a file exists whole or not at all."""

import os
from pathlib import Path

from profiler.domain.errors import ProfilerError


class StorageError(ProfilerError):
    """Storage failed: the disk is full or not writable, or a table contradicts itself."""


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`: write to a temporary name, fsync, rename. Create a missing folder.

    Raises:
        StorageError: The file could not be written; nothing partial is left, and what was there before still is.
    """
    # The process id keeps two writers of one path from truncating each other's temporary file.
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
    """Remove temporary files that killed writers of `<folder>/*/<stem>.*` left. No other writer may be active."""
    for beside in folder.glob(f"*/.{stem}.*.part"):
        beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # Without this a power failure can undo the rename.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
