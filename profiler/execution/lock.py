"""Locks between sweeps: one a trial, so that two sweeps in one folder run each trial once, and one a GPU.

A lock is the kernel's (`flock`), so it ends with its holder, however that one ends; a lock file that is left behind
locks nothing.
"""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock that is held until `release`."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Give the lock to whoever waits for it."""
        # Unlinked while still held: whoever gets this inode afterwards sees that it is no longer at `path`.
        with suppress(FileNotFoundError, PermissionError):  # another user's, in a folder for all
            self.path.unlink()
        os.close(self.descriptor)


def take_lock(path: Path, *, wait: bool) -> Lock | None:
    """The lock on `path`; None if another process holds it and `wait` is false.

    With `wait` the call sleeps in the kernel until the holder lets go or ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:  # Ctrl-C while waiting
            os.close(descriptor)
            raise
        if _is_still_at(path, descriptor):
            return Lock(path=path, descriptor=descriptor)
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        # Another user made it. A lock can be had on a file that may only be read.
        return os.open(path, os.O_RDONLY)


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one at `path`: the holder before us unlinks it when it lets go."""
    try:
        at_path = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (at_path.st_dev, at_path.st_ino) == (opened.st_dev, opened.st_ino)
