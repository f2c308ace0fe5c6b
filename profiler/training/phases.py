"""Who listens to what the trainer is doing."""

from typing import Protocol

from profiler.domain.memory import Phase


class PhaseObserver(Protocol):
    """Told when a phase begins; a phase lasts until the next one begins."""

    def enter(self, phase: Phase) -> None:
        """`phase` begins now. Called again with the same phase when it is resumed."""
