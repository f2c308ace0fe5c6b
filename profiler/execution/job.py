"""The input of a worker process, and the observer of a sweep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution.pythons import InterpreterOf, own_python


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPUs of a worker process, and its rank among the processes of the trial."""

    gpu_uuids: tuple[str, ...] = ()
    """The only GPUs that the process sees, one per rank; empty to leave the environment unchanged."""
    rank: int | None = None
    """None before the ranks of a trial are started, and where there is one process."""


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """One trial for one worker process. Picklable, because it is sent to another process."""

    trial: PlannedTrial
    versions: Versions
    store_folder: str
    """Folder of the `RecordStore` that the worker writes its record to."""
    stderr_path: str
    """File that takes the worker's stdout and stderr."""
    options: RunOptions = field(default_factory=RunOptions)
    siblings: tuple[PlannedTrial, ...] = ()
    """Trials that the same simulated run answers (`run_key`): the worker stores a record for each."""
    place: Place = field(default_factory=Place)
    heartbeat_path: str | None = None
    """File that the training touches at each phase; None for no heartbeat."""


@dataclass(frozen=True, kw_only=True)
class WorkerProgram:
    """The code that worker processes run."""

    target: str
    """Dotted name of a function that takes a `WorkerJob`: ``"package.module:function"``."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, in the process that workers are forked from."""
    interpreter_of: InterpreterOf = own_python
    """The Python that runs them."""
    meanwhile: Callable[[], object] = lambda: None
    """Called once in the parent, while the process that workers are forked from imports for the first time."""


TRIAL_WORKER = WorkerProgram(target="profiler.worker:run_job", preload=("profiler.worker_imports",))
"""The worker that runs trials. By name, because it is above this package and the parent must not import torch."""


class SweepObserver(Protocol):
    """Observer of a sweep, such as a progress bar. Called in the parent, in the order of events."""

    def started(self, trial: PlannedTrial) -> None:
        """A worker for `trial` has started."""

    def lost(self, trial: PlannedTrial) -> None:
        """The worker, node or GPU of a trial that had started was lost; the trial waits again."""

    def machines(self, found: Machines) -> None:
        """The machines of the sweep have changed. An engine of one machine need not say so."""

    def waiting(self, reason: str) -> None:
        """Trials wait for something outside of this sweep; `reason` is a sentence. Once per reason."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """`trial` has its record.

        Without an earlier `started`, the record existed already: from an earlier sweep, or from another sweep that runs
        in the same folder.
        """


class SilentObserver:
    """An observer of a few trials, whose records have all that is to be known."""

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
