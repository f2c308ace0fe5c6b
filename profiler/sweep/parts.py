"""The outside world of a sweep: what tests and a slot of Slurm replace.

The functions import what they call when they are first called, so that wrong input is reported without delay.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from profiler.analysis.times.sweep_tally import SweepTally
from profiler.command_line import print_error
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.address import Address
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import OpenTrials
from profiler.measurement.driver.visible import VisibleGpus, visible_gpus
from profiler.report.estimates import Estimates, estimates_of
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.records.versions import installed_versions
from profiler.sweep.runners import Runner

if TYPE_CHECKING:
    from profiler.cluster.arrays.array import SlotArray
    from profiler.cluster.arrays.slot_job import SlotJob
    from profiler.cluster.slots import Cluster
    from profiler.execution import SweepObserver
    from profiler.execution.pythons.other_python import Workers
    from profiler.storage.stores.trial_store import TrialStore
    from profiler.storage.sweep_tables.carried import CurrentId
    from profiler.storage.sweep_tables.tables import EstimatesOf, Written


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
    """Writes the report of a grid: `profiler.report.drawing.render_folder`."""

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


def _reach(options: RunOptions) -> "Cluster | None":
    from profiler.cluster.engines import reach

    return reach(options)


def _open_array(
    base: Path, job_in: "Callable[[Path], SlotJob]", options: RunOptions, key: Sequence[str]
) -> "SlotArray":
    from profiler.cluster.arrays.slurm import open_array

    return open_array(base, job_in, options, key)


def _simulated_workers(options: RunOptions) -> "Workers":
    from profiler.execution.pythons.other_python import simulated_workers

    return simulated_workers(options)


def _emulated_workers(options: RunOptions) -> "Workers":
    from profiler.execution.pythons.emulated_python import emulated_workers

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
    from profiler.report.drawing import render_folder

    render_folder(folder, console=TerminalConsole() if to_terminal else None, trial_ids=trial_ids)


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
    reach: Callable[[RunOptions], "Cluster | None"] = _reach
    """Returns the cluster of the engine; None if the engine is this machine."""
    open_array: OpenArray = _open_array
    slot: str = "profiler.sweep.slot:run"
    """The function that a slot of Slurm runs. By name, because it is above this file."""
    write_tables: WriteTables = _write_tables
    render_folder: RenderFolder = _render_folder
