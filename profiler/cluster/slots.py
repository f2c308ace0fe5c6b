"""Slots of an engine: how it is reached, what a sweep needs of its slots, and what runs on the machine of each."""

import os
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from profiler.cluster.arrays.slurm import slurm_faults
from profiler.cluster.remote import RemoteResult, RemoteTask, TrialPython, remove_abandoned, run_remote
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.engines import Machines, Scheduler
from profiler.domain.machines.extras import TRAINING, Extra, missing, require
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.execution import GpuPool
from profiler.measurement.driver.nvml import Nvml
from profiler.measurement.driver.visible import VisibleGpus, visible_gpus
from profiler.storage.records.versioned import installed_versions


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster."""

    name: str
    versions: Versions
    """What is installed there, in the Python of the trials."""
    gpus: VisibleGpus
    lacks: tuple[str, ...] = ()
    """Modules that a worker imports and that are not installed there."""
    faults: tuple[Fault, ...] = ()
    """Why the Python of the trials cannot be used there."""
    accelerator: str = ""
    """The engine's name of its cards; empty if it has none."""


@dataclass(frozen=True, kw_only=True)
class SlotKind:
    """What one slot has; trials of equal kinds can use the same slots."""

    gpus: int = 0
    """Number of GPUs; with 0 a slot has one CPU core."""
    accelerator: str = ""
    """The engine's name of the card; empty for any."""
    hardware: str = ""
    """Card and driver, as the identity of measured trials has them; empty without a GPU."""


KindOf = Callable[[TrialSpec], SlotKind]
"""Returns the slots that a trial needs."""


@dataclass(frozen=True, kw_only=True)
class EndedTask:
    """The end of a task."""

    slot: Hashable
    result: RemoteResult | None
    """None if the slot was lost with its process or its machine."""
    reason: str = ""
    """Why the slot was lost, as the engine says it."""


class RemoteSlots(Protocol):
    """Long-lived places that run one task each. Lost ones are replaced, or done without."""

    def free(self, waiting: Mapping[SlotKind, int]) -> Mapping[Hashable, SlotKind]:
        """Return the slots that can take a task now; start slots for what waits, and end those that nothing needs.

        Args:
            waiting: How many trials wait, by the kind of slot that they need.

        Raises:
            ProfilerError: The engine can start no slot any more.
        """

    def run(self, slot: Hashable, task: RemoteTask) -> None:
        """Start a task on a free slot."""

    def wait(self, *, most_s: float) -> Sequence[EndedTask]:
        """Return the tasks that have ended, after `most_s` at most; also wait if no task runs."""

    def retire(self, slot: Hashable, reason: str) -> None:
        """Use a slot no longer, and do not replace it by one in the same place."""

    def machines(self) -> Machines:
        """Return the machines of the engine, and how many of them run a task."""

    def close(self) -> None:
        """End all slots with their processes."""

    @property
    def notes(self) -> Sequence[str]:
        """One sentence per retired slot."""


class Cluster(Protocol):
    """An engine that has been reached."""

    def nodes(self, python: TrialPython | None = None) -> Sequence[Node]:
        """Return the machines that trials can run on, each after it has answered.

        Args:
            python: The Python of the trials; None for that of the slots.

        Raises:
            UsageError: A machine cannot run this program.
        """

    def slots(self, *, jobs: int | None, versions: Versions, python: TrialPython | None = None) -> RemoteSlots:
        """Return the slots; none has been started.

        Args:
            jobs: Most slots; None for all that the cluster has room for.
            versions: What every slot must have installed.
            python: The Python of the trials; None for that of the slots.
        """

    def close(self) -> None:
        """Leave the cluster; end it if it was started for this sweep."""


_CHOICE = "CUDA_VISIBLE_DEVICES"


class Slot:
    """A place that runs one trial at a time, in a process of the engine that lives for many trials."""

    def __init__(self, *, gpus: int) -> None:
        """Take over `gpus` GPUs, which the engine has made visible to this process."""
        remove_abandoned()
        self._visible = self.visible() if gpus else VisibleGpus(gpus=(), note="the slot has no GPU")
        uuids = [gpu.uuid for gpu in self._visible.gpus]
        self._pool = GpuPool(uuids, nvml=self.nvml()) if gpus else None

    @classmethod
    def machine(cls, python: TrialPython | None = None) -> Node:
        """Return this machine with all of its GPUs, whatever the engine has made visible to this process.

        Args:
            python: The Python of the trials; None for this one.
        """
        chosen = os.environ.pop(_CHOICE, None)
        try:
            return _node(cls.visible(), python)
        finally:
            if chosen is not None:
                os.environ[_CHOICE] = chosen

    def node(self, python: TrialPython | None = None) -> Node:
        """Return this machine with the GPUs of this slot, and what the Python of the trials has."""
        return _node(self._visible, python)

    def run(self, task: RemoteTask) -> RemoteResult:
        """Run the trials of a task."""
        return run_remote(task, gpus=self._pool)

    @staticmethod
    def visible() -> VisibleGpus:
        """Return the GPUs that a CUDA program started here would see."""
        return visible_gpus()

    @staticmethod
    def nvml() -> Nvml:
        """Return the driver."""
        from profiler.measurement.driver.pynvml_driver import PynvmlDriver

        return PynvmlDriver()


def _node(gpus: VisibleGpus, python: TrialPython | None) -> Node:
    found = Node(name=socket.gethostname(), versions=installed_versions(), gpus=gpus)
    if python is None:
        return replace(found, lacks=missing(TRAINING))
    try:
        return replace(found, versions=python.workers().versions)
    except UsageError as error:
        return replace(found, faults=error.faults)


ENGINE = "engine"
"""The key of the engines that spread trials over machines."""

_MODULES = {Scheduler.RAY: ("ray",), Scheduler.SLURM: ("submitit",)}
_EXTRAS = {Scheduler.RAY: Extra.RAY, Scheduler.SLURM: Extra.SLURM}


def reach(options: RunOptions) -> Cluster | None:
    """Return the cluster of the engine; None if the engine is this machine, or starts slots that find their work.

    Raises:
        UsageError: The extra of the engine is not installed, or its cluster does not answer.
    """
    engine = options.engine
    if engine is Scheduler.LOCAL:
        return None
    require(ENGINE, engine, _MODULES[engine], _EXTRAS[engine])
    if engine is Scheduler.SLURM:
        if faults := slurm_faults(options):
            raise UsageError(faults)
        return None
    from profiler.cluster.ray_cluster import reach_ray  # imports ray, an extra

    return reach_ray(options.ray_address, jobs=options.jobs)
