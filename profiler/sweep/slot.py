"""One slot of `engine=slurm`: the sweep of the whole plan on one node, without its tables and its page."""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.analysis.times.sweep_time import SweepTally
from profiler.cluster.arrays.array import HARDWARE, REPORTS, SlotReport, SlotState
from profiler.cluster.arrays.slurm import SlotJob
from profiler.cluster.slots import Node
from profiler.command_line import Interrupted, interruptible
from profiler.domain.errors import EXIT_INTERNAL, EXIT_OK, EXIT_SIGNAL_BASE, Fault, ProfilerError, UsageError
from profiler.domain.machines.engines import Machines, Scheduler
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.measurement.driver.visible import VisibleGpus
from profiler.storage.stores.objects import FolderObjects
from profiler.sweep.command import read_command
from profiler.sweep.conclusion.results import planned, under_earlier_names
from profiler.sweep.main import run_plan
from profiler.sweep.parts import SweepParts
from profiler.sweep.prepared.engine import GPUS, version_faults
from profiler.sweep.prepared.plan import card_of, make_writable
from profiler.sweep.prepared.preparation import Sweep, architecture_lookup, prepare_each, remembering

if TYPE_CHECKING:
    from profiler.execution import SweepObserver


def run(job: SlotJob, parts: SweepParts | None = None) -> None:
    """Run the trials that no other slot runs, until all are answered, and report how that ended.

    Raises:
        SystemExit: The scheduler ends the slot; without a report of its end it counts as lost, or is requeued.
    """
    reports, node = FolderObjects(Path(job.folder)), platform.node()

    def report(state: SlotState, code: int = EXIT_OK, problem: str = "", card: str = "") -> None:
        found = SlotReport(node=node, state=state, card=card, code=code, problem=problem)
        reports.write(f"{REPORTS}{_job_id()}", found.content())

    report(SlotState.RUNNING)
    try:
        with interruptible():
            own = parts or SweepParts()
            gpus = _gpus(job, own, node)
            report(SlotState.RUNNING, card=card_of(gpus))
            _run(job, own, reports, node, gpus)
    except Interrupted as error:
        raise SystemExit(EXIT_SIGNAL_BASE + error.number) from error
    except ProfilerError as error:
        # submitit raises at the time limit, whatever runs then, and others may take that for an error of their own.
        code, problem = (EXIT_INTERNAL, job.problem) if job.problem else (error.exit_code, str(error))
        report(SlotState.ENDED, code, problem)
        raise
    except Exception as error:
        report(SlotState.ENDED, EXIT_INTERNAL, job.problem or f"Unforeseen {type(error).__name__}: {error}")
        raise
    report(SlotState.ENDED)


def _job_id() -> str:
    from submitit import JobEnvironment

    return str(JobEnvironment().job_id)


def _run(job: SlotJob, parts: SweepParts, reports: FolderObjects, node: str, gpus: VisibleGpus) -> None:
    parts = replace(parts, visible_gpus=lambda: gpus, watch=_counting(parts, job))
    found = Node(name=node, versions=parts.installed_versions(), gpus=gpus)
    if faults := version_faults(found, Scheduler.SLURM, job.versions):
        raise UsageError(faults)
    config_of = remembering(parts.load_model_config)
    architecture_of = architecture_lookup(config_of)
    (sweep,) = prepare_each(read_command(job.words), parts, architecture_of, config_of)
    in_python = Node(name=node, versions=sweep.versions, gpus=gpus)
    if faults := version_faults(in_python, Scheduler.SLURM, job.trial_versions):
        raise UsageError(faults)
    _check_hardware(sweep, job, reports, node)
    make_writable(sweep.folder)
    plan = under_earlier_names(sweep, planned(sweep), parts)
    run_plan(sweep, plan, parts, architecture_of, marks=reports)


def _gpus(job: SlotJob, parts: SweepParts, node: str) -> VisibleGpus:
    """Return the GPUs of the slot; none if it asked for none, whatever the node shows.

    Raises:
        UsageError: It asked for some, and there are none.
    """
    if job.gpus is None:
        return VisibleGpus(gpus=(), note=f"the slot has none without {GPUS}=1")
    visible = parts.visible_gpus()
    if not visible.gpus:
        problem = f"node {node} shows none ({visible.note})"
        raise UsageError(
            [Fault(key=GPUS, found=str(job.gpus), problem=problem, hint="Choose another slurm_partition.")]
        )
    return visible


def _check_hardware(sweep: Sweep, job: SlotJob, reports: FolderObjects, node: str) -> None:
    """Check that measured trials have the card and the driver of the first slot, which are part of their identity.

    Raises:
        UsageError: They differ.
    """
    own = next((sweep.hardware_of(spec) for spec in sweep.specs if spec.backend is Backend.CUDA), "")
    if not own or reports.create(HARDWARE, own.encode()):
        return
    first = (reports.read(HARDWARE) or b"").decode()
    if first != own:
        problem = f"node {node} has {own}, and the first node {first}"
        hint = f"Ask for one kind of card with {GPUS}=KIND:1 or slurm_partition."
        raise UsageError([Fault(key=GPUS, found=str(job.gpus), problem=problem, hint=hint)])


class _Counting:
    """An observer that counts the trials that this slot has run."""

    def __init__(self, observer: "SweepObserver", job: SlotJob) -> None:
        self._observer = observer
        self._job = job
        self._running: set[str] = set()

    def started(self, trial: PlannedTrial) -> None:
        """Note that a trial runs here."""
        self._running.add(trial.trial_id)
        self._observer.started(trial)

    def lost(self, trial: PlannedTrial) -> None:
        """Pass the event on."""
        self._observer.lost(trial)

    def machines(self, found: Machines) -> None:
        """Pass the event on."""
        self._observer.machines(found)

    def waiting(self, reason: str) -> None:
        """Pass the reason on."""
        self._observer.waiting(reason)

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Count a trial that ran here."""
        self._job.finished += trial.trial_id in self._running
        self._observer.finished(trial, record)


def _counting(parts: SweepParts, job: SlotJob) -> Callable[[SweepTally], "AbstractContextManager[SweepObserver]"]:
    @contextmanager
    def watch(tally: SweepTally) -> "Iterator[SweepObserver]":
        with parts.watch(tally) as observer:
            yield _Counting(observer, job)

    return watch
