"""Protocol of the calls to NVIDIA's driver, their errors, and a driver that answers nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol, TypeVar

Reading = TypeVar("Reading")


class NvmlTrouble(StrEnum):
    """Why a call to the driver failed."""

    ABSENT = "absent"
    """There is no driver, or it does not respond."""
    NOT_SUPPORTED = "not supported"
    """This card, driver or container never reports the value."""
    GPU_LOST = "gpu lost"
    """The GPU fell off the bus, or needs a reset."""
    OTHER = "other"
    """Anything else; the next call may work."""


class NvmlError(Exception):
    """An error of the driver with its kind and the driver's text."""

    def __init__(self, trouble: NvmlTrouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


class GpuLostError(Exception):
    """The GPU was lost: measurements on it are invalid."""


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Memory of one GPU, of all processes, by the driver."""

    total_bytes: int
    used_bytes: int
    """Without the driver's own reserve, if the driver reports it separately."""
    free_bytes: int
    """Memory that a process can still allocate."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process on a GPU in the driver's list. In a container its number may be the host's."""

    pid: int
    used_bytes: int | None


class Nvml(Protocol):
    """The driver. Every method may raise NvmlError; GPUs are identified by UUID, never by index."""

    def driver_version(self) -> str:
        """Return the version, for example ``"580.65.06"``."""

    def memory(self, uuid: str) -> GpuMemory:
        """Return the memory in use now."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Return the processes that compute on it."""

    def utilisation_percent(self, uuid: str) -> int:
        """Return the share of the last 1/6 s to 1 s, depending on the card, in which a kernel ran."""

    def power_watts(self, uuid: str) -> float:
        """Return the power draw of the card."""

    def sm_clock_mhz(self, uuid: str) -> int:
        """Return the clock of its multiprocessors."""

    def temperature_celsius(self, uuid: str) -> int:
        """Return the temperature of the chip."""

    def uncorrected_errors(self, uuid: str) -> int:
        """Return the number of uncorrected memory errors since the driver was loaded."""

    def xid_errors(self, uuid: str) -> tuple[int, ...]:
        """Return the numbers of critical errors (Xid) since the last call; the first call starts listening."""


XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors caused by a program and not by the GPU: an illegal address, a hung kernel, and their consequences.

Source: NVIDIA's k8s-device-plugin, which keeps a GPU in service after these."""

_PERMANENT = (NvmlTrouble.ABSENT, NvmlTrouble.NOT_SUPPORTED)


class GpuProbe:
    """Values of one GPU, each None if the driver does not report it. An unsupported value is read only once."""

    def __init__(self, nvml: Nvml, uuid: str, *, own_processes: Callable[[], frozenset[int]]) -> None:
        """`own_processes` returns the numbers of the trial's processes."""
        self._nvml = nvml
        self._uuid = uuid
        self._own_processes = own_processes
        self._reasons: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._seen_own = False
        self._there_before: frozenset[int] | None = None
        self._newcomer: int | None = None
        self._listed: tuple[GpuProcess, ...] | None = None

    @property
    def missing(self) -> Mapping[str, str]:
        """The reason per value that the driver did not report at the last call."""
        reasons = dict(self._reasons)
        if self._listed is not None and not self._seen_own:
            reasons["process memory"] = "the driver's list of processes does not have this one, as in a container"
        return reasons

    def used_bytes(self) -> int | None:
        """Return the memory of all processes on the GPU."""
        memory = self._read("device memory", self._nvml.memory)
        return None if memory is None else memory.used_bytes

    def listed_processes(self) -> tuple[GpuProcess, ...]:
        """Return all processes on the GPU, as far as the driver lists them."""
        return self._read("process memory", self._nvml.processes) or ()

    def free_bytes(self) -> int | None:
        """Return the memory that a process can still allocate."""
        memory = self._read("device memory", self._nvml.memory)
        return None if memory is None else memory.free_bytes

    def before_the_trial(self) -> int | None:
        """Return the memory in use before the trial uses the GPU; processes listed now are not the trial's."""
        self._there_before = frozenset(p.pid for p in self._read("process memory", self._nvml.processes) or ())
        return self.used_bytes()

    def process_bytes(self) -> int | None:
        """Return the memory of the trial's processes; None if the driver does not say which they are.

        In a container the driver lists the numbers that processes have on the host. Then the trial's process is the one
        that did not exist before the trial, if it is the only new one at the first call.
        """
        self._listed = self._read("process memory", self._nvml.processes)
        if self._listed is None:
            return None
        own = self._own_processes() | self._only_newcomer(self._listed)
        found = [process.used_bytes for process in self._listed if process.pid in own]
        known = [size for size in found if size is not None]
        self._seen_own = self._seen_own or bool(known)
        return sum(known) if known and len(known) == len(found) else None

    def _only_newcomer(self, listed: tuple[GpuProcess, ...]) -> frozenset[int]:
        if self._there_before is None:
            return frozenset()
        if self._newcomer is None:
            newcomers = {process.pid for process in listed} - self._there_before
            # More than one: it is unknown which is the trial's, now and later.
            self._there_before = None if len(newcomers) > 1 else self._there_before
            self._newcomer = newcomers.pop() if len(newcomers) == 1 else None
        return frozenset() if self._newcomer is None else frozenset({self._newcomer})

    def others(self) -> tuple[GpuProcess, ...]:
        """Return the processes on the GPU that are not the trial's, as far as the driver lists them."""
        own = self._own_processes()
        return tuple(p for p in self._read("process memory", self._nvml.processes) or () if p.pid not in own)

    def utilisation_percent(self) -> int | None:
        """Return the share of time in which a kernel ran."""
        return self._read("utilisation", self._nvml.utilisation_percent)

    def power_watts(self) -> float | None:
        """Return the power draw of the card."""
        return self._read("power", self._nvml.power_watts)

    def sm_clock_mhz(self) -> int | None:
        """Return the clock of its multiprocessors."""
        return self._read("clock", self._nvml.sm_clock_mhz)

    def temperature_celsius(self) -> int | None:
        """Return the temperature of the chip."""
        return self._read("temperature", self._nvml.temperature_celsius)

    def uncorrected_errors(self) -> int | None:
        """Return the number of uncorrected memory errors since the driver was loaded."""
        return self._read("memory errors", self._nvml.uncorrected_errors)

    def faults(self) -> tuple[int, ...]:
        """Return the Xid errors of the GPU itself since the last call; empty if the driver does not report them."""
        found = self._read("Xid errors", self._nvml.xid_errors) or ()
        return tuple(number for number in found if number not in XIDS_OF_PROGRAMS)

    def _read(self, figure: str, ask: Callable[[str], Reading]) -> Reading | None:
        """Return the value; None if the driver does not report it.

        Raises:
            GpuLostError: The driver reports that the GPU is lost.
        """
        if figure in self._given_up:
            return None
        try:
            reading = ask(self._uuid)
        except NvmlError as error:
            if error.trouble is NvmlTrouble.GPU_LOST:
                raise GpuLostError(f"{self._uuid}: {error}") from error
            self._reasons[figure] = str(error)
            if error.trouble in _PERMANENT:
                self._given_up.add(figure)
            return None
        self._reasons.pop(figure, None)
        return reading


class NoDriver:
    """`Nvml` without a driver: every call raises NvmlError with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _refuse(self) -> NoReturn:
        raise NvmlError(NvmlTrouble.ABSENT, self._reason)

    def driver_version(self) -> str:
        """Refuse."""
        self._refuse()

    def memory(self, uuid: str) -> GpuMemory:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def utilisation_percent(self, uuid: str) -> int:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def power_watts(self, uuid: str) -> float:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def sm_clock_mhz(self, uuid: str) -> int:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def temperature_celsius(self, uuid: str) -> int:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def uncorrected_errors(self, uuid: str) -> int:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def xid_errors(self, uuid: str) -> tuple[int, ...]:  # noqa: ARG002
        """Refuse."""
        self._refuse()
