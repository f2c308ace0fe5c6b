"""Where a trial's tensors live, as far as training needs it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from profiler.domain.memory import Category


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

    def host_side(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def attributed(self, category: Category) -> AbstractContextManager[None]:  # noqa: ARG002  # part of the protocol
        """Do nothing."""
        return nullcontext()

    def decode_extrapolator(self) -> DecodeExtrapolator | None:
        """Return None: every decoding step runs."""
        return None
