"""The warmed process, which workers are forked from: slow imports happen once.

It is restarted when it ends or hangs. Workers outlive it, and its end does not count as a failure of their trials.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Timer
from types import ModuleType

from profiler.domain.errors import EXIT_INTERNAL, Fault, ProfilerError, UsageError
from profiler.domain.machines.extras import safe_path_variables
from profiler.execution.job import WorkerJob, WorkerProgram
from profiler.execution.processes.child import run_child, run_nothing
from profiler.execution.processes.worker_process import ForkedProcess
from profiler.execution.pythons import Interpreter, starting_with
from profiler.measurement.driver.visible import capability_environment, visible_gpus
from profiler.measurement.samples.host_usage import usable_cores

FORK_S = 60.0
"""Time limit of one fork after the imports. A fork takes milliseconds."""

RESTARTS = 2
"""How often the warmed process is restarted in one sweep."""

_MOST_SOCKET_FOLDER = 75
"""Longest path of a folder for sockets: a socket's path has at most 107 bytes, and multiprocessing adds 32."""

_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")

_END_S = 5.0
"""Time to wait for the end of the warmed process after a connection to it broke, or after SIGKILL."""


# The tracker looks after shared memory and semaphores, which are not used here. If it is killed, a new one starts.
warnings.filterwarnings("ignore", message="resource_tracker: process died unexpectedly", category=UserWarning)


_started_for: dict[int | None, tuple[Interpreter | None, tuple[str, ...]]] = {}
"""The Python of the warmed process of this Python process and what it imports, by its id."""


class WarmProcessError(ProfilerError):
    """The warmed process ends or hangs repeatedly."""

    exit_code = EXIT_INTERNAL


