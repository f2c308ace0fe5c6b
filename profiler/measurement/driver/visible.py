"""The GPUs of this machine: those that a CUDA program would see, and all at one instant."""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from profiler.domain.machines.extras import Extra, missing
from profiler.domain.runs.readings import GpuProcessState, GpuState, LiveCounters
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, Nvml

CAPABILITIES = "GRPO_VRAM_COMPUTE_CAPABILITIES"
"""Environment variable: the compute capability of each visible GPU in the order of CUDA's indices, ``"9.0,8.6"``."""

_NVML = "pynvml"
"""The module of nvidia-ml-py."""

_EXTRA = f"the extra '{Extra.MEASURE}' brings it"

_MOST_CHARACTERS = 200

_EMULATED = "emulated"
"""Part of the driver's version where `profiler.emulation` answers in its place."""

TEST_ON_EMULATED_DRIVER = "GRPO_VRAM_TEST_ON_EMULATED_DRIVER"
"""Environment variable of tests: take emulated GPUs for real ones. What is read on them is no measurement."""


@dataclass(frozen=True, kw_only=True)
class VisibleGpu:
    """One GPU as the driver names it."""

    uuid: str
    name: str
    memory_bytes: int
    """The driver's total; torch reports slightly less."""
    compute_capability: tuple[int, int] | None = None
    """(major, minor); None if the driver does not report it."""


@dataclass(frozen=True, kw_only=True)
class VisibleGpus:
    """The visible GPUs, and the reason if there is none."""

    gpus: tuple[VisibleGpu, ...]
    """In the order of CUDA_VISIBLE_DEVICES."""
    note: str
    """Why there is none, as part of a sentence; empty if there is one."""
    driver_version: str = ""
    """Empty without a driver, or if it does not report it."""

    @property
    def hardware(self) -> str:
        """The first card and the driver, as the identity of a measured trial has them; empty without a GPU."""
        if not self.gpus:
            return ""
        first = self.gpus[0]
        return f"{first.name}, {first.memory_bytes} bytes, driver {self.driver_version or 'unknown'}"


def visible_gpus(*, environment: Mapping[str, str] | None = None, nvml: ModuleType | None = None) -> VisibleGpus:
    """Return the GPUs that are visible to a CUDA program, and none of an emulated driver.

    Args:
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default the process's own.
        nvml: The module `pynvml` or a fake of it.
    """
    if nvml is None:
        if missing((_NVML,)):
            return VisibleGpus(gpus=(), note=f"nvidia-ml-py, which would find one, is not installed ({_EXTRA})")
        nvml = importlib.import_module(_NVML)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return VisibleGpus(gpus=(), note=f"the NVIDIA driver does not answer ({error})")
    try:
        present = [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        driver_version = _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return VisibleGpus(gpus=(), note=f"the NVIDIA driver does not list its GPUs ({error})")
    finally:
        nvml.nvmlShutdown()
    variables = os.environ if environment is None else environment
    if _EMULATED in driver_version and not variables.get(TEST_ON_EMULATED_DRIVER):
        return VisibleGpus(gpus=(), note="the driver is an emulated one, on which nothing can be measured")
    if not present:
        return VisibleGpus(gpus=(), note="the NVIDIA driver lists no GPU")
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    gpus = present if wanted is None else _selected(present, wanted)
    note = "" if gpus else f"CUDA_VISIBLE_DEVICES='{wanted}' hides every GPU"
    return VisibleGpus(gpus=tuple(gpus), note=note, driver_version=driver_version)


def capability_environment(gpus: Iterable[VisibleGpu]) -> Mapping[str, str]:
    """Return `CAPABILITIES` for a process that must not use CUDA; empty if any capability is unknown."""
    known = [gpu.compute_capability for gpu in gpus]
    if not known or None in known:
        return {}
    return {CAPABILITIES: ",".join(f"{found[0]}.{found[1]}" for found in known if found is not None)}


def _describe(nvml: ModuleType, index: int) -> VisibleGpu:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    return VisibleGpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
        name=_text(nvml.nvmlDeviceGetName(device)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
        compute_capability=_compute_capability(nvml, device),
    )


def _compute_capability(nvml: ModuleType, device: object) -> tuple[int, int] | None:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    except nvml.NVMLError:
        return None
    return int(major), int(minor)


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value


def _selected(present: Sequence[VisibleGpu], wanted: str) -> list[VisibleGpu]:
    """Read the variable as CUDA does: indices or prefixes of UUIDs, up to the first that matches no GPU."""
    chosen: list[VisibleGpu] = []
    for word in (part.strip() for part in wanted.split(",")):
        named = [gpu for gpu in present if word and gpu.uuid.startswith(word)]
        matching = present[int(word) : int(word) + 1] if word.isdigit() else named
        if not matching:
            break
        chosen.append(matching[0])
    return chosen


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
