"""One trial on a slot: what is sent there, its Python and its folders there, and what comes back."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import ProfilerError
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.execution import GpuPool, UnfitWorkersError, run_trials
from profiler.execution.job import TRIAL_WORKER, SilentObserver, WorkerProgram
from profiler.execution.pythons import Workers, emulated_workers, own_python, simulated_workers
from profiler.storage.files.trial_files import RECORDS, LockError, take_lock, wait_for_lock
from profiler.storage.stores.record_store import RecordStore


@dataclass(frozen=True, kw_only=True)
class TrialPython:
    """Which Python trials run in. Picklable: each machine looks for it at the same path."""

    options: RunOptions
    is_emulated: bool

    def workers(self) -> Workers:
        """Return how workers start in it on this machine.

        Raises:
            UsageError: There is none, or it lacks something.
            ProfilerError: The emulated libraries cannot be built.
        """
        return _workers(self)


def trial_python(options: RunOptions, backends: Iterable[object]) -> TrialPython | None:
    """Return the Python that trials of these backends run in; None if it is that of the slot."""
    is_emulated = Backend.EMULATED in backends
    if options.python is None and not is_emulated:
        return None
    return TrialPython(options=options, is_emulated=is_emulated)


def by_card(plan: Iterable[PlannedTrial]) -> list[PlannedTrial]:
    """Return emulated trials one card after the other: a slot has a warmed process for one card at a time."""
    trials = list(plan)
    cards = list(dict.fromkeys(map(_card, trials)))
    return sorted(trials, key=lambda trial: cards.index(_card(trial)))


def _card(trial: PlannedTrial) -> tuple[str | None, int]:
    return trial.spec.gpu, trial.spec.num_processes


@cache  # a slot asks a Python once
def _workers(python: TrialPython) -> Workers:
    return emulated_workers(python.options) if python.is_emulated else simulated_workers(python.options)


_PREFIX = "grpo-vram-slot-"
_LOCK = "slot.lock"

_YOUNG_S = 60.0
"""Age of a folder up to which its slot may not have locked it yet."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder that exists, locked, while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name,
        wait_for_lock(Path(name) / _LOCK, f"looks whether {name} is in use"),
    ):
        yield Path(name)


def remove_abandoned() -> None:
    """Remove the folders of slots that were killed: the kernel has released their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, LockError):  # another user's, or removed meanwhile
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            lock = take_lock(folder / _LOCK, wait=False)
            if lock is not None:
                shutil.rmtree(folder)
                lock.release()


_SENT_BACK = ("records/*.json", "records/*.stderr", "samples/*.parquet", "snapshots/*.pickle")


@dataclass(frozen=True, kw_only=True)
class RemoteTask:
    """A trial, with those that the same simulated run answers. Picklable."""

    trials: tuple[PlannedTrial, ...]
    versions: Versions
    options: RunOptions
    program: WorkerProgram = TRIAL_WORKER


@dataclass(frozen=True, kw_only=True)
class RemoteResult:
    """What a slot sends back. Picklable."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path in the folder of a grid."""
    folder: str = ""
    """Where the files were, as messages of records name it."""
    problem: str = ""
    """Why no trial can run on the slot, as a sentence; empty if one can."""
    is_everywhere: bool = False
    """Whether every other slot would meet the problem too."""


def record_name(trial: PlannedTrial) -> str:
    """Return the name of a trial's record among `RemoteResult.files`."""
    return f"{RECORDS}/{trial.trial_id}.json"


def run_remote(task: RemoteTask, *, gpus: GpuPool | None = None) -> RemoteResult:
    """Run the trials of a task in a folder that exists as long as they run.

    Time-outs, crashes and out-of-memory errors are handled as on one machine. The warmed process of this Python process
    stays for the next task.

    Args:
        task: The trials, and how to run them.
        gpus: The GPUs of the slot; None for trials that need none.
    """
    with work_folder() as folder:
        problem, is_everywhere = "", False
        try:
            python = trial_python(task.options, [trial.spec.backend for trial in task.trials])
            interpreter_of = own_python if python is None else python.workers().interpreter_of
            run_trials(
                task.trials,
                options=replace(task.options, jobs=1),
                store=RecordStore(folder, notify=lambda _: None),
                versions=task.versions,
                observer=SilentObserver(),
                gpus=gpus,
                program=replace(task.program, interpreter_of=interpreter_of),
            )
        except ProfilerError as error:
            problem, is_everywhere = str(error), isinstance(error, UnfitWorkersError)
        found = [path for pattern in _SENT_BACK for path in folder.glob(pattern)]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    return RemoteResult(files=files, folder=str(folder), problem=problem, is_everywhere=is_everywhere)
