"""What runs on the machine of a slot, whatever the engine is."""

import os
import socket
from dataclasses import replace

from profiler.cluster.remote import RemoteResult, RemoteTask, run_remote
from profiler.cluster.slots import Node
from profiler.cluster.trial_python import TrialPython
from profiler.cluster.work_folder import remove_abandoned
from profiler.domain.errors import UsageError
from profiler.domain.machines.extras import TRAINING, missing
from profiler.execution import GpuPool
from profiler.measurement.driver.nvml import Nvml
from profiler.measurement.driver.visible import VisibleGpus, visible_gpus
from profiler.storage.records.versions import installed_versions

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
