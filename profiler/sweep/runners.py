"""Where the trials of a sweep run: this machine, slots of a cluster, or slots that find their work themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from profiler.cluster.arrays.array import SlotArray
from profiler.cluster.placing import run_placed
from profiler.cluster.slots import Cluster, KindOf
from profiler.cluster.trial_python import by_card, trial_python
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import GpuPool, OpenTrials, WorkerProgram, run_trials
from profiler.execution.job import TRIAL_WORKER


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
