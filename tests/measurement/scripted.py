"""A scripted driver and a scripted CUDA device, for tests of measurements without a GPU."""

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from profiler.domain.memory import GIB, MIB
from profiler.measurement.driver.nvml import GpuMemory, GpuProcess, NvmlError, NvmlTrouble

UUID = "GPU-11111111-2222-3333-4444-555555555555"
TOTAL_BYTES = 80 * GIB
CONTEXT_BYTES = 500 * MIB


class Clock:
    """Advances by a fixed step at each call."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.now_s = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s


@dataclass
class ScriptedNvml:
    """One value per method, the same for every GPU, unless the method is in `broken`."""

    used_bytes: int | Callable[[], int] = 0
    listed: tuple[GpuProcess, ...] | Callable[[], tuple[GpuProcess, ...]] = ()
    errors: int = 0
    xids: tuple[int, ...] = ()
    """Returned once, as by the driver."""
    broken: dict[str, NvmlTrouble] = field(default_factory=dict)
    """Error that a method raises, by its name."""
    asked: list[str] = field(default_factory=list)
    loss_noticed: threading.Event = field(default_factory=threading.Event)
    """Set when a call reported that the GPU is lost."""

    def _answer(self, method: str, value: Any) -> Any:
        self.asked.append(method)
        if method in self.broken:
            if self.broken[method] is NvmlTrouble.GPU_LOST:
                self.loss_noticed.set()
            raise NvmlError(self.broken[method], f"{method} says {self.broken[method]}")
        return value() if callable(value) else value

    def lose(self) -> None:
        """Make every further call report that the GPU is lost."""
        for method in (
            "memory",
            "processes",
            "utilisation_percent",
            "power_watts",
            "sm_clock_mhz",
            "temperature_celsius",
        ):
            self.broken[method] = NvmlTrouble.GPU_LOST
        self.broken["uncorrected_errors"] = self.broken["xid_errors"] = NvmlTrouble.GPU_LOST

    def driver_version(self) -> str:
        return self._answer("driver_version", "580.65.06")

    def memory(self, uuid: str) -> GpuMemory:
        used = self._answer("memory", self.used_bytes)
        return GpuMemory(total_bytes=TOTAL_BYTES, used_bytes=used, free_bytes=TOTAL_BYTES - used)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self._answer("processes", self.listed)

    def utilisation_percent(self, uuid: str) -> int:
        return self._answer("utilisation_percent", 40)

    def power_watts(self, uuid: str) -> float:
        return self._answer("power_watts", 300.5)

    def sm_clock_mhz(self, uuid: str) -> int:
        return self._answer("sm_clock_mhz", 1980)

    def temperature_celsius(self, uuid: str) -> int:
        return self._answer("temperature_celsius", 61)

    def uncorrected_errors(self, uuid: str) -> int:
        return self._answer("uncorrected_errors", self.errors)

    def xid_errors(self, uuid: str) -> tuple[int, ...]:
        given, self.xids = self.xids, ()
        return self._answer("xid_errors", given)


class CudaMemoryError(RuntimeError):
    """Replaces torch.OutOfMemoryError."""


@dataclass
class ScriptedCuda:
    """A caching allocator that never releases memory, on a card with a CUDA context and other programs.

    The script moves memory with `allocate` and `free`, as training would.
    """

    others_bytes: int = 0
    tells_of_out_of_memory: bool = True
    holds_cap: bool = True
    context_bytes: int = CONTEXT_BYTES
    title: str = "NVIDIA H100 80GB HBM3"
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    limit: int = TOTAL_BYTES
    settings: str = ""
    calls: list[str] = field(default_factory=list)
    _peak_allocated: int = 0
    _peak_reserved: int = 0
    _observer: Callable[[int, int], None] = lambda requested, free: None

    def allocate(self, size_bytes: int) -> None:
        wanted = max(self.reserved, self.allocated + size_bytes)
        free = self.free_bytes()
        if wanted > self.limit or wanted - self.reserved > free:
            self.retries += 1
            if self.tells_of_out_of_memory:
                self._observer(size_bytes, free)
            raise CudaMemoryError(
                f"CUDA out of memory. Tried to allocate {size_bytes / GIB:.2f} GiB. GPU 0 has a total capacity of "
                f"{TOTAL_BYTES / GIB:.2f} GiB of which {free / GIB:.2f} GiB is free. Of the allocated memory "
                f"{self.allocated / GIB:.2f} GiB is allocated by PyTorch, and "
                f"{(self.reserved - self.allocated) / MIB:.2f} MiB is reserved by PyTorch but unallocated."
            )
        self.allocated += size_bytes
        self.reserved = wanted
        self._peak_allocated = max(self._peak_allocated, self.allocated)
        self._peak_reserved = max(self._peak_reserved, self.reserved)

    def free(self, size_bytes: int) -> None:
        self.allocated -= size_bytes

    def used_bytes(self) -> int:
        """Of the card, as the driver counts."""
        return self.others_bytes + self.context_bytes + self.reserved

    # ---- CudaDevice --------------------------------------------------------------------------------------------------

    def set_allocator_settings(self, settings: str) -> None:
        self.settings = settings

    def name(self) -> str:
        self.calls.append("name")
        return self.title

    def uuid(self) -> str:
        return UUID

    def compute_capability(self) -> tuple[int, int]:
        return (9, 0)

    def total_bytes(self) -> int:
        return TOTAL_BYTES

    def free_bytes(self) -> int:
        return TOTAL_BYTES - self.used_bytes()

    def limit_allocator(self, size_bytes: int) -> None:
        if self.holds_cap:
            self.limit = size_bytes

    def can_allocate(self, size_bytes: int) -> bool:
        try:
            self.allocate(size_bytes)
        except CudaMemoryError:
            return False
        self.free(size_bytes)
        self.reserved = self.allocated
        return True

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def peak_allocated_bytes(self) -> int:
        return self._peak_allocated

    def peak_reserved_bytes(self) -> int:
        return self._peak_reserved

    def reset(self) -> None:
        self._peak_allocated, self._peak_reserved = self.allocated, self.reserved

    def allocated_bytes(self) -> int:
        return self.allocated

    def reserved_bytes(self) -> int:
        return self.reserved

    def counters_shared(self):
        """Do nothing: no library resets these counters."""
        return nullcontext()

    def peak_inactive_split_bytes(self) -> int:
        return self.reserved - self.allocated

    def alloc_retries(self) -> int:
        return self.retries

    def failed_allocations(self) -> int:
        return self.retries

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, CudaMemoryError)

    def has_no_handle(self, error: BaseException) -> bool:
        return "NOT_INITIALIZED" in str(error)

    def when_out_of_memory(self, callback: Callable[[int, int], None]) -> None:
        self._observer = callback

    def record_history(self, *, most_entries: int) -> None:
        self.calls.append(f"history {most_entries}")

    def snapshot(self) -> Mapping[str, Any]:
        return {"segments": [{"allocated_size": self.allocated}], "device_traces": [[]]}
