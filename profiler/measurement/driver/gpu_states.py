"""All GPUs of this machine at one instant: what the driver says, and the processes by name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from profiler.domain.cards.gpu_state import GpuProcessState, GpuState, LiveCounters
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, Nvml
from profiler.measurement.driver.visible import VisibleGpu

_MOST_CHARACTERS = 200


class GpuReader:
    """Reads the GPUs again and again. A value that a card does not have is asked for only once."""

    def __init__(
        self, gpus: Sequence[VisibleGpu], nvml: Nvml, *, command_of: Callable[[int], str] | None = None
    ) -> None:
        """`command_of` returns the command of a process by its number; empty if it is not visible here."""
        self._gpus = [(gpu, GpuProbe(nvml, gpu.uuid, own_processes=frozenset)) for gpu in gpus]
        self._command_of = command_of or process_command

    def read(self, counters: Iterable[LiveCounters] = ()) -> tuple[GpuState, ...]:
        """Return the GPUs now; `counters` are those that profiled processes have published."""
        known = tuple(counters)
        return tuple(
            self._state(index, gpu, probe, tuple(each for each in known if each.gpu_uuid == gpu.uuid))
            for index, (gpu, probe) in enumerate(self._gpus)
        )

    def _state(self, index: int, gpu: VisibleGpu, probe: GpuProbe, counters: Sequence[LiveCounters]) -> GpuState:
        found = GpuState(
            index=index,
            uuid=gpu.uuid,
            name=gpu.name,
            compute_capability=gpu.compute_capability,
            total_bytes=gpu.memory_bytes,
            used_bytes=None,
            free_bytes=None,
            utilisation_percent=None,
            power_watts=None,
            temperature_celsius=None,
            processes=(),
        )
        try:
            return replace(
                found,
                used_bytes=probe.used_bytes(),
                free_bytes=probe.free_bytes(),
                utilisation_percent=probe.utilisation_percent(),
                power_watts=probe.power_watts(),
                temperature_celsius=probe.temperature_celsius(),
                processes=self._processes(probe, counters),
            )
        except GpuLostError as error:
            return replace(found, problem=str(error))

    def _processes(self, probe: GpuProbe, counters: Sequence[LiveCounters]) -> tuple[GpuProcessState, ...]:
        by_pid = {each.pid: each for each in counters}
        listed = [
            GpuProcessState(
                pid=one.pid,
                command=self._command_of(one.pid),
                used_bytes=one.used_bytes,
                counters=by_pid.pop(one.pid, None),
            )
            for one in probe.listed_processes()
        ]
        # In a container the driver lists the numbers that processes have on the host, or none.
        listed += [
            GpuProcessState(pid=each.pid, command=self._command_of(each.pid), used_bytes=None, counters=each)
            for each in by_pid.values()
        ]
        return tuple(sorted(listed, key=lambda one: (-(one.used_bytes or 0), one.pid)))


def process_command(pid: int) -> str:
    """Return the command line of a process, shortened; empty if it is not visible here."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(filter(None, words))[:_MOST_CHARACTERS]
