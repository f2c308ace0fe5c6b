"""The progress of a sweep, and what happens when nobody reads it any more: `| head`, a closed terminal.

The sweep goes on in silence: what it finds is on the disk, and the same command shows it again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from profiler.command_line import readable
from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import PlannedTrial

if TYPE_CHECKING:
    from profiler.execution import SweepObserver


class WhileReadable:
    """An observer that shows what it is told for as long as somebody reads. Use it as a context manager."""

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
        """Passed on."""
        self._tell(lambda observer: observer.started(trial))

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Passed on."""
        self._tell(lambda observer: observer.finished(trial, record))

    def _tell(self, what: Callable[["SweepObserver"], None]) -> None:
        observer, self._observer = self._observer, None
        if observer is None:
            return
        with readable():
            what(observer)
            self._observer = observer
