"""A worker as the parent sees it: when it ends, when its time is up, and how it is ended."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.process import BaseProcess
from pathlib import Path

from profiler.domain.trial import PlannedTrial
from profiler.execution.lock import TrialLock

GRACE_S = 5.0
"""From SIGTERM to SIGKILL, and from SIGKILL until the process is given up."""


RecordStamp = tuple[int, int] | None
"""Identity of a stored record's file (inode, time of change); None for no file."""


def record_stamp(path: Path) -> RecordStamp:
    """What tells a record that a worker has just written from one that lay there before."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """A trial that another trial's worker answers along with its own."""

    trial: PlannedTrial
    lock: TrialLock
    stamp_before: RecordStamp


class _Stage(IntEnum):
    RUNNING = 0
    ASKED_TO_END = 1
    KILLED = 2
    GIVEN_UP = 3


class WorkerProcess:
    """One trial's process group. Never blocks; whoever owns it waits for `sentinel` or `deadline_s`."""

    def __init__(
        self,
        process: BaseProcess,
        *,
        trial: PlannedTrial,
        lock: TrialLock,
        stderr_path: Path,
        stamp_before: RecordStamp,
        timeout_s: float,
        siblings: Sequence[Sibling] = (),
    ) -> None:
        self.trial = trial
        self.siblings = tuple(siblings)
        self.lock = lock
        self.stderr_path = stderr_path
        self.stamp_before = stamp_before
        self.deadline_s = time.monotonic() + timeout_s
        self._started_s = time.monotonic()
        self._process = process
        self._stage = _Stage.RUNNING

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for: the process is gone, or cannot be killed."""
        return self._stage is _Stage.GIVEN_UP or not self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """As `multiprocessing` gives it: minus the signal's number for a signal. None if it could not be killed."""
        return self._process.exitcode

    @property
    def timed_out(self) -> bool:
        """Whether its time was up before it ended."""
        return self._stage is not _Stage.RUNNING

    @property
    def elapsed_s(self) -> float:
        """Time since it started."""
        return time.monotonic() - self._started_s

    def press(self) -> None:
        """If the deadline has passed, take the next step: SIGTERM to the group, then SIGKILL, then give up."""
        if time.monotonic() < self.deadline_s or self.ended:
            return
        self._stage = _Stage(self._stage + 1)
        self.deadline_s = time.monotonic() + GRACE_S
        if self._stage is _Stage.ASKED_TO_END:
            self._signal_group(signal.SIGTERM)
        elif self._stage is _Stage.KILLED:
            self._signal_group(signal.SIGKILL)

    def end_now(self) -> None:
        """Ask it to end, unless it has been asked; from here on `press` counts the grace."""
        if not self.timed_out:
            self.deadline_s = time.monotonic()
            self.press()

    def clean_up(self) -> None:
        """After its end: kill what is left of its group, and let go of its lock."""
        self._signal_group(signal.SIGKILL)
        self.lock.release()
        for sibling in self.siblings:
            sibling.lock.release()
        with suppress(ValueError):  # cannot be closed while it cannot be killed
            self._process.close()

    def _signal_group(self, number: signal.Signals) -> None:
        pid = self._process.pid
        if pid is None:
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # Either all are gone, or the child has not yet made its group.
            if self._process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
