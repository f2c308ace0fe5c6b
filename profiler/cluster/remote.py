"""One trial on a slot: what is sent there, what runs there, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from profiler.cluster.trial_python import trial_python
from profiler.cluster.work_folder import work_folder
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import ProfilerError
from profiler.domain.machines.sweep_state import Machines
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import GpuPool, UnfitWorkersError, run_trials
from profiler.execution.job import TRIAL_WORKER, WorkerProgram
from profiler.execution.pythons.interpreter import own_python
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.stores.record_store import RecordStore

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


class _Silent:
    """An observer of one trial, whose record has all that is to be known."""

    def started(self, trial: PlannedTrial) -> None:
        """Do nothing."""

    def lost(self, trial: PlannedTrial) -> None:
        """Do nothing."""

    def machines(self, found: Machines) -> None:
        """Do nothing."""

    def waiting(self, reason: str) -> None:
        """Do nothing."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Do nothing."""


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
                observer=_Silent(),
                gpus=gpus,
                program=replace(task.program, interpreter_of=interpreter_of),
            )
        except ProfilerError as error:
            problem, is_everywhere = str(error), isinstance(error, UnfitWorkersError)
        found = [path for pattern in _SENT_BACK for path in folder.glob(pattern)]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    return RemoteResult(files=files, folder=str(folder), problem=problem, is_everywhere=is_everywhere)
