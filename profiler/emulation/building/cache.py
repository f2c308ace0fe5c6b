"""Where built libraries and environments are kept."""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from profiler.domain.errors import Fault, UsageError

VARIABLE = "GRPO_VRAM_CACHE"
"""Environment variable: a folder for built libraries and environments, instead of the user's cache folder."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder: `VARIABLE`, or `grpo-vram-profiler` in the XDG cache folder.

    The folder keeps the former name of the distribution, and what is in it.
    """
    found = os.environ if environment is None else environment
    if given := found.get(VARIABLE):
        return Path(given).expanduser().absolute()
    home = Path(found.get("HOME") or Path.home())
    return Path(found.get("XDG_CACHE_HOME") or home / ".cache") / "grpo-vram-profiler"


def libraries_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of built libraries; one folder in it per torch."""
    return cache_folder(environment) / "emulated_libraries"


def environments_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of environments that `python -m profiler.emulation install` made."""
    return cache_folder(environment) / "emulated_environments"


_SILENT_S = 1.0
"""How long a process waits for another one before it says so."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def alone(lock: Path, does: str, *, announce: Callable[[str], None] = _to_stderr) -> Iterator[None]:
    """Let one process at a time into the block, and say after a second that it waits.

    Args:
        lock: File of the lock.
        does: What the other process does, as words after "another process that".
        announce: Receives the sentence.
    """
    held = FileLock(lock)
    try:
        held.acquire(timeout=_SILENT_S)
    except Timeout:
        announce(f"Waiting for another process that {does}.")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def refuse_of_others(folder: Path) -> None:
    """Refuse a folder of the cache whose files another user could have written: they are run with our rights.

    Looks at the folder, what is directly in it, and the folders above it up to the cache folder. Those of root count as
    ours; so does a group that has only its user, as `umask 002` makes on many systems.

    Raises:
        UsageError: It can be written by others.
    """
    cache = cache_folder()
    above = [each for each in folder.parents if each == cache or cache in each.parents]
    try:
        for path in (*above, folder, *sorted(folder.iterdir())):
            if not _is_ours(path.lstat()):
                hint = f"Remove it, or set {VARIABLE} to a folder of your own."
                problem = "can be written by other users, and what is in it would be run"
                raise UsageError([Fault(key=VARIABLE, found=str(path), problem=problem, hint=hint)])
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_ours(found: os.stat_result) -> bool:
    if found.st_uid not in (os.getuid(), 0):
        return False
    if stat.S_ISLNK(found.st_mode):
        return True
    own_group = found.st_gid in (os.getuid(), 0)
    return not found.st_mode & stat.S_IWOTH and (own_group or not found.st_mode & stat.S_IWGRP)
