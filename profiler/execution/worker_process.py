"""A worker as the parent sees it: when it ends, when its time is up, and how it is ended."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from profiler.domain.trial import PlannedTrial
from profiler.execution.forked import ForkedProcess
from profiler.execution.gpus import GpuSlot
from profiler.execution.heartbeat import Heartbeat
from profiler.execution.lock import Lock
from profiler.execution.stamp import Stamp

GRACE_S = 5.0
"""From SIGTERM to SIGKILL, and from SIGKILL until the process is given up."""


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """A trial that another trial's worker answers along with its own."""

    trial: PlannedTrial
    lock: Lock
    stamp_before: Stamp


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a worker is waited for."""

    timeout_s: float
    """For all of it."""
    stall_s: float
    """Without a sign of life, once there was one."""


_LOOKS_A_STALL = 4
"""How often a worker is looked at within `stall_s`."""


class _Stage(IntEnum):
    RUNNING = 0
    ASKED_TO_END = 1
    KILLED = 2
    GIVEN_UP = 3


class WorkerProcess:
    """One trial's process group. Never blocks; whoever owns it waits for `sentinel` or `deadline_s`."""

    def __init__(
        self,
        process: ForkedProcess,
        *,
        trial: PlannedTrial,
        lock: Lock,
        stderr_path: Path,
        stamp_before: Stamp,
        timeouts: Timeouts,
        heartbeat: Heartbeat,
        slot: GpuSlot | None = None,
        oom_kills_before: int | None = None,
        siblings: Sequence[Sibling] = (),
    ) -> None:
        self.trial = trial
        self.siblings = tuple(siblings)
        self.lock = lock
        self.stderr_path = stderr_path
        self.stamp_before = stamp_before
        self.slot = slot
        self.heartbeat = heartbeat
        self.oom_kills_before = oom_kills_before
        self.stalled = False
        """Whether it is ended because no sign of life came."""
        self._timeouts = timeouts
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + min(timeouts.timeout_s, timeouts.stall_s / _LOOKS_A_STALL)
        self._process = process
        self._stage = _Stage.RUNNING

    @property
    def deadline_s(self) -> float:
        """When `press` or `ended` is to be asked again, on the monotonic clock."""
        return self._process.exit_code_due_s if self._process.has_exited else self._deadline_s

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when `ended` is to be asked again."""
        return self._process.sentinel

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for: the process is gone, or cannot be killed."""
        return self._stage is _Stage.GIVEN_UP or self._process.has_ended

    @property
    def is_lost(self) -> bool:
        """Whether it ended by itself and its exit code is lost with the warmed process: its trial is not to blame."""
        return self._stage is _Stage.RUNNING and self._process.is_exit_code_lost

    @property
    def is_exit_code_late(self) -> bool:
        """Whether it has ended and the warmed process, which has not, does not send its exit code."""
        return self._process.has_ended and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """As `multiprocessing` gives it: minus the signal's number for a signal. None if it could not be killed."""
        return self._process.exit_code

    @property
    def timed_out(self) -> bool:
        """Whether its time was up before it ended."""
        return self._stage is not _Stage.RUNNING and not self.stalled

    @property
    def unkillable(self) -> bool:
        """Whether it was given up, and may go on for ever."""
        return self._stage is _Stage.GIVEN_UP and not self._process.has_exited

    @property
    def elapsed_s(self) -> float:
        """Time since it started."""
        return time.monotonic() - self._started_s

    def escalate_if_due(self) -> None:
        """If its time is up or it has stalled, take the next step: SIGTERM to the group, then SIGKILL, then give up."""
        now_s = time.monotonic()
        if now_s < self._deadline_s or self.ended or self._process.has_exited:
            return
        if self._stage is _Stage.RUNNING and not self._is_up(now_s):
            return
        self._advance(now_s)

    def _is_up(self, now_s: float) -> bool:
        """Whether it has had its time; else sets when to look again."""
        timeout_at_s = self._started_s + self._timeouts.timeout_s
        if now_s >= timeout_at_s:
            return True
        self.stalled = self.heartbeat.silent_s(now_s) >= self._timeouts.stall_s
        self._deadline_s = min(timeout_at_s, now_s + self._timeouts.stall_s / _LOOKS_A_STALL)
        return self.stalled

    def _advance(self, now_s: float) -> None:
        self._stage = _Stage(self._stage + 1)
        self._deadline_s = now_s + GRACE_S
        if self._stage is _Stage.ASKED_TO_END:
            self._signal_group(signal.SIGTERM)
        elif self._stage is _Stage.KILLED:
            self._signal_group(signal.SIGKILL)

    def kill_group(self) -> None:
        """SIGKILL whatever is left of its group."""
        self._signal_group(signal.SIGKILL)

    def end_now(self) -> None:
        """Ask it to end, unless it has been asked; from here on `press` counts the grace."""
        if self._stage is _Stage.RUNNING and not self.ended:
            self._advance(time.monotonic())

    def clean_up(self) -> None:
        """After its end: release its locks and descriptors. Its group and its GPU are the caller's to end and free."""
        self.heartbeat.path.unlink(missing_ok=True)
        self.lock.release()
        for sibling in self.siblings:
            sibling.lock.release()
        self._process.close()

    def _signal_group(self, number: signal.Signals) -> None:
        pid = self._process.pid
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # Either all are gone, or the child has not yet made its group.
            if not self._process.has_exited:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
