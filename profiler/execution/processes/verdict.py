"""The outcome of a worker that left no record, from how it ended."""

import signal
from pathlib import Path

from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.execution.processes.child import EXIT_OWN_MEMORY_ERROR
from profiler.storage.files.foreign_files import open_regular

STDERR_LINES = 20
_STDERR_TAIL_BYTES = 64 * 1024


def judge(
    *,
    exit_code: int | None,
    timed_out: bool,
    timeout_s: float,
    wall_s: float,
    stderr_path: Path,
    stalled_s: float | None = None,
    oom_killed: bool = False,
) -> Outcome:
    """Return the outcome of a worker that ended without a record.

    Args:
        exit_code: As `multiprocessing` returns it; None for a process that could not be killed.
        timed_out: Whether its time was up before it ended.
        timeout_s: Its time limit.
        wall_s: How long it ran.
        stderr_path: Its output; the last lines go into the message.
        stalled_s: How long it had no heartbeat, if it was ended for that reason.
        oom_killed: Whether the kernel killed any process for lack of memory while it ran.
    """
    if stalled_s is not None:
        left = " It could not be killed." if exit_code is None else ""
        status, reason = Status.STALLED, f"The worker was alive but made no progress for {stalled_s:g} s.{left}"
    elif oom_killed and exit_code == -signal.SIGKILL:
        status, reason = Status.HOST_OOM, "The host had no memory left, and the kernel killed the worker."
    else:
        status, reason = _status_and_reason(exit_code, timed_out, timeout_s)
    printed = last_lines(stderr_path)
    verdict = Verdict(status=status, message=f"{reason}\n{printed}".rstrip())
    return Outcome(verdict=verdict, work=Work(wall_s=wall_s))


def _status_and_reason(exit_code: int | None, timed_out: bool, timeout_s: float) -> tuple[Status, str]:
    if timed_out:
        left = " and could not be killed" if exit_code is None else ""
        return Status.TIMEOUT, f"The worker had not ended after {timeout_s:g} s{left}."
    if exit_code == EXIT_OWN_MEMORY_ERROR:
        return Status.HOST_OOM, "The host had no memory left for the worker (MemoryError)."
    if exit_code is not None and exit_code < 0:
        name = _signal_name(-exit_code)
        return (Status.KILLED if name == "SIGKILL" else Status.FAILED), f"The worker was ended by {name}."
    if exit_code == 0:
        return Status.FAILED, "The worker ended with exit code 0 but wrote no record."
    return Status.FAILED, f"The worker ended with exit code {exit_code}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def last_lines(path: Path) -> str:
    """Return the last lines of a text file of any length; empty if there is no file, or a link to one."""
    try:
        with open_regular(path, follow_links=False) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _STDERR_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-STDERR_LINES:])
