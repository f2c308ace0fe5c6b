"""A driver that answers nothing, where there is none or where its answers would mean nothing."""

from typing import NoReturn

from profiler.measurement.driver.nvml import GpuMemory, GpuProcess, NvmlError, NvmlTrouble


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
