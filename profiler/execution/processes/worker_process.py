"""A worker as the parent sees it: its heartbeat, when it ends, and one that was forked from another.

Heartbeat of a trial: a file that the training touches at each phase.

The training itself touches it, because a separate thread would continue while the training hangs.
"""

import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from multiprocessing import process as process_module
from multiprocessing.process import BaseProcess
from pathlib import Path

from profiler.config.options.run_options import RunOptions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution.gpus import GpuSlot
from profiler.execution.trials import LockedTrial, Stamp, stamp_of


def beat(path: Path) -> None:
    """Record progress. Called by the worker, in the thread that trains."""
    path.touch()


class Heartbeat:
    """The parent's view of a heartbeat: the time since the last change that the parent noticed.

    Times of the worker's clock are not used; only the time counts when the parent saw the file change.
    """

    def __init__(self, path: Path, *, now_s: float) -> None:
        self.path = path
        self._seen: Stamp = stamp_of(path)
        self._seen_at_s = now_s
        self._began = False

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the last change; 0 before the first one, because some workers have no heartbeat."""
        stamp = stamp_of(self.path)
        if stamp != self._seen:
            self._seen, self._seen_at_s, self._began = stamp, now_s, True
        return now_s - self._seen_at_s if self._began else 0.0


EXIT_CODE_S = 10.0
"""Time to wait for the exit code of an ended process. The warmed process sends it within milliseconds."""

_NO_EXIT_CODE = 255
"""Exit code that multiprocessing reports if the warmed process ended before it sent one."""


class ForkedProcess:
    """A process that the warmed process has forked.

    The kernel reports its end (through a pidfd), also if the warmed process has ended or is stopped. Only the warmed
    process knows its exit code, which may be lost with it. On a kernel without pidfds a process counts as ended when
    its warmed process has ended.
    """

    def __init__(self, process: BaseProcess, *, server_runs: Callable[[], bool]) -> None:
        """`server_runs` returns whether the process that `process` was forked from still runs."""
        self._process = process
        self._server_runs = server_runs
        self._pidfd: int | None = None
        self._exited_at_s: float | None = None
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already
            self._exited_at_s = time.monotonic()
        except (AttributeError, OSError):
            pass

    @property
    def pid(self) -> int:
        """Process id, also that of the process group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the process ends, and then when its exit code arrives."""
        return self._process.sentinel if self._pidfd is None or self.has_exited else self._pidfd

    @property
    def has_exited(self) -> bool:
        """Whether the process is gone; its exit code may arrive later."""
        if self._exited_at_s is None and self._is_gone():
            self._exited_at_s = time.monotonic()
        return self._exited_at_s is not None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, and its exit code is known or no longer waited for."""
        return self.has_exited and (not self._process.is_alive() or time.monotonic() >= self.exit_code_due_s)

    @property
    def exit_code_due_s(self) -> float:
        """When waiting for the exit code ends, on the monotonic clock; infinite while the process runs."""
        return math.inf if self._exited_at_s is None else self._exited_at_s + EXIT_CODE_S

    @property
    def exit_code(self) -> int | None:
        """Exit code as `multiprocessing` returns it: the negative signal number for a signal. None if not known."""
        return self._process.exitcode

    @property
    def is_exit_code_lost(self) -> bool:
        """Whether the process has ended and its exit code is not known."""
        if not self.has_ended:
            return False
        return self.exit_code is None or (self.exit_code == _NO_EXIT_CODE and not self._server_runs())

    def close(self) -> None:
        """Release its descriptors. Forget a process that still runs: Python would wait for it at exit."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._process.is_alive():
            process_module._children.discard(self._process)  # type: ignore[attr-defined]
            return
        with suppress(ValueError):
            self._process.close()

    def _is_gone(self) -> bool:
        if self._pidfd is None:
            return not self._process.is_alive()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))


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
