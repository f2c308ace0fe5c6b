"""What a sweep needs of an engine: its nodes, and slots that run one trial at a time."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from profiler.cluster.remote import RemoteResult, RemoteTask
from profiler.cluster.trial_python import TrialPython
from profiler.domain.errors import Fault
from profiler.domain.machines.sweep_state import Machines
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.measurement.driver.visible import VisibleGpus


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
