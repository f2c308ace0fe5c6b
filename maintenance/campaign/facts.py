"""Facts of a card: what CUDA and its libraries take beside tensors, and how far three ways to read memory agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from profiler.domain.outcome import Versions
from profiler.measurement.cuda import CudaDevice
from profiler.measurement.nvml import GpuProbe, Nvml, NvmlError


class CudaWork(Protocol):
    """Something for the card to do. Nothing of it is kept."""

    def begin(self) -> None:
        """Make CUDA's context, and allocate nothing."""

    def product(self) -> int:
        """One matrix product; the bytes of its three tensors, as the allocator rounds them."""

    def training_step(self) -> None:
        """Forward, backward and optimizer of a small model: loads the kernels that a trial loads."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The rulers side by side at one moment."""

    moment: str
    allocated_bytes: int
    reserved_bytes: int
    mem_get_info_used_bytes: int
    nvml_device_bytes: int | None
    """None, as all below, where the driver does not say."""
    nvml_process_bytes: int | None
    context_bytes: int | None
    """By `mem_get_info`: in use, less torch's, less what others had before."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What is worth knowing of a card before anything is measured on it."""

    name: str
    uuid: str
    compute_capability: tuple[int, int]
    total_bytes: int
    """As torch reports it."""
    driver_version: str | None
    cuda_version: str | None
    """That torch was built with."""
    versions: Versions
    used_before_bytes: int | None
    """On the card before CUDA was touched: the driver's own, and other programs'."""
    cublas_workspace_bytes: int
    """What the first product took beside its tensors."""
    cublas_workspace_kept_bytes: int
    """What of it was still there afterwards."""
    readings: tuple[Reading, ...]
    not_read: Mapping[str, str]
    """Figures that the driver did not give, with the reason."""


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
    """Read the card, idle, with a context, after a product and after a training step. CUDA must not be in use yet."""
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


def _reading(moment: str, cuda: CudaDevice, probe: GpuProbe, before_bytes: int | None) -> Reading:
    used, reserved = cuda.total_bytes() - cuda.free_bytes(), cuda.reserved_bytes()
    return Reading(
        moment=moment,
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
