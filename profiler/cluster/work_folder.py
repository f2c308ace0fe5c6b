"""Folders that a slot's trials write to, on the machine of the slot."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from profiler.storage.files.lock import LockError, take_lock, wait_for_lock

_PREFIX = "grpo-vram-slot-"
_LOCK = "slot.lock"

_YOUNG_S = 60.0
"""Age of a folder up to which its slot may not have locked it yet."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder that exists, locked, while the block runs."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        lock = wait_for_lock(Path(name) / _LOCK, f"looks whether {name} is in use")
        try:
            yield Path(name)
        finally:
            lock.release()


def remove_abandoned() -> None:
    """Remove the folders of slots that were killed: the kernel has released their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, LockError):  # another user's, or removed meanwhile
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            lock = take_lock(folder / _LOCK, wait=False)
            if lock is not None:
                shutil.rmtree(folder)
                lock.release()