class WarmProcess:
    """The warmed process of this Python process: multiprocessing's fork server, under observation."""

    def __init__(
        self, program: WorkerProgram, *, jobs: int, warm_up_s: float, interpreter: Interpreter | None = None
    ) -> None:
        """Nothing starts yet.

        Args:
            program: The code of the workers.
            jobs: How many workers run at the same time.
            warm_up_s: Time limit of the imports.
            interpreter: The Python of the workers; None for this one.
        """
        self.jobs = jobs
        self._program = program
        self._interpreter = interpreter
        self._warm_up_s = warm_up_s
        self._pid: int | None = None
        self._is_warm = False
        self._restarts = 0
        self._problems: list[str] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence per restart."""
        return tuple(
            f"The process that workers are forked from {what}. It was restarted."
            for what in self._problems[: self._restarts]
        )

    def start(self) -> None:
        """Start the warmed process if there is none. It imports while the caller continues.

        If a module cannot be imported, the worker reports it.
        """
        # Not above: the warmed process would import what it names while this package itself is being imported.
        from profiler.execution.processes import preload

        _use_short_socket_paths()
        forkserver.set_forkserver_preload([preload.__name__])
        modules = {preload.VARIABLE: ",".join(self._program.preload)}
        # Its own process keeps track of semaphores, whatever Python the workers run in.
        with _environment(safe_path_variables()):
            resource_tracker.ensure_running()
        started_for = self._interpreter, self._program.preload
        if self._pid is None and _started_for.get(_server_pid(), (None, self._program.preload)) != started_for:
            end_warm_process()
        with (
            starting_with(self._interpreter),
            _environment({**self._warm_environment(), **modules, **safe_path_variables()}),
            _main_module_hidden(),
            _sigint_blocked(),
        ):
            forkserver.ensure_running()
        pid = _server_pid()
        assert pid is not None
        _started_for.clear()
        _started_for[pid] = started_for
        self._is_warm = self._is_warm and pid == self._pid
        self._pid = pid

    def prepare(self) -> None:
        """Wait until the imports are done. If the process has ended, restart it.

        Raises:
            WarmProcessError: The warmed process has ended or hung too often.
        """
        while True:
            self._restart_if_ended()
            if self._is_warm:
                return
            first = self._try_to_start(run_nothing, name="warm-up")
            if first is not None:
                first.close()

    def fork(self, job: WorkerJob) -> ForkedProcess | None:
        """Fork a worker for `job`, after `prepare`; return None if the warmed process has ended since."""
        return self._try_to_start(run_child, job, self._program.target, name=f"trial-{job.trial.trial_id}")

    def end(self, problem: str) -> None:
        """SIGKILL the warmed process because of `problem`; the next `prepare` starts a new one."""
        if self._pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        if _status(self._pid, within_s=_END_S) is not None:
            self._lost(problem)

    def is_running(self, pid: int) -> bool:
        """Return whether the warmed process with this id still runs. Waits, because its pipes close before it ends."""
        return pid == self._pid and _status(pid, within_s=_END_S) is None

    def _warm_environment(self) -> Mapping[str, str]:
        """Return the variables of the warmed process: those of a worker, and answers to what its imports ask CUDA for.

        Another Python has those answers among its own variables.
        """
        answers = capability_environment(visible_gpus().gpus) if self._interpreter is None else {}
        return {**_worker_environment(self.jobs), **answers}

    def _restart_if_ended(self) -> None:
        if self._pid is not None and (status := _status(self._pid)) is not None:
            self._lost(_ending(status))
        if self._pid is not None:
            return
        if self._problems:
            if self._restarts == RESTARTS:
                raise WarmProcessError(
                    f"The process that workers are forked from was restarted {RESTARTS} times and {self._problems[-1]} "
                    "again. What has finished is kept, and the same command continues. If imports are slow here, raise "
                    "warm_up_s."
                )
            self._restarts += 1
        self.start()

    def _try_to_start(self, target: Callable[..., None], *args: object, name: str) -> ForkedProcess | None:
        """Fork a process that calls `target`; return None if the warmed process ended meanwhile."""
        assert self._pid is not None
        pid, limit_s = self._pid, min(self._warm_up_s, FORK_S) if self._is_warm else self._warm_up_s
        process = multiprocessing.get_context("forkserver").Process(target=target, args=args, name=name)
        try:
            with (
                starting_with(self._interpreter),
                _environment(_worker_environment(self.jobs)),
                _main_module_hidden(),
                _killed_after(limit_s, pid) as late,
            ):
                process.start()
        except (EOFError, OSError):
            status = _status(pid, within_s=_END_S)
            if status is None:
                raise
            did = "did not answer" if self._is_warm else f"had not imported {', '.join(self._program.preload)}"
            self._lost(f"{did} within {limit_s:g} s" if late.is_set() else _ending(status))
            return None
        self._is_warm = True
        return ForkedProcess(process, server_runs=lambda: self.is_running(pid))

    def _lost(self, problem: str) -> None:
        self._problems.append(problem)
        self._pid, self._is_warm = None, False


def end_warm_process() -> None:
    """SIGKILL the warmed process of this Python process, if there is one: the next one may need another Python."""
    pid = _server_pid()
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _status(pid, within_s=_END_S)


def _use_short_socket_paths() -> None:
    """Let multiprocessing make its sockets in a short folder if the path of TMPDIR, as on Slurm, is too long for one.

    Raises:
        UsageError: No short folder is writable.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= _MOST_SOCKET_FOLDER:
        return
    for folder in filter(_is_writable, _SHORT_FOLDERS):
        tempfile.tempdir = folder
        try:
            util.get_temp_dir()  # multiprocessing keeps its first answer, and removes the folder at its end
        finally:
            tempfile.tempdir = usual
        return
    problem = f"is too long for the path of a socket, and none of {', '.join(_SHORT_FOLDERS)} is writable"
    hint = f"Set TMPDIR to a folder of at most {_MOST_SOCKET_FOLDER} characters."
    raise UsageError([Fault(key="TMPDIR", found=usual, problem=problem, hint=hint)])


def _is_writable(folder: str) -> bool:
    return Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _server_pid() -> int | None:
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def _status(pid: int, *, within_s: float = 0.0) -> int | None:
    """Return how our child `pid` ended, as an exit code or the negative signal number; None while it runs.

    The child stays a zombie, so that multiprocessing notices its end too.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if time.monotonic() >= until_s:
            return None
        time.sleep(0.01)


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"


@contextmanager
def _killed_after(limit_s: float, pid: int) -> Iterator[Event]:
    """SIGKILL process `pid` if the block takes longer than `limit_s`, so that waiting for it in the block fails.

    Yields:
        An event that is set when the time is up.
    """
    late = Event()

    def kill() -> None:
        late.set()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    timer = Timer(min(limit_s, TIMEOUT_MAX), kill)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _worker_environment(jobs: int) -> Mapping[str, str]:
    """Return variables that must be set before torch and tokenizers are imported, unless the user has set them."""
    threads = max(1, usable_cores() // jobs)
    return {
        # bitsandbytes looks for CUDA at import. Without this variable it would initialise CUDA before the fork, and a
        # forked process cannot use CUDA that was initialised before.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Add `defaults` to `os.environ` where they are missing, while the block runs."""
    added = [name for name in defaults if name not in os.environ]
    os.environ.update({name: defaults[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes that the block starts.

    Ctrl-C goes to every process of the terminal. Otherwise it would interrupt the imports of the warmed process, which
    would print a traceback; multiprocessing ignores it only afterwards. Workers take it again.
    """
    resource_tracker.ensure_running()  # otherwise it would start in the block, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hide the parent's main module: multiprocessing would import it again in every worker, without need."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
