"""Set-up and end of a worker process, around its job."""

import faulthandler
import fcntl
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from profiler.domain.errors import ProfilerError
from profiler.execution.job import WorkerJob
from profiler.storage.files.last_resort import last_resort

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
    """Have the kernel SIGKILL this process group, grandchildren included, when the parent ends.

    The parent holds the other end of the sentinel's pipe. With O_ASYNC and F_SETSIG the kernel sends a signal when that
    end is closed, also to a worker that hangs in C code. A watching thread would not end such a worker, and a
    parent-death signal would depend on the fork server, which lives as long as its children do.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if not parent.is_alive():  # it ended before the signal was set up
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
