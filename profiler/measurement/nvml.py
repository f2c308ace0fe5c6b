"""What is asked of NVIDIA's driver, as one narrow protocol, and what becomes of each of its errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

Reading = TypeVar("Reading")


class NvmlTrouble(StrEnum):
    """Why the driver gave no answer."""

    ABSENT = "absent"
    """No driver, or none that answers."""
    NOT_SUPPORTED = "not supported"
    """This card, driver or container does not give that figure, and never will."""
    GPU_LOST = "gpu lost"
    """The GPU fell off the bus, or needs a reset."""
    OTHER = "other"
    """Anything else; the next call may work."""


class NvmlError(Exception):
    """The driver's error, sorted. The text is the driver's own."""

    def __init__(self, trouble: NvmlTrouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


class GpuLostError(Exception):
    """The GPU is gone: nothing measured on it counts."""


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Memory of one GPU as the driver counts it: of all processes."""

    total_bytes: int
    used_bytes: int
    """Without what the driver keeps for itself, where the driver can tell the two apart."""
    free_bytes: int
    """What a process can still take."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One process on a GPU, by the driver's list. In a container its number may be the host's."""

    pid: int
    used_bytes: int | None


class Nvml(Protocol):
    """The driver. Every method raises NvmlError; a GPU is named by its UUID, never by its index."""

    def driver_version(self) -> str:
        """As ``"580.65.06"``."""

    def memory(self, uuid: str) -> GpuMemory:
        """What is in use now."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Who computes on it."""

    def utilisation_percent(self, uuid: str) -> int:
        """Share of the last moment (1/6 s to 1 s, by card) in which a kernel ran."""

    def power_watts(self, uuid: str) -> float:
        """What the card draws."""

    def sm_clock_mhz(self, uuid: str) -> int:
        """Clock of its processors."""

    def uncorrected_errors(self, uuid: str) -> int:
        """Memory errors that could not be corrected, since the driver was loaded."""

    def xid_errors(self, uuid: str) -> tuple[int, ...]:
        """Numbers of the driver's critical errors (Xid) since the last call; the first call begins to listen."""


XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program makes and not the GPU: an illegal address, a hung kernel, and what follows from them.

Source: NVIDIA's k8s-device-plugin, which keeps a GPU in service after these."""

_FOR_EVER = (NvmlTrouble.ABSENT, NvmlTrouble.NOT_SUPPORTED)


class GpuProbe:
    """One GPU's figures, each None where the driver does not give it. A figure it will never give is asked for once."""

    def __init__(self, nvml: Nvml, uuid: str, *, own_processes: Callable[[], frozenset[int]]) -> None:
        """`own_processes`: the numbers of the processes whose memory is ours."""
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
        """By figure: why the driver did not give it when it was last asked. Without those that it gave."""
        reasons = dict(self._reasons)
        if self._listed is not None and not self._seen_own:
            reasons["process memory"] = "the driver's list of processes does not have this one, as in a container"
        return reasons

    def used_bytes(self) -> int | None:
        """Memory of all processes on the GPU."""
        memory = self._read("device memory", self._nvml.memory)
        return None if memory is None else memory.used_bytes

    def free_bytes(self) -> int | None:
        """Memory that a process can still take."""
        memory = self._read("device memory", self._nvml.memory)
        return None if memory is None else memory.free_bytes

    def before_the_trial(self) -> int | None:
        """Memory in use before our process touches the GPU; who is listed now is none of ours."""
        self._there_before = frozenset(p.pid for p in self._read("process memory", self._nvml.processes) or ())
        return self.used_bytes()

    def process_bytes(self) -> int | None:
        """Memory of our own processes; None where the driver does not say which they are.

        In a container the driver lists the numbers that processes have on the host. Then the one process that was not
        there before the trial is ours, if it is the only one when we first look.
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
            # More than one: who is ours is not known, now or later.
            self._there_before = None if len(newcomers) > 1 else self._there_before
            self._newcomer = newcomers.pop() if len(newcomers) == 1 else None
        return frozenset() if self._newcomer is None else frozenset({self._newcomer})

    def others(self) -> tuple[GpuProcess, ...]:
        """The processes on the GPU that are not ours, as far as the driver says."""
        own = self._own_processes()
        return tuple(p for p in self._read("process memory", self._nvml.processes) or () if p.pid not in own)

    def utilisation_percent(self) -> int | None:
        """Share of the last moment in which a kernel ran."""
        return self._read("utilisation", self._nvml.utilisation_percent)

    def power_watts(self) -> float | None:
        """What the card draws."""
        return self._read("power", self._nvml.power_watts)

    def sm_clock_mhz(self) -> int | None:
        """Clock of its processors."""
        return self._read("clock", self._nvml.sm_clock_mhz)

    def uncorrected_errors(self) -> int | None:
        """Memory errors that could not be corrected, since the driver was loaded."""
        return self._read("memory errors", self._nvml.uncorrected_errors)

    def faults(self) -> tuple[int, ...]:
        """Xid errors of the GPU itself since the last call; empty where the driver does not tell."""
        found = self._read("Xid errors", self._nvml.xid_errors) or ()
        return tuple(number for number in found if number not in XIDS_OF_PROGRAMS)

    def _read(self, figure: str, ask: Callable[[str], Reading]) -> Reading | None:
        """The figure; None where the driver does not give it.

        Raises:
            GpuLostError: The driver says that the GPU is lost.
        """
        if figure in self._given_up:
            return None
        try:
            reading = ask(self._uuid)
        except NvmlError as error:
            if error.trouble is NvmlTrouble.GPU_LOST:
                raise GpuLostError(f"{self._uuid}: {error}") from error
            self._reasons[figure] = str(error)
            if error.trouble in _FOR_EVER:
                self._given_up.add(figure)
            return None
        self._reasons.pop(figure, None)
        return reading
