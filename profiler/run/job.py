"""A command on an emulated machine: every process that it starts is part of the job, and none outlives it.

The command is started by a process of ours that gets the orphans of all below it. It ends them when the command has
ended, and when this program is gone; this program does the same if that process is gone.
"""

import ctypes
import errno
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from profiler.command_line import print_line
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, Fault, UsageError
from profiler.domain.memory import GIB
from profiler.domain.runs.outcome import Status
from profiler.emulation.card import CONTENTS_VARIABLE, remove_ended
from profiler.emulation.launch import emulated_python, job_environment, write_nvidia_smi
from profiler.measurement.samples.host_usage import host_memory, process_tree, usable_cores
from profiler.run.command import JOBS_FOLDER, JobCommand, JobEnd
from profiler.storage.files.foreign_files import expanded, start_reason
from profiler.substitutes.options import SubstituteOptions, job_variables
from profiler.substitutes.unavailable_packages import PACKAGES, write_flash_package

_GRACE_S = 5.0
"""How long processes have to end after SIGINT, by which their `finally` blocks run."""
_POLL_S = 0.05
_LOOKS = 3
"""How often no process must be found: the kernel may leave out some while others end."""
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2)."""
_SHARED_MEMORY = Path("/dev/shm")
_OF_LIBRARIES = ("psm_", "sem.mp-", "mp-", "torch_", "pym-", "pymp-", "loky-", "nccl-", "vllm", "ray")
"""Beginnings of names in shared memory that Python's multiprocessing, torch, joblib, NCCL, vLLM and Ray choose."""
_PROCESSES, _PROGRAMS = "processes", "bin"


def run_job(command: JobCommand) -> int:
    """Run a command on an emulated machine, keep its record, print the table of its processes; return the exit code.

    Raises:
        UsageError: The command cannot be started, there is no Python with torch's CUDA build, or it would join a Ray
            cluster that is running already.
    """
    options, cards = command.options, command.cards
    _refuse_ray_address(os.environ)
    python = emulated_python(None if options.python is None else expanded(str(options.python)), strict=options.strict)
    gpu = KNOWN_GPUS[cards.gpu]
    folder = Path(options.results_dir).expanduser().absolute() / JOBS_FOLDER / command.name
    processes = folder / f"{_PROCESSES}-{os.getpid()}"
    remove_ended(folder, f"{_PROCESSES}-")
    folder.mkdir(parents=True, exist_ok=True)
    environment = job_environment(
        python,
        gpu,
        cards=cards.count,
        base=os.environ,
        folder=processes,
        ranks=options.ranks,
        possible=workers_held(),
        steps=options.steps,
        strict=options.strict,
    )
    environment["PATH"] = f"{processes / _PROGRAMS}{os.pathsep}{environment['PATH']}"
    substitutes = SubstituteOptions(
        weights=options.weights,
        prompt_tokens=options.prompt_tokens,
        completion_tokens=options.completion_tokens,
        folder=processes,
    )
    environment |= job_variables(substitutes) | ({CONTENTS_VARIABLE: "1"} if options.breakdown else {})
    print_line(f"{cards.count} x {gpu.title}, emulated, with torch {python.torch} in {python.executable}.")

    def fill() -> None:
        processes.mkdir()
        write_nvidia_smi(processes / _PROGRAMS, python)
        write_flash_package(processes / PACKAGES)

    with _removed_at_the_end(processes, with_empty_parent=True):
        end = run_to_the_end(command.words, environment, timeout_s=options.timeout_s, own_folder=processes, fill=fill)
        from profiler.run.results import job_record, report_job  # with matplotlib, which takes as long as all before

        record = job_record(command, gpu, end, processes)
        report_job(folder, record)
    if record.status is Status.OOM:
        return EXIT_OK if options.fail_if is None else EXIT_ANSWER_IS_NO
    return EXIT_OK if record.status is Status.OK else EXIT_SOME_TRIALS_FAILED


_WORKER_BYTES = 12 * GIB
"""Memory of the host by which all workers run if nobody says how many: GRPO of Qwen3-8B by verl's own command on eight
emulated cards takes 9 to 12 GB with one worker and its engine, and more than 24 GB with two."""


