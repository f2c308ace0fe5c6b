"""The outside world of a sweep: where its trials run, its output, and what tests replace.

The progress of a sweep, which continues when its output is closed: `| head`, a closed terminal.

The sweep then continues without output: its results are on the disk, and the same command shows them again.

The outside world of a sweep: what tests and a slot of Slurm replace.

The functions import what they call when they are first called, so that wrong input is reported without delay.
"""

import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from profiler.analysis.times.sweep_time import SweepTally
from profiler.analytical.many import Estimates, estimates_of
from profiler.cluster.arrays.array import SlotArray
from profiler.cluster.placing import run_placed
from profiler.cluster.remote import by_card, trial_python
from profiler.cluster.slots import Cluster, KindOf
from profiler.command_line import Interrupted, print_error, print_line, readable
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import UsageError
from profiler.domain.machines.engines import Address, Machines, Scheduler
from profiler.domain.machines.extras import Extra, require
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import GpuPool, OpenTrials, WorkerProgram, run_trials
from profiler.execution.job import TRIAL_WORKER
from profiler.measurement.driver.visible import VisibleGpus, visible_gpus
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.trial_store import TrialStore

if TYPE_CHECKING:
    from profiler.cluster.arrays.array import SlotArray
    from profiler.cluster.arrays.slurm import SlotJob
    from profiler.cluster.slots import Cluster
    from profiler.execution import SweepObserver
    from profiler.execution.pythons import Workers
    from profiler.storage.stores.trial_store import TrialStore
    from profiler.storage.sweep_tables.carried import CurrentId
    from profiler.storage.sweep_tables.tables import EstimatesOf, Written


