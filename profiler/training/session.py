"""The protocol of a place where a trial trains, and of what is notified of its phases.

The protocol of a place where a trial trains, and its simplest implementation.

Three classes implement it: the simulated GPU (`simulation/session.py`), the tracing mode on a real device
(`simulation/tracing/tracing_mode.py`) and `PlainSession`. `run.py` calls them in one fixed order.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from profiler.domain.memory import Phase
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import Placement, RealDevice


class PhaseObserver(Protocol):
    """Is notified when a phase begins; a phase lasts until the next one begins."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`. Called again with the same phase when it is resumed."""


class TrainingObserver(PhaseObserver, Protocol):
    """Is also notified when the trainer is ready."""

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Take note of the number of parameters and of trainable ones."""


class Session(Placement, PhaseObserver, Protocol):
    """A device for one trial, with whatever follows the trial on it."""

    def running(self) -> AbstractContextManager[None]:
        """The context in which the trainer is built and trains."""

    def adopt(self, arguments: Any) -> None:
        """Move the trainer's arguments to the device before anything uses them."""

    def trainer_ready(self, trainer: Any) -> None:
        """Prepare for training: the trainer is built."""

    def trainer_done(self, trainer: Any) -> None:
        """Finish: training is over."""


@dataclass(frozen=True, kw_only=True)
class PlainSession(RealDevice):
    """A real device without tracing; `observer` is notified of phases and of the model."""

    observer: TrainingObserver

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self.observer.enter(phase)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave the group of processes at the end; accelerate joins it where there are several.

        After an error the group stays: to leave it, NCCL would wait for the other ranks.
        """
        yield
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def adopt(self, arguments: Any) -> None:
        """Do nothing: transformers finds the device."""

    def trainer_ready(self, trainer: Any) -> None:
        """Pass the size of the model on."""
        parameters, trainable = parameter_counts(trainer.model)
        self.observer.model_built(parameters=parameters, trainable=trainable)

    def trainer_done(self, trainer: Any) -> None:
        """Do nothing."""
