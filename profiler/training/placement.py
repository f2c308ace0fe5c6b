"""Where a trial's tensors live, as far as training has to know."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from profiler.domain.memory import Category


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
