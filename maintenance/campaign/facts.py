"""Facts of a card: memory of CUDA and its libraries, and a comparison of three memory counters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from profiler.domain.runs.outcome import Versions
from profiler.measurement.counters.phase_counters import CudaDevice
from profiler.measurement.driver.nvml import GpuProbe, Nvml, NvmlError


class CudaWork(Protocol):
    """Work for the card. It keeps no memory."""

    def begin(self) -> None:
        """Create CUDA's context without allocating."""

    def product(self) -> int:
        """Run one matrix product; return the bytes of its three tensors, as rounded by the allocator."""

    def training_step(self) -> None:
        """Run forward, backward and optimizer of a small model, to load the kernels of a trial."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All counters at one instant."""

    instant: str
    allocated_bytes: int
    reserved_bytes: int
    mem_get_info_used_bytes: int
    nvml_device_bytes: int | None
    """This and all fields below are None if the driver does not report them."""
    nvml_process_bytes: int | None
    context_bytes: int | None
    """By `mem_get_info`: used memory without torch's and without memory used before the context."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Facts of a card, taken before measurements."""

    name: str
    uuid: str
    compute_capability: tuple[int, int]
    total_bytes: int
    """As torch reports it."""
    driver_version: str | None
    cuda_version: str | None
    """CUDA version of the torch build."""
    versions: Versions
    used_before_bytes: int | None
    """Used memory before CUDA was initialised: of the driver and of other programs."""
    cublas_workspace_bytes: int
    """Memory of the first product in addition to its tensors."""
    cublas_workspace_kept_bytes: int
    """The part of it that remained allocated."""
    readings: tuple[Reading, ...]
    not_read: Mapping[str, str]
    """Figures that the driver did not provide, with the reason."""


@dataclass(frozen=True, kw_only=True)
class FactTools:
    """The card, its driver, and work for it."""

    cuda: CudaDevice
    nvml: Nvml
    work: CudaWork
    own_processes: Callable[[], frozenset[int]]
    cuda_version: str | None
    versions: Versions


def take_facts(uuid: str, tools: FactTools) -> CardFacts:
    """Read the card with only a context, after a product and after a training step. CUDA must not be initialised."""
    probe = GpuProbe(tools.nvml, uuid, own_processes=tools.own_processes)
    cuda, before = tools.cuda, probe.used_bytes()
    tools.work.begin()
    readings = [_reading("a context and nothing else", cuda, probe, before)]
    stood = cuda.allocated_bytes()
    cuda.reset()
    tensors_bytes = tools.work.product()
    cuda.synchronize()
    workspace, kept = cuda.peak_allocated_bytes() - stood - tensors_bytes, cuda.allocated_bytes() - stood
    readings.append(_reading("after a matrix product", cuda, probe, before))
    tools.work.training_step()
    cuda.synchronize()
    readings.append(_reading("after a training step", cuda, probe, before))
    return CardFacts(
        name=cuda.name(),
        uuid=uuid,
        compute_capability=cuda.compute_capability(),
        total_bytes=cuda.total_bytes(),
        driver_version=_driver_version(tools.nvml),
        cuda_version=tools.cuda_version,
        versions=tools.versions,
        used_before_bytes=before,
        cublas_workspace_bytes=workspace,
        cublas_workspace_kept_bytes=kept,
        readings=tuple(readings),
        not_read=dict(probe.missing),
    )


def _reading(instant: str, cuda: CudaDevice, probe: GpuProbe, before_bytes: int | None) -> Reading:
    used, reserved = cuda.total_bytes() - cuda.free_bytes(), cuda.reserved_bytes()
    return Reading(
        instant=instant,
        allocated_bytes=cuda.allocated_bytes(),
        reserved_bytes=reserved,
        mem_get_info_used_bytes=used,
        nvml_device_bytes=probe.used_bytes(),
        nvml_process_bytes=probe.process_bytes(),
        context_bytes=None if before_bytes is None else used - reserved - before_bytes,
    )


def _driver_version(nvml: Nvml) -> str | None:
    try:
        return nvml.driver_version()
    except NvmlError:
        return None
