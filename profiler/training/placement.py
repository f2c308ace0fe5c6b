"""Where a trial's tensors live, as far as training has to know."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from profiler.domain.memory import Category


class DecodeExtrapolator(Protocol):
    """Tells decoding steps over instead of running them, where they repeat."""

    def rollout_begins(self) -> None:
        """Generation begins."""

    def step_begins(self) -> bool:
        """The forward pass of a token is about to be prepared. False if what was told before turned out wrong."""

    def restart(self) -> None:
        """From here on steps may be of another kind: none before this one says anything about them."""

    def repeat(self, steps: int, growing: Iterable[tuple[torch.Tensor, int]]) -> int:
        """Tell up to `steps` steps over if the last ones repeat, and how many were.

        `growing` are the tensors that each step makes longer by one, with the dimension; they come back as long as the
        steps would have made them.
        """

    def rollout_ends(self) -> bool:
        """Generation is over. False if what was told turned out wrong."""

    def undo(self) -> None:
        """What was told was wrong and its tensors are gone: forget the rollout."""


class Placement(Protocol):
    """The device of a trial: a real one, or one that is not there."""

    @property
    def device(self) -> torch.device:
        """Where models and batches go."""

    @property
    def use_cpu(self) -> bool:
        """Whether transformers is to be told not to look for a GPU."""

    def host_side(self) -> AbstractContextManager[None]:
        """A context in which nothing that is made counts as memory of the device."""

    def attributed(self, category: Category) -> AbstractContextManager[None]:
        """A context in which new memory of the device belongs to `category`."""

    def decode_extrapolator(self) -> DecodeExtrapolator | None:
        """What can tell decoding steps over; None where each has to run."""


@dataclass(frozen=True, kw_only=True)
class RealDevice:
    """A CPU or a GPU that is there; it keeps no books."""

    device: torch.device

    @property
    def use_cpu(self) -> bool:
        """True for the CPU."""
        return self.device.type == "cpu"

    def host_side(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def attributed(self, category: Category) -> AbstractContextManager[None]:  # noqa: ARG002  # part of the protocol
        """Nothing to do."""
        return nullcontext()

    def decode_extrapolator(self) -> None:
        """Tokens are decoded one by one."""
        return
