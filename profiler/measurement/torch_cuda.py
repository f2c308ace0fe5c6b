"""Implementation of `CudaDevice` by torch. Importing this module initialises no GPU; the first call may."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from profiler.measurement.cuda import OutOfMemoryCallback
from profiler.seams.patching import patched

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
        self._allocated_before, self._reserved_before = 0, 0
        self._reset = torch.cuda.reset_peak_memory_stats

    def peaks_kept(self) -> AbstractContextManager[None]:
        """Replace torch's function: DeepSpeed, for one, resets the counters while it shards a model."""

        def keep_and_reset(device: torch.device | str | int | None = None) -> None:
            self._read()
            self._allocated_before, self._reserved_before = self.peak_allocated_bytes(), self.peak_reserved_bytes()
            self._reset(device)

        return patched([(torch.cuda, "reset_peak_memory_stats", keep_and_reset)])

    def _read(self) -> None:
        """Do nothing: each counter is read when it is asked for."""

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
        """`torch.cuda.max_memory_allocated`, also of before a library's reset."""
        return max(self._allocated_before, int(torch.cuda.max_memory_allocated(self._device)))

    def peak_reserved_bytes(self) -> int:
        """`torch.cuda.max_memory_reserved`, also of before a library's reset."""
        return max(self._reserved_before, int(torch.cuda.max_memory_reserved(self._device)))

    def reset(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        self._allocated_before, self._reserved_before = 0, 0
        self._reset(self._device)

    def allocated_bytes(self) -> int:
        """`torch.cuda.memory_allocated`."""
        return int(torch.cuda.memory_allocated(self._device))

    def reserved_bytes(self) -> int:
        """`torch.cuda.memory_reserved`."""
        return int(torch.cuda.memory_reserved(self._device))

    def peak_inactive_split_bytes(self) -> int:
        """`inactive_split_bytes.all.peak` of `memory_stats`."""
        return int(torch.cuda.memory_stats(self._device).get("inactive_split_bytes.all.peak", 0))

    def alloc_retries(self) -> int:
        """`num_alloc_retries` of `memory_stats`."""
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    def failed_allocations(self) -> int:
        """`num_ooms` of `memory_stats`."""
        return int(torch.cuda.memory_stats(self._device).get("num_ooms", 0))

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
