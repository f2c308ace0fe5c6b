"""The place where a trial trains: where its tensors live, and what follows the trial there.

Three classes implement it: the simulated GPU (`simulation/session.py`), the tracing mode on a real device
(`worker/cuda/attributed.py`) and `PlainSession` of `run.py`, which calls them in one fixed order.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from profiler.domain.memory import Category, Phase


class DecodeExtrapolator(Protocol):
    """Adds decoding steps that repeat to a trace without running them."""

    @property
    def most_rollouts(self) -> int:
        """Rollouts of a trial that are extrapolated; later ones fill their cache at once."""

    def rollout_begins(self) -> None:
        """Begin a rollout."""

    def step_begins(self) -> bool:
        """Begin a decoding step. Return False on an extrapolation mismatch."""

    def restart(self) -> None:
        """Forget the steps so far: those that follow may be of another kind."""

    def repeat(self, steps: int, growing: Iterable[tuple[torch.Tensor, int]]) -> int:
        """Extrapolate up to `steps` steps if the last ones repeat, and return the number extrapolated.

        `growing` are the tensors that each step makes longer by one, with the dimension. They are lengthened as the
        steps would have lengthened them.
        """

    def rollout_ends(self) -> bool:
        """End the rollout. Return False on an extrapolation mismatch."""

    def undo(self) -> None:
        """Remove the rollout from the trace, after a mismatch and once its tensors are freed."""


class Placement(Protocol):
    """The device of a trial, real or simulated."""

    @property
    def device(self) -> torch.device:
        """The device of models and batches."""

    @property
    def use_cpu(self) -> bool:
        """Whether transformers has to be kept from looking for a GPU."""

    def host_side(self) -> AbstractContextManager[None]:
        """A context in which new tensors do not count as memory of the device."""

    def attributed(self, category: Category) -> AbstractContextManager[None]:
        """A context in which new memory of the device belongs to `category`."""

    @property
    def whole_config(self) -> Mapping[str, Any] | None:
        """The fields of the model's `config.json` where fewer layers run than it has; None where all run."""

    def decode_extrapolator(self) -> DecodeExtrapolator | None:
        """Return the extrapolator of decoding steps; None where every step runs."""


@dataclass(frozen=True, kw_only=True)
class RealDevice:
    """A CPU or a GPU without tracing."""

    device: torch.device

    @property
    def use_cpu(self) -> bool:
        """True for the CPU."""
        return self.device.type == "cpu"

    @property
    def whole_config(self) -> None:
        """None: all layers run."""
        return

    def host_side(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def attributed(self, category: Category) -> AbstractContextManager[None]:  # noqa: ARG002  # part of the protocol
        """Do nothing."""
        return nullcontext()

    def decode_extrapolator(self) -> DecodeExtrapolator | None:
        """Return None: every decoding step runs."""
        return None


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
