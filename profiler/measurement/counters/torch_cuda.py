"""Implementation of `CudaDevice` by torch. Importing this module initialises no GPU; the first call may."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from profiler.measurement.counters.cuda import OutOfMemoryCallback
from profiler.measurement.counters.shared_counters import SharedCounters, Stats

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
        """`torch.cuda.memory._record_memory_history`, with Python's stacks."""
        torch.cuda.memory._record_memory_history(max_entries=most_entries, stacks="python")

    def snapshot(self) -> Mapping[str, Any]:
        """`torch.cuda.memory._snapshot`."""
        return cast("Mapping[str, Any]", torch.cuda.memory._snapshot(self._device))


def _has_text(error: BaseException, texts: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
