"""`CudaDevice` for a program that is not ours: CUDA stays untouched until the program itself initialises it.

A script can choose its cards, set the allocator or fork processes before it uses CUDA, as long as nobody else has.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from profiler.domain.runs.script import NamedCard
from profiler.measurement.counters.cuda import OutOfMemoryCallback
from profiler.measurement.counters.shared_counters import Stats
from profiler.measurement.counters.torch_cuda import TorchCuda

_CUDA: Any = torch.cuda
"""torch has no types for the functions that are used here."""


class LateCuda(TorchCuda):
    """One visible CUDA device. Before CUDA is initialised nothing is in use, and `card` has the rest."""

    def __init__(self, card: NamedCard, *, device: int = 0) -> None:
        super().__init__(device)
        self._card = card
        self._process = os.getpid()

    @property
    def is_used(self) -> bool:
        """Whether the program has initialised CUDA. Never in a process that it has forked."""
        return bool(_CUDA.is_initialized()) and os.getpid() == self._process

    def name(self) -> str:
        """The driver's name of the card."""
        return self._card.name

    def uuid(self) -> str:
        """The driver's UUID of the card."""
        return self._card.uuid

    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self._card.compute_capability

    def total_bytes(self) -> int:
        """Torch's total once CUDA is initialised; before, the driver's."""
        return super().total_bytes() if self.is_used else self._card.memory_bytes

    def free_bytes(self) -> int:
        """`torch.cuda.mem_get_info`."""
        return super().free_bytes() if self.is_used else self._card.memory_bytes

    def synchronize(self) -> None:
        """`torch.cuda.synchronize`."""
        if self.is_used:
            super().synchronize()

    def stats_now(self) -> Stats:
        """Return all counters; empty while CUDA is untouched."""
        return super().stats_now() if self.is_used else {}

    def reset(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        if self.is_used:
            super().reset()

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Attach the observer when CUDA is initialised."""
        attach = super().when_out_of_memory
        _CUDA._lazy_call(lambda: attach(callback))

    def record_history(self, *, most_entries: int) -> None:
        """Record from when CUDA is initialised on."""
        record = super().record_history
        _CUDA._lazy_call(lambda: record(most_entries=most_entries))

    def record_stacks(self) -> None:
        """Keep the Python stack of each allocation that is in use, and no history."""

        def record() -> None:
            torch.cuda.memory._record_memory_history("state", context="state", stacks="python", max_entries=1)

        _CUDA._lazy_call(record)

    def snapshot(self) -> Mapping[str, Any]:
        """`torch.cuda.memory._snapshot`."""
        return super().snapshot() if self.is_used else {"segments": [], "device_traces": [[]]}


class CheapCuda(LateCuda):
    """`LateCuda` that never waits for the GPU. Its counters are those of the last `synchronize`.

    Peaks need no waiting: the allocator counts on the host, when a kernel is launched.
    """

    def __init__(self, card: NamedCard, *, device: int = 0) -> None:
        super().__init__(card, device=device)
        self._counted: Stats = {}

    def synchronize(self) -> None:
        """Read all counters at once, and do not wait."""
        self._counted = super().stats_now()

    def stats_now(self) -> Stats:
        """Return the counters of the last `synchronize`."""
        return self._counted
