"""torch's memory counters for two readers: a reset by one of them hides nothing from the other.

The profiler reads and resets the peaks at each phase. The program that it watches has its own figures to print, and may
reset the peaks too. Each of the two keeps what the other's reset would take away.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from profiler.seams.patching import patched

Stats = Mapping[Any, Any]
"""Counters of one device as `torch._C._cuda_memoryStats` nests them; a leaf with a peak has the key ``"peak"``."""

_READ = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESET_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_RESET_SUMS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")
"""All ways of `torch.cuda` and `torch.accelerator` to the counters end in these functions."""
_SUMS = ("num_alloc_retries", "num_ooms")
"""Counts that the second kind of reset sets to 0 and the profiler reads."""


class SharedCounters:
    """The counters of one CUDA device, as the profiler has reset them and as the program has.

    The program's own calls see its side while `shown_to_the_program` is active.
    """

    def __init__(self, device: int) -> None:
        """Take torch's functions of now, which are those of another profiler if one watches already."""
        self._device = device
        self._torch = {name: found for name in _NAMES if (found := getattr(torch._C, name, None)) is not None}
        self._own_peaks: Stats = {}
        self._programs_peaks: Stats = {}
        self._own_sums: dict[str, int] = {}

    def read(self) -> Stats:
        """Return the counters with peaks since the profiler's own reset; empty if torch was built without CUDA."""
        now = self._now()
        return {**_with_higher_peaks(now, self._own_peaks), **_sums(now, self._own_sums)} if now else {}

    def reset(self) -> None:
        """Begin the profiler's peaks anew at what is in use now."""
        self._programs_peaks = _with_higher_peaks(self._now(), self._programs_peaks)
        self._own_peaks = {}
        self._torch[_RESET_PEAKS[0]](self._device)

    def shown_to_the_program(self) -> AbstractContextManager[None]:
        """Return a context in which torch's functions read and reset the program's side."""
        sides: tuple[tuple[tuple[str, ...], Callable[[str], Callable[[int], Any]]], ...] = (
            (_READ, self._reads),
            (_RESET_PEAKS, self._resets_peaks),
            (_RESET_SUMS, self._resets_sums),
        )
        # A build without CUDA has only the functions of other accelerators.
        names = self._torch if _READ[0] in self._torch else {}
        return patched([(torch._C, name, side(name)) for kind, side in sides for name in kind if name in names])

    def _now(self) -> Stats:
        read = self._torch.get(_READ[0])
        return {} if read is None else read(self._device)

    def _reads(self, name: str) -> Callable[[int], Any]:
        def read(device: int) -> Stats:
            found = self._torch[name](device)
            return _with_higher_peaks(found, self._programs_peaks) if device == self._device else found

        return read

    def _resets_peaks(self, name: str) -> Callable[[int], Any]:
        def reset(device: int) -> None:
            if device == self._device:
                self._own_peaks = _with_higher_peaks(self._now(), self._own_peaks)
                self._programs_peaks = {}
            self._torch[name](device)

        return reset

    def _resets_sums(self, name: str) -> Callable[[int], Any]:
        def reset(device: int) -> None:
            if device == self._device:
                self._own_sums = _sums(self._now(), self._own_sums)
            self._torch[name](device)

        return reset


_NAMES = (*_READ, *_RESET_PEAKS, *_RESET_SUMS)


def _with_higher_peaks(now: Stats, before: Stats) -> Stats:
    """Return `now` with each peak that was higher `before`."""
    return {name: _higher(name, value, before.get(name)) for name, value in now.items()}


def _higher(name: object, now: Any, before: Any) -> Any:  # noqa: ANN401  # a number, or numbers by name
    if isinstance(now, Mapping):
        return _with_higher_peaks(now, before or {})
    return max(now, before or 0) if name == "peak" else now


def _sums(now: Stats, before: Mapping[str, int]) -> dict[str, int]:
    return {name: now[name] + before.get(name, 0) for name in _SUMS if name in now}
