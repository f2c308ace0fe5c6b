"""Protocols of the objects that are notified while a trial trains."""

from typing import Protocol

from profiler.domain.memory import Phase


class PhaseObserver(Protocol):
    """Is notified when a phase begins; a phase lasts until the next one begins."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`. Called again with the same phase when it is resumed."""


class TrainingObserver(PhaseObserver, Protocol):
    """Is also notified when the trainer is ready."""

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Take note of the number of parameters and of trainable ones."""