def workers_held(available_bytes: int | None = None, processors: int | None = None) -> int:
    """Return how many workers of verl this machine runs at once, each with an engine: at least one.

    Args:
        available_bytes: Memory of the host that is free; None asks the kernel.
        processors: That it has; None asks the kernel. Each worker computes for 12 s and more before it begins.
    """
    if available_bytes is None:
        used, total = host_memory()
        available_bytes = (total or 0) - (used or 0)
    return max(1, min(available_bytes // _WORKER_BYTES, processors or usable_cores()))


_RAY_ADDRESS = "RAY_ADDRESS"


def _refuse_ray_address(environment: Mapping[str, str]) -> None:
    if address := environment.get(_RAY_ADDRESS):
        problem = "names a Ray cluster that is running already, whose processes are not part of the run"
        hint = f"Unset {_RAY_ADDRESS}: the command then starts a cluster of its own."
        raise UsageError([Fault(key=_RAY_ADDRESS, found=address, problem=problem, hint=hint)])


def run_to_the_end(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    own_folder: Path | None = None,
    fill: Callable[[], None] = lambda: None,
) -> JobEnd:
    """Run a command until it ends or its time is over, and end every process that it has started, in any group.

    Args:
        words: The command.
        environment: Of its processes.
        timeout_s: After which it is ended.
        own_folder: Of the caller, who removes it; it is removed too if the caller is killed.
        fill: Makes that folder. It is called where the removal is certain, in the process that starts the command.

    Raises:
        UsageError: The command cannot be started.
    """
    started_s = time.monotonic()
    files = Files.now()
    temporary = Path(tempfile.gettempdir(), f"grpo-vram-job-{os.getuid()}-{secrets.token_hex(8)}")
    with _removed_at_the_end(temporary), _adopting_orphans():
        caller, others = os.getpid(), process_tree()
        reader, writer = os.pipe()
        keeper = os.fork()
        if keeper == 0:
            os.close(reader)
            own = {**environment, "TMPDIR": str(temporary)}
            folders = (temporary, *([own_folder] if own_folder else []))
            _keep(_Task(words, own, caller=caller, files=files, folders=folders, fill=fill), writer)
        os.close(writer)
        try:
            said, timed_out = _hear(reader, keeper, started_s + timeout_s)
        finally:
            os.close(reader)
            _stop(keeper)
            end_descendants(except_for=others)
            left = files.removed_since()  # also after Ctrl-C, if the keeper took too long and was killed
    kind, _, rest = said.partition(b" ")
    if kind == b"unwritten":
        number, _, name = rest.partition(b" ")
        raise OSError(int(number), os.strerror(int(number)), os.fsdecode(name))
    if kind == b"refused":
        problem = f"cannot be started ({rest.decode(errors='replace')})"
        raise UsageError([Fault(key="command", found=words[0], problem=problem, hint="Name a program or a script.")])
    names = (*(os.fsdecode(name) for name in rest.split(b"\0")[1:]), *left)
    code = int(rest.split(b"\0")[0]) if kind == b"ended" else -signal.SIGKILL
    return JobEnd(exit_code=code, timed_out=timed_out, wall_s=time.monotonic() - started_s, left=names)


# ---- this program ----------------------------------------------------------------------------------------------------


@contextmanager
def _removed_at_the_end(folder: Path, *, with_empty_parent: bool = False) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if with_empty_parent:
            with suppress(OSError):  # it has a record, of this run or of an earlier one
                folder.parent.rmdir()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    _prctl(_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_SET_CHILD_SUBREAPER, 0)


def _hear(reader: int, keeper: int, ends_s: float) -> tuple[bytes, bool]:
    """Return what the keeper says at its end, and whether the time was over before; nothing if it was killed."""
    os.set_blocking(reader, False)
    said, timed_out = b"", False
    while True:
        with suppress(BlockingIOError):
            found = os.read(reader, 1 << 16)
            if not found:
                return said, timed_out
            said += found
            continue
        over_s = time.monotonic() - ends_s
        if over_s > 3 * _GRACE_S:  # it is stopped, or is not there
            return said, True
        if over_s > 0 and not timed_out:
            timed_out = True
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)
        time.sleep(_POLL_S)


def _stop(keeper: int) -> None:
    """Let the keeper end the job, and wait for it; one that takes too long is killed."""
    with suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGTERM)
    ends_s = time.monotonic() + 3 * _GRACE_S
    with suppress(ChildProcessError):
        while os.waitpid(keeper, os.WNOHANG) == (0, 0):
            if time.monotonic() > ends_s:
                os.kill(keeper, signal.SIGKILL)
                os.waitpid(keeper, 0)
                return
            time.sleep(_POLL_S)


