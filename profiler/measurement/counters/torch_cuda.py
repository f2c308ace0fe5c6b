"""CUDA by torch: for a measured trial, for a program that is not ours, and for two readers.

torch's memory counters for two readers: a reset by one of them hides nothing from the other.

The profiler reads and resets the peaks at each phase. The program that it watches has its own figures to print, and may
reset the peaks too. Each of the two keeps what the other's reset would take away.

Implementation of `CudaDevice` by torch. Importing this module initialises no GPU; the first call may.

`CudaDevice` for a program that is not ours: CUDA stays untouched until the program itself initialises it.

A script can choose its cards, set the allocator or fork processes before it uses CUDA, as long as nobody else has.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from profiler.domain.runs.other_runs import NamedCard
from profiler.measurement.counters.phase_counters import OutOfMemoryCallback
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


_CUDA: Any = torch.cuda
"""torch has no types for the function that is used here."""

_NO_MEMORY_LEFT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation")
"""Messages of libraries that allocate by the driver (cuBLAS, bitsandbytes)."""
_NO_HANDLE = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)
"""Messages of libraries that could not create their handle: on a full card, and for other reasons."""


class TorchCuda:
    """One visible CUDA device. torch's counters are exact; see `torch.cuda.memory_stats`."""

    def __init__(self, device: int = 0) -> None:
        self._device = device
        self._shared = SharedCounters(device)

    def stats_now(self) -> Stats:
        """Return all counters; empty before CUDA is initialised."""
        return self._shared.read() if _CUDA.is_initialized() else {}

    def counters_shared(self) -> AbstractContextManager[None]:
        """As `SharedCounters.shown_to_the_program`: vLLM and DeepSpeed, for two, reset the counters while they load."""
        return self._shared.shown_to_the_program()

    def _bytes(self, counter: str, kind: str) -> int:
        return int(self.stats_now().get(counter, {}).get("all", {}).get(kind, 0))

    def set_allocator_settings(self, settings: str) -> None:
        """As `PYTORCH_ALLOC_CONF`."""
        torch._C._accelerator_setAllocatorSettings(settings)

    def name(self) -> str:
        """`get_device_properties(0).name`."""
        return str(torch.cuda.get_device_properties(self._device).name)

    def uuid(self) -> str:
        """`get_device_properties(0).uuid`, with the driver's prefix, which torch omits."""
        found = str(torch.cuda.get_device_properties(self._device).uuid)
        return found if found.startswith(("GPU-", "MIG-")) else f"GPU-{found}"

    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return torch.cuda.get_device_capability(self._device)

    def total_bytes(self) -> int:
        """`get_device_properties(0).total_memory`."""
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def free_bytes(self) -> int:
        """`torch.cuda.mem_get_info`."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def limit_allocator(self, size_bytes: int) -> None:
        """`set_per_process_memory_fraction`; it caps the caching allocator only."""
        torch.cuda.set_per_process_memory_fraction(size_bytes / self.total_bytes(), self._device)

    def can_allocate(self, size_bytes: int) -> bool:
        """Allocate one tensor of bytes."""
        try:
            torch.empty(size_bytes, dtype=torch.uint8, device=torch.device("cuda", self._device))
        except torch.OutOfMemoryError:
            return False
        torch.cuda.empty_cache()  # the trial has not begun, so the cache holds nothing of it
        return True

    def synchronize(self) -> None:
        """`torch.cuda.synchronize`."""
        torch.cuda.synchronize(self._device)

    def peak_allocated_bytes(self) -> int:
        """`allocated_bytes.all.peak` of `memory_stats`."""
        return self._bytes("allocated_bytes", "peak")

    def peak_reserved_bytes(self) -> int:
        """`reserved_bytes.all.peak` of `memory_stats`."""
        return self._bytes("reserved_bytes", "peak")

    def reset(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        self._shared.reset()

    def allocated_bytes(self) -> int:
        """`allocated_bytes.all.current` of `memory_stats`."""
        return self._bytes("allocated_bytes", "current")

    def reserved_bytes(self) -> int:
        """`reserved_bytes.all.current` of `memory_stats`."""
        return self._bytes("reserved_bytes", "current")

    def peak_inactive_split_bytes(self) -> int:
        """`inactive_split_bytes.all.peak` of `memory_stats`."""
        return self._bytes("inactive_split_bytes", "peak")

    def alloc_retries(self) -> int:
        """`num_alloc_retries` of `memory_stats`."""
        return int(self.stats_now().get("num_alloc_retries", 0))

    def failed_allocations(self) -> int:
        """`num_ooms` of `memory_stats`."""
        return int(self.stats_now().get("num_ooms", 0))

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Torch's own error, or one of the libraries' messages."""
        if isinstance(error, torch.OutOfMemoryError):
            return True
        return _has_text(error, _NO_MEMORY_LEFT)

    def has_no_handle(self, error: BaseException) -> bool:
        """One of the libraries' messages."""
        return _has_text(error, _NO_HANDLE)

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """`torch._C._cuda_attach_out_of_memory_observer`, which builds without CUDA lack."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(lambda _device, requested, _total, free: callback(int(requested), int(free)))

    def record_history(self, *, most_entries: int) -> None:
        """`torch.cuda.memory._record_memory_history`, with Python's stack of each allocation.

        Without those of frees: while an error unwinds, such as the one that ends a recomputation of
        `torch.utils.checkpoint` early, torch 2.11 loses it where it reads the stack of a free ("error return without
        exception set").
        """
        torch.cuda.memory._record_memory_history(context="alloc", max_entries=most_entries, stacks="python")

    def snapshot(self) -> Mapping[str, Any]:
        """`torch.cuda.memory._snapshot`."""
        return cast("Mapping[str, Any]", torch.cuda.memory._snapshot(self._device))


def _has_text(error: BaseException, texts: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


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
