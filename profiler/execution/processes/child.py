"""A worker process from inside: its set-up and end; and the verdict on one that left no record."""

import faulthandler
import fcntl
import importlib
import multiprocessing
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from profiler.domain.errors import ProfilerError
from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.execution.job import WorkerJob
from profiler.storage.files.atomic import last_resort
from profiler.storage.files.foreign_files import open_regular

_COUNTER = "oom_kill"


def oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes the kernel has killed for lack of memory; None if it has no such counter.

    Counts our cgroup, or the whole machine if the cgroup has no counter.
    """
    for path in (*_of_our_cgroup(proc, cgroups), proc / "vmstat"):
        found = _read(path)
        if found is not None:
            return found
    return None


def _of_our_cgroup(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if not controllers:  # version 2
            found += [cgroups / inside / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            # In a container the path is that of the host, and the group itself is mounted.
            found += [cgroups / "memory" / inside / "memory.oom_control", cgroups / "memory" / "memory.oom_control"]
    return found


def _read(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.split()[:1] == [_COUNTER]]
    return int(counts[0]) if counts else None


EXIT_OWN_MEMORY_ERROR = 112
"""Exit code of a worker after a `MemoryError`: the host, not the GPU, had no memory left."""

EXIT_END_OF_SWEEP = 113
"""Exit code of a worker after an `EndOfSweepError`."""

_OOM_SCORE_ADJ = "800"
"""From -1000 (killed never) to 1000 (killed first). A process may raise its own value without privileges."""


class EndOfSweepError(Exception):
    """Raised by a worker for a cause that every other worker would meet too. The text is shown to the user."""


def run_child(job: WorkerJob, target: str) -> None:
    """Run `target` on `job`, in a process group that does not outlive the parent.

    Args:
        job: The trial.
        target: Dotted name of a function that takes the job: ``"package.module:function"``. Imported only here, so
            that the parent does not import what the worker needs, and a failing import is reported like any failure.
    """
    os.setsid()
    _end_with_parent()
    redirect_output(job.stderr_path)
    faulthandler.enable()
    _offer_to_the_oom_killer()
    # The warmed process blocks it. From here on, a traceback goes to the worker's own file.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if job.place.gpu_uuids:
        # CUDA reads this at its first call, and the warmed process has not called CUDA.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(job.place.gpu_uuids)
    run_reported(job, lambda each: _resolve(target)(each))


def run_nothing() -> None:
    """End at once. The first fork waits for the imports of the warmed process, and can be given up without harm."""


def run_reported(job: WorkerJob, run: Callable[[WorkerJob], None]) -> None:
    """Run a job; after an error, report it on stderr and end this process with the exit code of the error."""
    try:
        with last_resort("worker", file=Path(job.stderr_path)):
            _run(job, run)
    except ProfilerError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def _run(job: WorkerJob, run: Callable[[WorkerJob], None]) -> None:
    try:
        run(job)
    except EndOfSweepError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(EXIT_END_OF_SWEEP)
    except MemoryError:
        traceback.print_exc()
        sys.stderr.flush()
        # Not sys.exit: with no memory left, clean-up may hang or fail.
        os._exit(EXIT_OWN_MEMORY_ERROR)


def _end_with_parent() -> None:
    """End this process group when the parent ends, which holds the other end of the sentinel's pipe.

    A parent-death signal would depend on the fork server, which lives as long as its children do.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_with(parent.sentinel)


def end_with(pipe: int) -> None:
    """Have the kernel SIGKILL this process group, grandchildren included, when the other end of a pipe is closed.

    With O_ASYNC and F_SETSIG the kernel sends a signal then, also to a process that hangs in C code, which a watching
    thread would not end. Linux only.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()
    closed.register(pipe, 0)
    if closed.poll(0):  # it was closed before the signal was set up
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _offer_to_the_oom_killer() -> None:
    """Make the kernel kill a worker, and not the sweep, if the host runs out of memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)


def redirect_output(path: str) -> None:
    """Send stdout and stderr to `path`, as file descriptors: also the output of C libraries and of crashes.

    The file is new: what an earlier worker, or somebody else, has left there can be a link to any file.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _resolve(target: str) -> Callable[[WorkerJob], None]:
    """Return the function with this dotted name."""
    module, _, function = target.partition(":")
    return cast(Callable[[WorkerJob], None], getattr(importlib.import_module(module), function))


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