class WhileReadable:
    """An observer that passes events on until the output is closed. Use it as a context manager."""

    def __init__(self, shown: AbstractContextManager["SweepObserver"]) -> None:
        self._shown = shown
        self._observer: SweepObserver | None = None

    def __enter__(self) -> Self:
        with readable():
            self._observer = self._shown.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        with readable():
            self._shown.__exit__(None, None, None)

    def started(self, trial: PlannedTrial) -> None:
        """Pass the event on."""
        self._pass_on(lambda observer: observer.started(trial))

    def lost(self, trial: PlannedTrial) -> None:
        """Pass the event on."""
        self._pass_on(lambda observer: observer.lost(trial))

    def machines(self, found: Machines) -> None:
        """Pass the event on."""
        self._pass_on(lambda observer: observer.machines(found))

    def waiting(self, reason: str) -> None:
        """Pass the event on."""
        self._pass_on(lambda observer: observer.waiting(reason))

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Pass the event on."""
        self._pass_on(lambda observer: observer.finished(trial, record))

    def _pass_on(self, event: Callable[["SweepObserver"], None]) -> None:
        observer, self._observer = self._observer, None
        if observer is None:
            return
        with readable():
            event(observer)
            self._observer = observer


@contextmanager
def in_round(store: TrialStore, trial_ids: Sequence[str], options: RunOptions, marks: Objects | None) -> Iterator[None]:
    """Take part in the round of a plan. It goes on after a machine that is taken away, because that may come back.

    Args:
        store: Where the records are.
        trial_ids: The plan.
        options: How trials run.
        marks: Where slots note the trials that have ended; None where there are none.
    """
    # Each of these lets a trial with an answer run again.
    runs_all = not options.resume or options.snapshot or options.breakdown
    store.take_part(trial_ids, marks=marks, runs_all=runs_all)
    if ended := len(store.ended() & set(trial_ids)):
        those = "1 trial that has ended in it does" if ended == 1 else f"{ended} trials that have ended in it do"
        print_line(f"This sweep goes on: {those} not run again before its end, whatever the result.")
    goes_on = False
    try:
        yield
    except Interrupted as error:
        goes_on = error.number is not signal.SIGINT
        raise
    finally:
        if not goes_on:
            store.end_round()


class Runner(Protocol):
    """Runs the trials of a sweep on its engine, which has been reached."""

    def run(self, plan: Sequence[PlannedTrial], trials: OpenTrials, /) -> Sequence[str]:
        """Leave a record of each trial of `plan`; return sentences about what was lost, retired or restarted."""


@dataclass(frozen=True, kw_only=True)
class LocalRunner:
    """Worker processes of this machine."""

    gpu_uuids: Sequence[str] = ()
    """GPUs to measure on."""
    program: WorkerProgram = TRIAL_WORKER

    def run(self, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
        """Run each trial in its own process."""
        return run_trials(
            plan,
            options=trials.options,
            store=trials.store,
            versions=trials.versions,
            observer=trials.observer,
            gpus=self._gpus(),
            pruning=trials.pruning,
            program=self.program,
        )

    def _gpus(self) -> GpuPool | None:
        if not self.gpu_uuids:
            return None
        from profiler.measurement.driver.pynvml_driver import PynvmlDriver  # imports pynvml

        return GpuPool(self.gpu_uuids, nvml=PynvmlDriver())


@dataclass(frozen=True, kw_only=True)
class ClusterRunner:
    """Slots of a cluster."""

    cluster: Cluster
    kind_of: KindOf
    program: WorkerProgram = TRIAL_WORKER

    def run(self, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
        """Send each trial to a slot of its kind."""
        options = trials.options
        python = trial_python(options, {trial.spec.backend for trial in plan})
        return run_placed(
            by_card(plan) if python is not None and python.is_emulated else plan,
            kind_of=self.kind_of,
            slots=self.cluster.slots(jobs=options.jobs, versions=trials.versions, python=python),
            trials=trials,
            program=self.program,
        )


@dataclass(frozen=True, kw_only=True)
class ArrayRunner:
    """Slots that claim, prune and run the trials of the plan themselves."""

    array: SlotArray

    def run(self, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
        """Start the slots that are missing, and watch until each trial has ended."""
        self.array.start_for(len(plan), jobs=trials.options.jobs)
        self.array.run(plan, store=trials.store, options=trials.options, observer=trials.observer)
        return self.array.notes


class HasResults(Protocol):
    """A sweep, as far as its results are concerned."""

    @property
    def folder(self) -> Path:
        """Where workers of this machine write."""

    @property
    def address(self) -> Address | None:
        """Where several machines share the results."""

    @property
    def options(self) -> RunOptions:
        """How trials are run."""


OpenArray = Callable[[Path, "Callable[[Path], SlotJob]", RunOptions, Sequence[str]], "SlotArray"]
"""Returns the slots of an earlier start with an equal key, or else an array without slots: `slurm.open_array`."""


class WriteTables(Protocol):
    """Writes the tables of a grid: `profiler.storage.sweep_tables.tables.assemble_tables`."""

    def __call__(
        self,
        folder: Path,
        records: Iterable[TrialRecord],
        estimates_of: "EstimatesOf",
        /,
        *,
        question: str,
        command: str,
        current_id: "CurrentId",
    ) -> "Written":
        """Write the parquet files of `records`; return which rows were carried over and which records left out."""


class RenderFolder(Protocol):
    """Writes the report of a grid: `profiler.report.main.render_folder`."""

    def __call__(self, folder: Path, *, to_terminal: bool, trial_ids: Collection[str]) -> None:
        """Write page and figures to `folder`, and the table to the terminal."""


def _open_store(sweep: HasResults) -> "TrialStore":
    if sweep.address is not None:
        from profiler.storage.stores.shared_store import open_shared

        return open_shared(sweep.address, sweep.folder, lease_s=sweep.options.lease_s, notify=print_error)
    from profiler.storage.stores.record_store import RecordStore

    return RecordStore(sweep.folder, notify=print_error)


def _run(runner: Runner, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
    return runner.run(plan, trials)


_MODULES = {Scheduler.RAY: ("ray",), Scheduler.SLURM: ("submitit",)}
_EXTRAS = {Scheduler.RAY: Extra.RAY, Scheduler.SLURM: Extra.SLURM}


def reach(options: RunOptions) -> "Cluster | None":
    """Return the cluster of the engine; None if the engine is this machine, or starts slots that find their work.

    Raises:
        UsageError: The extra of the engine is not installed, or its cluster does not answer.
    """
    engine = options.engine
    if engine is Scheduler.LOCAL:
        return None
    require("engine", engine, _MODULES[engine], _EXTRAS[engine])
    if engine is Scheduler.SLURM:
        from profiler.cluster.arrays.slurm import slurm_faults

        if faults := slurm_faults(options):
            raise UsageError(faults)
        return None
    from profiler.cluster.ray_cluster import reach_ray  # imports ray, an extra

    return reach_ray(options.ray_address, jobs=options.jobs)


def _open_array(
    base: Path, job_in: "Callable[[Path], SlotJob]", options: RunOptions, key: Sequence[str]
) -> "SlotArray":
    from profiler.cluster.arrays.slurm import open_array

    return open_array(base, job_in, options, key)


def _simulated_workers(options: RunOptions) -> "Workers":
    from profiler.execution.pythons import simulated_workers

    return simulated_workers(options)


def _emulated_workers(options: RunOptions) -> "Workers":
    from profiler.execution.pythons import emulated_workers

    return emulated_workers(options)


def _write_tables(
    folder: Path,
    records: Iterable[TrialRecord],
    estimates_of: "EstimatesOf",
    /,
    *,
    question: str,
    command: str,
    current_id: "CurrentId",
) -> "Written":
    from profiler.storage.sweep_tables.tables import assemble_tables

    return assemble_tables(folder, records, estimates_of, question=question, command=command, current_id=current_id)


def _render_folder(folder: Path, *, to_terminal: bool, trial_ids: Collection[str]) -> None:
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.report.main import render_folder

    render_folder(folder, console=TerminalConsole() if to_terminal else None, trial_ids=trial_ids)


def import_report() -> None:
    """Import what the end of a sweep needs. What cannot be imported is reported there, when the trials have run."""
    with suppress(ImportError):
        import profiler.report.main
        import profiler.storage.sweep_tables.tables  # noqa: F401


def _watch(tally: SweepTally) -> AbstractContextManager["SweepObserver"]:
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.rendering.live.progress import SweepProgress

    return SweepProgress(tally, console=TerminalConsole())


@dataclass(frozen=True, kw_only=True)
class SweepParts:
    """The outside world of a sweep, replaced by fakes in tests."""

    visible_gpus: Callable[[], VisibleGpus] = visible_gpus
    installed_versions: Callable[[], Versions] = installed_versions
    emulated_workers: Callable[[RunOptions], "Workers"] = _emulated_workers
    """Returns what emulated trials run in."""
    simulated_workers: Callable[[RunOptions], "Workers"] = _simulated_workers
    """Returns what simulated trials run in if `python` is given."""
    load_model_config: Callable[[str], Mapping[str, object]] = load_model_config
    estimates: Estimates = estimates_of
    open_store: Callable[[HasResults], "TrialStore"] = _open_store
    watch: Callable[[SweepTally], AbstractContextManager["SweepObserver"]] = _watch
    """Takes the count of the trials that will run; returns an observer that is shown while the block runs."""
    run: Callable[[Runner, Sequence[PlannedTrial], OpenTrials], Sequence[str]] = _run
    """Runs the trials of a plan; returns sentences about what was lost, retired or restarted."""
    reach: Callable[[RunOptions], "Cluster | None"] = reach
    """Returns the cluster of the engine; None if the engine is this machine."""
    open_array: OpenArray = _open_array
    slot: str = "profiler.sweep.slot:run"
    """The function that a slot of Slurm runs. By name, because it is above this file."""
    write_tables: WriteTables = _write_tables
    render_folder: RenderFolder = _render_folder
