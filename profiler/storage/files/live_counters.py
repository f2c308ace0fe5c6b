"""Counters that profiled processes publish while they run: one small file per process, in a folder of the user.

The driver knows neither retries nor failed allocations, and a process cannot read the counters of another one.
"""

import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from profiler.domain.memory import Phase
from profiler.domain.runs.readings import LiveCounters
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.files.typed_json import JSON, JsonMismatchError, from_json, to_json

LIVE_FOLDER = "GRPO_VRAM_LIVE_DIR"
"""Environment variable: the folder, in place of one in the folder of temporary files."""

_MOST_BYTES = 1 << 16
_MOST_FILES = 10_000
_PERIOD_S = 1.0
_START = 19
"""Place of the start time in `/proc/PID/stat`, after the name of the program."""


def live_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the files, whether it exists or not."""
    given = (os.environ if environment is None else environment).get(LIVE_FOLDER)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"grpo-vram-{_user()}"


def _user() -> int | None:
    """Return the number of the user; None on Windows, where the folder of temporary files is the user's own."""
    return os.getuid() if hasattr(os, "getuid") else None


class AllocatorCounters(Protocol):
    """Counters of torch's allocator in this process."""

    def allocated_bytes(self) -> int:
        """Return the bytes in tensors now."""

    def reserved_bytes(self) -> int:
        """Return the bytes that the allocator holds now."""

    def alloc_retries(self) -> int:
        """Return how often it has released its cache and retried."""

    def failed_allocations(self) -> int:
        """Return how many allocations have failed."""


class LivePublisher:
    """Publishes the counters of this process, at most once a second."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` names what runs in this process."""
        self._what = what
        self._clock = clock
        self._folder = live_folder()
        self._due_s = clock()

    def offer(self, gpu_uuid: str, phase: Phase, step: int, counters: AllocatorCounters) -> None:
        """Publish the counters, unless that was done less than a second ago."""
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _PERIOD_S
        pid = os.getpid()
        publish(
            LiveCounters(
                pid=pid,
                started=process_start(pid),
                gpu_uuid=gpu_uuid,
                what=self._what,
                phase=phase,
                step=step,
                allocated_bytes=counters.allocated_bytes(),
                reserved_bytes=counters.reserved_bytes(),
                alloc_retries=counters.alloc_retries(),
                out_of_memory=counters.failed_allocations(),
            ),
            self._folder,
        )

    def withdraw(self) -> None:
        """Remove what was published."""
        withdraw(os.getpid(), self._folder)


def publish(counters: LiveCounters, folder: Path) -> None:
    """Write the counters of this process; do nothing if that fails, because the training is more important.

    The file is renamed into place, so that no reader sees half of it. It is not synchronised: it is of no use later.
    """
    with suppress(OSError):
        if not _is_ours(folder):
            return
        path = folder / f"{counters.pid}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(to_json(counters)))
        temporary.replace(path)


def withdraw(pid: int, folder: Path) -> None:
    """Remove the counters of a process that ends."""
    with suppress(OSError):
        (folder / f"{pid}.json").unlink(missing_ok=True)


def published(folder: Path) -> tuple[LiveCounters, ...]:
    """Return the counters of all processes that still run, and remove the files of those that do not."""
    found = []
    with suppress(OSError):
        if not folder.is_dir() or not _is_ours(folder):
            return ()
        for path in sorted(folder.glob("*.json"))[:_MOST_FILES]:
            counters = _read(path)
            if counters is not None and counters.started == process_start(counters.pid):
                found.append(counters)
            elif counters is not None:
                path.unlink(missing_ok=True)
    return tuple(found)


def process_start(pid: int) -> int:
    """Return when a process began, in ticks since the machine started; 0 if it does not run, or without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        # The name of the program is in parentheses and can contain spaces.
        return int(text.rpartition(")")[2].split()[_START])
    except (OSError, ValueError, IndexError):
        return 0


def _read(path: Path) -> LiveCounters | None:
    try:
        content: JSON = json.loads(read_bytes(path, most_bytes=_MOST_BYTES))
        return from_json(LiveCounters, content)
    except (OSError, ValueError, RecursionError, JsonMismatchError):
        return None


def _is_ours(folder: Path) -> bool:
    """Make the folder if it is missing; return whether it is a folder that only this user can write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or _user() is None:
        return stat.S_ISDIR(found.st_mode)
    return found.st_uid == _user() and not found.st_mode & 0o022
