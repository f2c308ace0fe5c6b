"""The NVIDIA GPUs that a CUDA program started here would see, read from the driver without torch."""

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from profiler.domain.machines.extras import Extra, missing

CAPABILITIES = "GRPO_VRAM_COMPUTE_CAPABILITIES"
"""Environment variable: the compute capability of each visible GPU in the order of CUDA's indices, ``"9.0,8.6"``."""


_NVML = "pynvml"
"""The module of nvidia-ml-py."""

_EXTRA = f"the extra '{Extra.MEASURE}' brings it"

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
        if word.isdigit():
            matching = list(present[int(word) : int(word) + 1])
        else:
            matching = [gpu for gpu in present if word and gpu.uuid.startswith(word)]
        if not matching:
            break
        chosen.append(matching[0])
    return chosen
