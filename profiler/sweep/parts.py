"""What a sweep is put together from. Each part is imported when it is first used, so that a mistake is told at once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from profiler.command_line import print_error
from profiler.domain.architecture import Architecture
from profiler.domain.outcome import Estimate, TrialRecord, Versions
from profiler.domain.trial import PlannedTrial, TrialSpec
from profiler.measurement.visible import VisibleGpus, visible_gpus
from profiler.storage.model_config import load_model_config
from profiler.storage.versions import installed_versions

if TYPE_CHECKING:
    from profiler.execution import Pruning, SweepObserver
    from profiler.storage.carried import CurrentId
    from profiler.storage.records import RecordStore
    from profiler.storage.tables import Written


class RunTrials(Protocol):
    """Runs every trial of a plan; `profiler.execution.run_trials`."""

    def __call__(
        self,
        plan: Sequence[PlannedTrial],
        *,
        store: "RecordStore",
        versions: Versions,
        jobs: int,
        timeout_s: float,
        observer: "SweepObserver",
        resume: bool,
        snapshot: bool,
        breakdown: bool,
        stall_s: float,
        warm_up_s: float,
        sample_period_s: float | None,
        gpu_uuids: Sequence[str],
        pruning: "Pruning | None",
    ) -> Sequence[str]:
        """Each trial of `plan` has a record in `store` afterwards; returns sentences about GPUs and restarts."""


class WriteTables(Protocol):
    """Assembles a grid's tables; `profiler.storage.tables.write_tables`."""

    def __call__(
        self,
        folder: Path,
        records: Sequence[TrialRecord],
        estimates: Mapping[str, Estimate],
        *,
        question: str,
        command: str,
        current_id: "CurrentId",
    ) -> "Written":
        """The parquet files of `records` are in `folder` afterwards; returns what else is in them or is not."""


class RenderFolder(Protocol):
    """Draws a grid's table, page and figures; `profiler.report.render_folder`."""

    def __call__(self, folder: Path, *, to_terminal: bool, trial_ids: Collection[str]) -> None:
        """`folder` has its report afterwards, and the terminal the table."""


def _estimate(spec: TrialSpec, architecture: Architecture) -> Estimate:
    from profiler.analytical import estimate

    return estimate(spec, architecture)


def _open_store(folder: Path) -> "RecordStore":
    from profiler.storage.records import RecordStore

    return RecordStore(folder, notify=print_error)


def _run_trials(
    plan: Sequence[PlannedTrial],
    *,
    store: "RecordStore",
    versions: Versions,
    jobs: int,
    timeout_s: float,
    observer: "SweepObserver",
    resume: bool,
    snapshot: bool,
    breakdown: bool,
    stall_s: float,
    warm_up_s: float,
    sample_period_s: float | None,
    gpu_uuids: Sequence[str],
    pruning: "Pruning | None",
) -> Sequence[str]:
    from profiler.execution import GpuPool, run_trials
    from profiler.measurement.pynvml_driver import PynvmlDriver

    return run_trials(
        plan,
        store=store,
        versions=versions,
        jobs=jobs,
        timeout_s=timeout_s,
        observer=observer,
        resume=resume,
        snapshot=snapshot,
        breakdown=breakdown,
        stall_s=stall_s,
        warm_up_s=warm_up_s,
        sample_period_s=sample_period_s,
        gpus=GpuPool(gpu_uuids, nvml=PynvmlDriver()) if gpu_uuids else None,
        pruning=pruning,
    )


def _write_tables(
    folder: Path,
    records: Sequence[TrialRecord],
    estimates: Mapping[str, Estimate],
    *,
    question: str,
    command: str,
    current_id: "CurrentId",
) -> "Written":
    from profiler.storage.tables import write_tables

    return write_tables(folder, records, estimates, question=question, command=command, current_id=current_id)


def _render_folder(folder: Path, *, to_terminal: bool, trial_ids: Collection[str]) -> None:
    from rich.console import Console

    from profiler.report import render_folder

    render_folder(folder, console=Console() if to_terminal else None, trial_ids=trial_ids)


def _watch(total: int) -> AbstractContextManager["SweepObserver"]:
    from rich.console import Console

    from profiler.rendering.progress import SweepProgress

    return SweepProgress(total=total, console=Console())


@dataclass(frozen=True, kw_only=True)
class SweepParts:
    """The outside world of a sweep; tests put fakes in."""

    visible_gpus: Callable[[], VisibleGpus] = visible_gpus
    installed_versions: Callable[[], Versions] = installed_versions
    load_model_config: Callable[[str], Mapping[str, object]] = load_model_config
    estimate: Callable[[TrialSpec, Architecture], Estimate] = _estimate
    open_store: Callable[[Path], "RecordStore"] = _open_store
    watch: Callable[[int], AbstractContextManager["SweepObserver"]] = _watch
    """Given the number of trials that will run: an observer, shown while the block runs."""
    run_trials: RunTrials = _run_trials
    write_tables: WriteTables = _write_tables
    render_folder: RenderFolder = _render_folder
