"""What the loop of a sweep needs of an engine: slots, each of which runs one trial at a time, and signals that wait."""

import signal
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import FrameType
from typing import Protocol, TypeVar

from profiler.domain.errors import ProfilerError
from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.execution.trials import LockedTrial

Kind = TypeVar("Kind", bound=Hashable)
"""What a slot has: trials that need the same can use the same slots."""


class Start(Enum):
    """What became of a trial that was about to start."""

    RUNS = auto()
    WAITS = auto()
    """It waits for what it needs to run on."""
    CLAIMED = auto()
    """Another sweep runs it."""
    NEEDLESS = auto()
    """It needs no run, or nothing is left that it could run on."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a run."""

    slot: Hashable
    records: Mapping[str, TrialRecord] = field(default_factory=dict)
    """By the id of the trial. A trial of the run that has no record here runs again."""
    is_lost: bool = False
    """Whether its worker, machine or GPU was lost."""
    is_suspect: bool = False
    """Whether the trial may have broken what it ran on. It then runs after all others."""
    error: ProfilerError | None = None
    """Why the sweep cannot go on."""


class Slots(Protocol[Kind]):
    """The slots of one engine for one sweep."""

    @property
    def are_fixed(self) -> bool:
        """Whether slots neither come nor go, so that the loop may block until another sweep has ended a trial."""

    def kind_of(self, spec: TrialSpec, /) -> Kind:
        """Return the kind of slot that a trial needs. Trials of one kind start in the order of the plan."""

    def free(self, waiting: Mapping[Kind, int], /) -> Mapping[Kind, Sequence[Hashable]]:
        """Return the slots that can take a trial now, by kind; start slots for what waits.

        Args:
            waiting: How many trials wait, by the kind of slot that they need.

        Raises:
            ProfilerError: The engine can start no slot any more.
        """

    def may_start(self, trial: PlannedTrial, /) -> bool:
        """Return whether a trial can start on a free slot, as far as that is known before it is claimed."""

    def start(self, slot: Hashable, claims: Sequence[LockedTrial], /) -> Start:
        """Start a run of the first trial, which answers the others too, on a free slot."""

    def wait(self) -> Iterable[Ended]:
        """Wait until a run ends or slots may have changed, and yield the runs that have ended.

        The claims are still held: what a run has left is in the store before they are released.
        """

    def machines(self) -> Machines | None:
        """Return the machines of the engine; None if they do not change."""

    def close(self) -> None:
        """End all runs and slots with their processes."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""SIGUSR2, because submitit announces with it that the time of a slot ends."""


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Handle signals that arrive in the block after it. Handlers raise, so they could end the block half-way.

    Only handlers in Python are postponed, and only in the main thread, which runs them. A mask of signals would not
    do: the kernel then delivers them to another thread, and Python still runs the handler in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    arrived: list[int] = []

    def postpone(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    try:
        for number in handlers:
            signal.signal(number, postpone)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        handlers[signal.Signals(arrived[0])](arrived[0], None)
