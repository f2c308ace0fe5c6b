"""Locks between sweeps: one per trial, so that two sweeps in one folder run each trial once, and one per GPU.

A lock is held in the kernel (`flock`, through the package filelock), so it ends with its holder, however that process
ends. A lock file that is left behind locks nothing.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock, Timeout, UnixFileLock, WindowsFileLock

from profiler.domain.errors import ProfilerError

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


class LockError(ProfilerError):
    """A lock file that cannot be opened or locked."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno, "")
        super().__init__(f"{path}: could not be locked ({self.reason}). {hint}".rstrip())


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock that is held until `release`, or until this value is no longer referenced."""

    path: Path
    held: BaseFileLock

    def release(self) -> None:
        """Release the lock and remove its file."""
        # filelock leaves the file. It is removed while the lock is still held: a process that waits for this file finds
        # it without a name afterwards, and starts again with a new one.
        with suppress(FileNotFoundError, PermissionError):  # another user's file, in a folder for all users
            self.path.unlink()
        self.held.release()


def take_lock(path: Path, *, wait: bool) -> Lock | None:
    """Return the lock on `path`; None if another process holds it and `wait` is false.

    Raises:
        LockError: The file cannot be opened, or its file system has no locks.
    """
    # Without flock (some network volumes) filelock would use files instead, which stay locked when their holder is
    # killed: it has to fail. It opens no symbolic link.
    kind = WindowsFileLock if os.name == "nt" else UnixFileLock
    lock = kind(path, mode=_MODE, thread_local=False, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=wait)
    except Timeout:
        return None
    except OSError as error:
        raise LockError(path, error) from error
    return Lock(path=path, held=lock)
