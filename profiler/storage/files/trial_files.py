"""The files of trials in the folder of a grid: their names, memory snapshots, and locks between sweeps.

Names from outside are matched, not joined: a store, a slot and a folder that was copied name files as they like, and
``samples/../../x`` would be written outside the folder.

Locks: one per trial, so that two sweeps in one folder run each trial once, and one per GPU. A lock is held in the
kernel (`flock`, through the package filelock), so it ends with its holder, however that process ends. A lock file that
is left behind locks nothing.
"""

import errno
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from profiler.domain.errors import ProfilerError
from profiler.domain.text import plain
from profiler.storage.files.atomic import write_atomically

with suppress(ImportError):  # the core needs no locks
    from filelock import BaseFileLock, Timeout, UnixFileLock, WindowsFileLock

RECORDS = "records"
"""Folder of the records, in the folder of a grid."""

RANKS = "ranks"
"""Folder of what the ranks of trials on several GPUs leave, in the folder of a grid."""

_TRIAL_ID = re.compile("[0-9a-f]{16}")

_NAME = re.compile(
    rf"(?:{RANKS}/(?P<rank>0|[1-9][0-9]{{0,3}})/)?"
    rf"(?P<folder>{RECORDS}|samples|snapshots)/(?P<trial_id>{_TRIAL_ID.pattern})(?P<suffix>\.[a-z]+)"
)

_SUFFIXES = {RECORDS: (".json", ".stderr"), "samples": (".parquet",), "snapshots": (".pickle",)}
"""What each folder has of a trial, or of a rank."""


@dataclass(frozen=True, kw_only=True)
class TrialFile:
    """What the name of a file of a trial says."""

    folder: str
    """`RECORDS`, ``"samples"`` or ``"snapshots"``."""
    trial_id: str
    suffix: str
    rank: int | None
    """None for a file of the trial itself."""


def trial_file(name: str) -> TrialFile | None:
    """Return what a name says, relative to the folder of a grid and with slashes; None if no trial has such a file."""
    found = _NAME.fullmatch(name)
    if found is None or found["suffix"] not in _SUFFIXES[found["folder"]]:
        return None
    rank = None if found["rank"] is None else int(found["rank"])
    return TrialFile(folder=found["folder"], trial_id=found["trial_id"], suffix=found["suffix"], rank=rank)


def is_trial_id(text: str) -> bool:
    """Return whether a text has the form of a trial id."""
    return _TRIAL_ID.fullmatch(text) is not None


def write_memory_snapshot(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot to `path`, whole or not at all: pickled plain values, as torch's `_dump_snapshot` writes them.

    Raises:
        StorageError: The file could not be written.
    """
    write_atomically(path, pickle.dumps(dict(snapshot), protocol=4))


def snapshot_path(folder: Path, trial_id: str) -> Path:
    """Return the path of a trial's snapshot in a grid's folder, whether it exists or not."""
    return folder / "snapshots" / f"{trial_id}.pickle"


_MODE = 0o666
"""Every user of the machine may take the lock of a GPU, whatever the umask of the user who made the file."""


_NO_LOCKS = "Its file system has no locks: choose a folder on a local disk."
_NOT_OURS = "Remove it, or ask its owner to."
_HINTS: Mapping[int | None, str] = {
    errno.ENOLCK: _NO_LOCKS,
    errno.ENOTSUP: _NO_LOCKS,
    errno.ENOSYS: _NO_LOCKS,
    errno.ELOOP: "It is a symbolic link, and locks are not taken through one: remove it.",
    errno.EISDIR: _NOT_OURS,
    errno.EACCES: _NOT_OURS,
    errno.EPERM: _NOT_OURS,
}


SILENT_S = 1.0
"""How long a process waits for a lock before it says so."""


class LockError(ProfilerError):
    """A lock file that cannot be opened or locked."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno, "")
        super().__init__(f"{path}: could not be locked ({self.reason}). {hint}".rstrip())


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock that is held until `release`, to the end of a `with` block, or until nothing refers to it any more."""

    path: Path
    held: "BaseFileLock"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock and remove its file."""
        # filelock leaves the file. It is removed while the lock is still held: a process that waits for this file finds
        # it without a name afterwards, and starts again with a new one.
        with suppress(FileNotFoundError, PermissionError):  # another user's file, in a folder for all users
            self.path.unlink()
        self.held.release()


def to_stderr(line: str) -> None:
    """Write a line for the user."""
    with suppress(OSError):
        sys.stderr.write(f"{plain(line)}\n")


def wait_for_lock(path: Path, does: str, *, notify: Callable[[str], None] = to_stderr) -> Lock:
    """Return the lock on `path`, and say after a second that another process holds it.

    Args:
        path: File of the lock.
        does: What its holder does, as words after "another process that".
        notify: Receives the sentence.

    Raises:
        LockError: The file cannot be opened, or its file system has no locks.
    """
    lock = _taken(path, within_s=SILENT_S)
    if lock is None:
        notify(f"Waiting for another process that {does}.")
        lock = _taken(path, within_s=None)
    assert lock is not None
    return lock


def take_lock(path: Path, *, wait: bool) -> Lock | None:
    """Return the lock on `path`; None if another process holds it and `wait` is false.

    The caller says what it waits for; otherwise see `wait_for_lock`.

    Raises:
        LockError: The file cannot be opened, or its file system has no locks.
    """
    return _taken(path, within_s=None if wait else 0.0)


def _taken(path: Path, *, within_s: float | None) -> Lock | None:
    """Return the lock on `path`; None if another process holds it all the time."""
    # Without flock (some network volumes) filelock would use files instead, which stay locked when their holder is
    # killed: it has to fail. It opens no symbolic link.
    kind = WindowsFileLock if os.name == "nt" else UnixFileLock
    lock = kind(path, mode=_MODE, thread_local=False, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if within_s is None else within_s)
    except Timeout:
        return None
    except OSError as error:
        raise LockError(path, error) from error
    return Lock(path=path, held=lock)
