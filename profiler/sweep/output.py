"""The progress of a sweep, which continues when its output is closed: `| head`, a closed terminal.

The sweep then continues without output: its results are on the disk, and the same command shows them again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from profiler.command_line import readable
from profiler.domain.machines.sweep_state import Machines
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial

if TYPE_CHECKING:
    from profiler.execution import SweepObserver


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
