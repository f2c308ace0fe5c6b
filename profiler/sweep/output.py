"""What a sweep prints, and what happens when nobody reads it any more: `| head`, a closed terminal.

The sweep goes on in silence: what it finds is on the disk, and the same command shows it again.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Self, TextIO

from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import PlannedTrial

if TYPE_CHECKING:
    from profiler.execution import SweepObserver


def say(line: str) -> None:
    """One line for the user."""
    with readable():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def complain(line: str) -> None:
    """One line on standard error."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


@contextmanager
def readable() -> Iterator[None]:
    """A block that prints. If nobody reads standard output any more it ends early, and later ones print to nowhere.

    rich turns a closed pipe into `SystemExit`, which must not end the sweep.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        if not _is_unread(error):
            raise
        _silence(sys.stdout)


def _is_unread(error: BaseException) -> bool:
    """Whether `error` is from printing: a closed pipe, a terminal that is gone, or rich's way to say so."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNREAD


_UNREAD = (5, 32)
"""EIO, EPIPE."""


def _silence(stream: TextIO) -> None:
    """Have the stream lead nowhere, so that what Python still holds back for it fails no more either."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


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
