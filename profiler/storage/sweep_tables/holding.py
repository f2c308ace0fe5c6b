"""The tables of a folder are written by one process at a time, and opened while nobody replaces them."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from profiler.storage.files.lock import LockError, wait_for_lock
from profiler.storage.tables.table_files import TableFile, open_tables

_LOCK = "tables.lock"
"""Held from the first record that is read: for minutes, if there are many."""

_REPLACING_LOCK = "replacing.lock"
"""Held while files are opened or get their names, so that a reader waits for a moment only."""


def writing_tables(folder: Path) -> AbstractContextManager[None]:
    """Hold the tables of a folder, which is created if missing, from the first record that is read.

    Otherwise a sweep could replace the tables of another one by its own, which know fewer records.

    Raises:
        LockError: The folder cannot be written, or its file system has no locks.
    """
    return _held(folder / _LOCK, f"writes the tables of {folder}")


def replacing_tables(folder: Path) -> AbstractContextManager[None]:
    """Keep readers out of a folder whose tables are written, while the files get their names.

    Raises:
        LockError: The folder cannot be written, or its file system has no locks.
    """
    return _held(folder / _REPLACING_LOCK, f"opens the tables of {folder}")


def tables_to_read(folder: Path) -> Mapping[str, TableFile]:
    """Open the tables of a folder while no sweep replaces them: all of them are of the same sweep.

    A folder that cannot be locked, such as one that may only be read, is opened as it is.

    Raises:
        UsageError: Some of them are missing or cannot be used; carries every fault found.
    """
    lock = None
    with suppress(LockError):
        if folder.is_dir():
            lock = wait_for_lock(folder / _REPLACING_LOCK, f"replaces the tables of {folder}")
    try:
        return open_tables(folder, required=True)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _held(path: Path, does: str) -> Iterator[None]:
    lock = wait_for_lock(path, does)
    try:
        yield
    finally:
        lock.release()
