"""A worker as the parent sees it: when it ends, when its time is up, and how it is ended."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from profiler.config.options.run_options import RunOptions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution.gpus import GpuSlot
from profiler.execution.processes.forked import ForkedProcess
from profiler.execution.processes.heartbeat import Heartbeat
from profiler.execution.trials.claim import LockedTrial

GRACE_S = 5.0
"""Time from SIGTERM to SIGKILL, and from SIGKILL until the process is given up."""

_CHECKS_PER_STALL = 4
"""How often a worker's heartbeat is checked within `stall_s`."""


class _Stage(IntEnum):
    RUNNING = 0
    ASKED_TO_END = 1
    KILLED = 2
    GIVEN_UP = 3


class WorkerProcess:
    """The process group of one trial. Never blocks; its owner waits for `sentinel` or `deadline_s`."""

    def __init__(
        self,
        process: ForkedProcess,
        *,
        claim: LockedTrial,
        siblings: Sequence[LockedTrial],
        options: RunOptions,
        heartbeat: Heartbeat,
        slots: Sequence[GpuSlot],
        oom_kills_before: int | None,
    ) -> None:
        """Watch a worker that has just started.

        Args:
            process: The worker.
            claim: Its trial.
            siblings: Trials that it answers along with its own.
            options: Its time limits.
            heartbeat: The parent's view of its progress.
            slots: Its GPUs, one per rank; empty if it needs none.
            oom_kills_before: Processes that the kernel had killed for lack of memory before the start.
        """
        self.claim = claim
        self.siblings = tuple(siblings)
        self.slots = tuple(slots)
        self.heartbeat = heartbeat
        self.oom_kills_before = oom_kills_before
        self.stalled = False
        """Whether it is ended because its heartbeat stopped."""
        self._options = options
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + min(options.timeout_s, options.stall_s / _CHECKS_PER_STALL)
        self._process = process
        self._stage = _Stage.RUNNING

    @property
    def trial(self) -> PlannedTrial:
        """The trial that it runs."""
        return self.claim.trial

    @property
    def claims(self) -> tuple[LockedTrial, ...]:
        """Its trial and the siblings."""
        return (self.claim, *self.siblings)

    @property
    def stderr_path(self) -> Path:
        """File with its stdout and stderr."""
        return self.claim.stderr_path

    @property
    def deadline_s(self) -> float:
        """When to call `escalate_if_due` or `ended` again, on the monotonic clock."""
        return self._process.exit_code_due_s if self._process.has_exited else self._deadline_s

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when `ended` is to be checked again."""
        return self._process.sentinel

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for: the process is gone, or cannot be killed."""
        return self._stage is _Stage.GIVEN_UP or self._process.has_ended

    @property
    def is_lost(self) -> bool:
        """Whether it ended by itself and its exit code was lost with the warmed process: its trial is not to blame."""
        return self._stage is _Stage.RUNNING and self._process.is_exit_code_lost

    @property
    def is_exit_code_late(self) -> bool:
        """Whether it has ended and the warmed process, which has not, does not send its exit code."""
        return self._process.has_ended and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit code as `multiprocessing` returns it: the negative signal number for a signal. None if not killable."""
        return self._process.exit_code

    @property
    def timed_out(self) -> bool:
        """Whether its time was up before it ended."""
        return self._stage is not _Stage.RUNNING and not self.stalled

    @property
    def unkillable(self) -> bool:
        """Whether it was given up, and may run for ever."""
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
        """Return whether its time is up; otherwise set the time of the next check."""
        timeout_at_s = self._started_s + self._options.timeout_s
        if now_s >= timeout_at_s:
            return True
        self.stalled = self.heartbeat.silent_s(now_s) >= self._options.stall_s
        self._deadline_s = min(timeout_at_s, now_s + self._options.stall_s / _CHECKS_PER_STALL)
        return self.stalled

    def _advance(self, now_s: float) -> None:
        self._stage = _Stage(self._stage + 1)
        self._deadline_s = now_s + GRACE_S
        if self._stage is _Stage.ASKED_TO_END:
            self._signal_group(signal.SIGTERM)
        elif self._stage is _Stage.KILLED:
            self._signal_group(signal.SIGKILL)

    def kill_group(self) -> None:
        """SIGKILL all that is left of its group."""
        self._signal_group(signal.SIGKILL)

    def end_now(self) -> None:
        """Send SIGTERM, unless that was done; then `escalate_if_due` counts the grace period."""
        if self._stage is _Stage.RUNNING and not self.ended:
            self._advance(time.monotonic())

    def clean_up(self) -> None:
        """Release descriptors after its end. The caller ends its group, frees its GPU and releases its claims."""
        self.heartbeat.path.unlink(missing_ok=True)
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
