"""The protocol of a device on which a script runs, and its simplest implementation.

`running.py` runs a script in a session. Real and emulated cards use `CountedSession`; the simulated card has a session
of its own, with the same methods.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from profiler.domain.memory import Phase


class ScriptSession(Protocol):
    """A device for one script, with whatever follows the script on it.

    The order of calls: `running()` is entered; `enter(Phase.LOAD)`; the script runs and the other methods are called as
    things are seen; `running()` is left, after the script's exit handlers. All calls are made by the script's threads,
    before the thing that they announce has allocated anything.
    """

    def running(self) -> AbstractContextManager[None]:
        """The context of the whole script, from its first line to its last exit handler."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`; it lasts until the next one begins. Called again with the same phase when it is resumed."""

    def model_found(self, model: Any) -> None:
        """Take note of a module that runs in no other module, before its first forward pass."""

    def optimizer_found(self, optimizer: Any) -> None:
        """Take note of an optimizer, before its first step."""

    def step_done(self, step: int) -> None:
        """Take note that optimizer step `step`, from 1, is over. The script may be ended right after this call."""


class PhaseObserver(Protocol):
    """Is notified when a phase begins; a phase lasts until the next one begins."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""


@dataclass(frozen=True, kw_only=True)
class CountedSession:
    """A real or emulated card, whose counters `observer` reads."""

    observer: PhaseObserver

    def running(self) -> AbstractContextManager[None]:
        """Do nothing: the script finds the card by itself."""
        return nullcontext()

    def enter(self, phase: Phase) -> None:
        """Pass the phase on."""
        self.observer.enter(phase)

    def model_found(self, model: Any) -> None:
        """Do nothing: counters need no model."""

    def optimizer_found(self, optimizer: Any) -> None:
        """Do nothing."""

    def step_done(self, step: int) -> None:
        """Do nothing."""
