"""Trials that do nothing, and the processes that run them."""

from dataclasses import dataclass
from pathlib import Path

from maintenance.benchmarks.many_records import VERSIONS
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Address, Machines, Scheme
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution import WorkerJob, WorkerProgram, run_trials
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.stores.shared_store import open_shared
from profiler.storage.stores.trial_store import TrialStore

PROGRAM = WorkerProgram(target=f"{__name__}:job", preload=(__name__,))

_LEASE_S = 60.0


def job(job: WorkerJob) -> None:
    """Store a record; do nothing else."""
    outcome = Outcome(verdict=Verdict(status=Status.OK))
    RecordStore(Path(job.store_folder)).write(TrialRecord.of(job.trial, versions=job.versions, outcome=outcome))


def cheap_plan(trials: int) -> list[PlannedTrial]:
    """Return trials that differ in their seeds."""
    return [
        PlannedTrial(
            trial_id=f"{number:016x}",
            grid="cheap",
            label="cheap",
            spec=TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", seed=number),
        )
        for number in range(trials)
    ]


def shared_store(folder: Path, own: Path) -> TrialStore:
    """Return the store of several machines in a folder.

    Args:
        folder: Where all of them write.
        own: The folder of this machine.
    """
    address = Address(scheme=Scheme.FILE, path=str(folder))
    return open_shared(address, own, lease_s=_LEASE_S, notify=lambda _: None)


class Unseen:
    """An observer that notes nothing."""

    def started(self, trial: PlannedTrial) -> None:
        """Note nothing."""

    def lost(self, trial: PlannedTrial) -> None:
        """Note nothing."""

    def machines(self, found: Machines) -> None:
        """Note nothing."""

    def waiting(self, reason: str) -> None:
        """Note nothing."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Note nothing."""


@dataclass(frozen=True, kw_only=True)
class CheapSlot:
    """A slot of Slurm: the whole plan with claims in the shared store. submitit pickles it, and calls it on a node."""

    store: Path
    trials: int

    def __call__(self) -> None:
        """Run the trials that no other slot runs."""
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as own:
            run_trials(
                cheap_plan(self.trials),
                options=RunOptions(jobs=1),
                store=shared_store(self.store, Path(own)),
                versions=VERSIONS,
                observer=Unseen(),
                program=PROGRAM,
            )
