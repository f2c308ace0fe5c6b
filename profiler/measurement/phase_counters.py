"""CUDA's own counters, read and reset where each phase ends, so that every phase has its own exact peak."""

from typing import Protocol

from profiler.domain.memory import Phase
from profiler.domain.outcome import PhasePeak


class Counters(Protocol):
    """The framework's memory counters."""

    def peak_allocated_bytes(self) -> int:
        """The highest allocated memory since the last reset."""

    def peak_reserved_bytes(self) -> int:
        """The highest reserved memory since the last reset."""

    def reset(self) -> None:
        """Begin anew at what is in use now."""


class TorchCudaCounters:
    """torch's counters of the current CUDA device."""

    def peak_allocated_bytes(self) -> int:
        """`torch.cuda.max_memory_allocated`."""
        import torch

        return int(torch.cuda.max_memory_allocated())

    def peak_reserved_bytes(self) -> int:
        """`torch.cuda.max_memory_reserved`."""
        import torch

        return int(torch.cuda.max_memory_reserved())

    def reset(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        import torch

        torch.cuda.reset_peak_memory_stats()


class PhaseCounters:
    """An observer of phases that keeps the highest counters of each."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._allocated: dict[Phase, int] = {}
        self._reserved: dict[Phase, int] = {}
        self._phase: Phase | None = None

    @property
    def phase(self) -> Phase | None:
        """The phase the trial is in; None before the first."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """`phase` begins: the counters so far belong to the phase before it."""
        self.read()
        self._counters.reset()
        self._phase = phase

    def read(self) -> None:
        """Take the counters into the current phase."""
        if self._phase is None:
            return
        allocated, reserved = self._counters.peak_allocated_bytes(), self._counters.peak_reserved_bytes()
        self._allocated[self._phase] = max(self._allocated.get(self._phase, 0), allocated)
        self._reserved[self._phase] = max(self._reserved.get(self._phase, 0), reserved)

    def peaks(self) -> tuple[PhasePeak, ...]:
        """The peaks of every phase so far, in the order they first began."""
        return tuple(
            PhasePeak(phase=phase, peak_allocated_bytes=allocated, peak_reserved_bytes=self._reserved[phase])
            for phase, allocated in self._allocated.items()
        )
