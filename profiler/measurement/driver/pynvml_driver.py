"""NVIDIA's driver by `pynvml` (package nvidia-ml-py). No other file calls it for measurements."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from profiler.measurement.driver.nvml import GpuMemory, GpuProcess, NvmlError, NvmlTrouble

Reading = TypeVar("Reading")

_MILLIWATTS = 1000

_MOST_EVENTS = 100
"""Limit per call: a broken GPU can report events endlessly."""

_TROUBLES = {
    "NVML_ERROR_UNINITIALIZED": NvmlTrouble.ABSENT,
    "NVML_ERROR_DRIVER_NOT_LOADED": NvmlTrouble.ABSENT,
    "NVML_ERROR_LIBRARY_NOT_FOUND": NvmlTrouble.ABSENT,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": NvmlTrouble.ABSENT,
    "NVML_ERROR_NOT_SUPPORTED": NvmlTrouble.NOT_SUPPORTED,
    "NVML_ERROR_NO_PERMISSION": NvmlTrouble.NOT_SUPPORTED,
    "NVML_ERROR_FUNCTION_NOT_FOUND": NvmlTrouble.NOT_SUPPORTED,
    "NVML_ERROR_GPU_IS_LOST": NvmlTrouble.GPU_LOST,
    "NVML_ERROR_RESET_REQUIRED": NvmlTrouble.GPU_LOST,
}


class PynvmlDriver:
    """The driver of this machine. Connects at the first call; without a driver every call raises NvmlError."""

    def __init__(self, pynvml: ModuleType | None = None) -> None:
        self._pynvml = pynvml or importlib.import_module("pynvml")
        self._connected = False
        self._handles: dict[str, Any] = {}
        self._events: dict[str, Any] = {}
        self._troubles = {getattr(self._pynvml, name): trouble for name, trouble in _TROUBLES.items()}

    def driver_version(self) -> str:
        """Return the version, for example ``"580.65.06"``."""
        text = self._ask(lambda: self._pynvml.nvmlSystemGetDriverVersion())
        return text.decode() if isinstance(text, bytes) else str(text)

    def memory(self, uuid: str) -> GpuMemory:
        """Read the memory. The second version of the call excludes the driver's reserve; old drivers have the first."""
        memory = self._ask(lambda: self._memory(self._handle(uuid)))
        return GpuMemory(total_bytes=int(memory.total), used_bytes=int(memory.used), free_bytes=int(memory.free))

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a CUDA context."""
        listed = self._ask(lambda: self._pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid)))
        return tuple(GpuProcess(pid=int(one.pid), used_bytes=_size(one.usedGpuMemory)) for one in listed)

    def utilisation_percent(self, uuid: str) -> int:
        """Return the share of time in which a kernel ran."""
        return int(self._ask(lambda: self._pynvml.nvmlDeviceGetUtilizationRates(self._handle(uuid))).gpu)

    def power_watts(self, uuid: str) -> float:
        """Return the power draw, which NVML reports in milliwatts."""
        return float(self._ask(lambda: self._pynvml.nvmlDeviceGetPowerUsage(self._handle(uuid)))) / _MILLIWATTS

    def sm_clock_mhz(self, uuid: str) -> int:
        """Return the clock of its multiprocessors."""
        kind = self._pynvml.NVML_CLOCK_SM
        return int(self._ask(lambda: self._pynvml.nvmlDeviceGetClockInfo(self._handle(uuid), kind)))

    def temperature_celsius(self, uuid: str) -> int:
        """Return the temperature of the chip."""
        kind = self._pynvml.NVML_TEMPERATURE_GPU
        return int(self._ask(lambda: self._pynvml.nvmlDeviceGetTemperature(self._handle(uuid), kind)))

    def uncorrected_errors(self, uuid: str) -> int:
        """Return the volatile counter of uncorrected ECC errors."""
        kinds = (self._pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._pynvml.NVML_VOLATILE_ECC)
        return int(self._ask(lambda: self._pynvml.nvmlDeviceGetTotalEccErrors(self._handle(uuid), *kinds)))

    def xid_errors(self, uuid: str) -> tuple[int, ...]:
        """Read an event set of the driver, without waiting."""
        return tuple(self._ask(lambda: self._drained(uuid)))

    def _drained(self, uuid: str) -> list[int]:
        kind = self._pynvml.nvmlEventTypeXidCriticalError
        if uuid not in self._events:
            events = self._pynvml.nvmlEventSetCreate()
            self._pynvml.nvmlDeviceRegisterEvents(self._handle(uuid), kind, events)
            self._events[uuid] = events
        found: list[int] = []
        while len(found) < _MOST_EVENTS:
            try:
                event = self._pynvml.nvmlEventSetWait(self._events[uuid], 0)
            except self._pynvml.NVMLError as error:
                if getattr(error, "value", None) == self._pynvml.NVML_ERROR_TIMEOUT:
                    break
                raise
            if event.eventType == kind:
                found.append(int(event.eventData))
        return found

    def _memory(self, handle: Any) -> Any:  # noqa: ANN401  # NVML's own struct
        try:
            return self._pynvml.nvmlDeviceGetMemoryInfo(handle, self._pynvml.nvmlMemory_v2)
        except self._pynvml.NVMLError as error:
            if self._trouble(error) is NvmlTrouble.GPU_LOST:
                raise
            return self._pynvml.nvmlDeviceGetMemoryInfo(handle)

    def _handle(self, uuid: str) -> Any:  # noqa: ANN401  # opaque
        if uuid not in self._handles:
            self._handles[uuid] = self._pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _ask(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401  # any value of NVML
        try:
            if not self._connected:
                self._pynvml.nvmlInit()
                self._connected = True
            return call()
        except self._pynvml.NVMLError as error:
            raise NvmlError(self._trouble(error), str(error)) from error

    def _trouble(self, error: Exception) -> NvmlTrouble:
        return self._troubles.get(getattr(error, "value", None), NvmlTrouble.OTHER)


def _size(value: int | None) -> int | None:
    return None if value is None else int(value)
