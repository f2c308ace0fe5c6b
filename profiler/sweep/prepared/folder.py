"""Check before anything starts that results can be written to the chosen folder, and trials locked in it."""

from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.storage.files.atomic import StorageError, remove_abandoned, sync_folder, write_atomically
from profiler.storage.files.lock import LockError, take_lock
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.stores.folder_faults import HINT, RESULTS_DIR, not_writable

_CHECK = ".check"
"""File that is written, locked and removed again."""


def make_writable(folder: Path) -> str:
    """Create `folder` and its `records/`, and do in both what a sweep will do: write, rename, synchronise and lock.

    Temporary files of earlier sweeps that were killed are removed.

    Returns:
        A sentence about what its file system lacks, although a sweep can run there; empty if it lacks nothing.

    Raises:
        UsageError: The file system cannot do what a sweep needs.
    """
    records = folder / RECORDS
    try:
        remove_abandoned(folder)
        _write_into(folder, folder)
        _write_into(records, folder)
        lock = take_lock(records / f"{_CHECK}.lock", wait=False)
        if lock is not None:  # otherwise another sweep checks the same folder, so locks work
            lock.release()
        synchronised = sync_folder(records)
    except LockError as error:
        problem = f"trials cannot be locked in {records} ({error.reason})"
        raise UsageError([Fault(key=RESULTS_DIR, found=str(folder.parent), problem=problem, hint=HINT)]) from error
    except OSError as error:
        raise UsageError([not_writable(folder, error.strerror or str(error))]) from error
    if synchronised:
        return ""
    lacks = "its file system cannot synchronise folders, so a power failure can undo the last finished trials"
    return Fault(
        key=RESULTS_DIR,
        found=str(folder.parent),
        problem=lacks,
        hint=f"To avoid that, choose another folder with {RESULTS_DIR}=PATH.",
    ).sentence()


def _write_into(each: Path, folder: Path) -> None:
    """Write a file into `each`, which is `folder` or below it, and remove it."""
    try:
        write_atomically(each / _CHECK, b"checked")
        (each / _CHECK).unlink(missing_ok=True)
    except StorageError as error:
        why = getattr(error.__cause__, "strerror", None) or str(error)
        raise UsageError([not_writable(folder, why if each == folder else f"{each}: {why}")]) from error