def end_descendants(*, grace_s: float = 0.0, except_for: frozenset[int] = frozenset()) -> None:
    """End the processes below this one: by SIGINT and after `grace_s` by SIGKILL, until there are none."""
    ends_s = time.monotonic() + grace_s
    first = signal.SIGINT if grace_s else signal.SIGKILL
    asked: set[int] = set()
    looks = 0
    while looks < _LOOKS:
        below = process_tree() - except_for - {os.getpid()}
        looks = 0 if below else looks + 1
        over = time.monotonic() > ends_s
        for pid in below if over else below - asked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if over else first)
        asked |= below
        time.sleep(_POLL_S)
        for pid in below:
            with suppress(ChildProcessError):  # a child of another one
                os.waitpid(pid, os.WNOHANG)


# ---- the keeper ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What the keeper runs; of its folders it makes the first, and `fill` the others."""

    words: Sequence[str]
    environment: Mapping[str, str]
    caller: int
    files: "Files"
    folders: Sequence[Path]
    fill: Callable[[], None]

    @property
    def is_wanted(self) -> bool:
        """Whether the program that asked for it is there."""
        return os.getppid() == self.caller


def _keep(task: _Task, writer: int) -> NoReturn:
    """Start the command, wait for its end or for a signal, end what is left, and say how it ended.

    The folders are removed if nobody else is there to do so.
    """
    try:
        stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        signal.pthread_sigmask(signal.SIG_BLOCK, (*stops, signal.SIGCHLD))
        for number in (*stops, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()  # Ctrl-C of a terminal reaches our caller alone
        _prctl(_SET_CHILD_SUBREAPER, 1)
        _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        said = _said(task, stops)
        end_descendants(grace_s=_GRACE_S)
        left = task.files.removed_since()
        if not task.is_wanted:
            for folder in task.folders:
                shutil.rmtree(folder, ignore_errors=True)
        os.write(writer, b"\0".join([said, *map(os.fsencode, left)]))
    except BaseException as error:
        sys.stderr.write(f"The processes of the job could not be ended: {type(error).__name__}: {error}\n")
    finally:
        os._exit(0)


def _said(task: _Task, stops: Sequence[signal.Signals]) -> bytes:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    try:
        task.folders[0].mkdir(mode=0o700)
        task.fill()
    except OSError as error:
        return b"unwritten %d %s" % (error.errno or errno.EIO, os.fsencode(error.filename or task.folders[0]))
    try:
        process = subprocess.Popen(
            task.words,
            env=dict(task.environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=unblock,
        )
    except OSError as error:
        return f"refused {start_reason(task.words[0], error, task.environment.get('PATH'))}".encode()
    while process.poll() is None:
        found = signal.sigtimedwait((*stops, signal.SIGCHLD), 1.0)
        if not task.is_wanted or (found is not None and found.si_signo != signal.SIGCHLD):
            end_descendants(grace_s=_GRACE_S)
            return b"ended %d" % -signal.SIGKILL
    return b"ended %d" % process.returncode


# ---- files that processes leave --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """Names in shared memory and of sockets before a job."""

    names: frozenset[Path]

    @classmethod
    def now(cls) -> Self:
        """Return what is there."""
        return cls(frozenset((*_shared(), *_sockets())))

    def removed_since(self) -> list[str]:
        """Remove what is new, ours, and used by nobody: another job of this user may have made it. Return the names."""
        new = [path for path in (*_shared(), *_sockets()) if path not in self.names]
        used = _in_use() if new else frozenset()
        removed = []
        for path in new:
            if str(path) not in used:
                with suppress(OSError):
                    path.unlink()
                    removed.append(str(path))
        return removed


def _shared() -> list[Path]:
    if not _SHARED_MEMORY.is_dir():
        return []
    return [path for path in _SHARED_MEMORY.iterdir() if path.name.startswith(_OF_LIBRARIES) and _is_ours(path)]


def _sockets() -> list[Path]:
    return [path for path in Path(tempfile.gettempdir()).iterdir() if _is_ours(path, is_kind=stat.S_ISSOCK)]


def _is_ours(path: Path, *, is_kind: Callable[[int], bool] = stat.S_ISREG) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and is_kind(found.st_mode)


def _in_use() -> frozenset[str]:
    """Return the paths that a living process has mapped or open, and the sockets that somebody has bound."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.update("/" + line.partition("/")[2] for line in _lines_of(process / "maps"))
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    found.add(str(descriptor.readlink()))
    with suppress(OSError):
        found.update(line.split()[-1] for line in _lines_of(Path("/proc/net/unix")) if "/" in line)
    return frozenset(found)


def _lines_of(path: Path) -> list[str]:
    """Names of files and of sockets may be any bytes."""
    return os.fsdecode(path.read_bytes()).splitlines()
