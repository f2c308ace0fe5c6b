"""The GPUs of a machine at one instant, with the processes that use them."""

from dataclasses import dataclass

from profiler.domain.memory import Phase


@dataclass(frozen=True, kw_only=True)
class LiveCounters:
    """Counters of torch's allocator in a profiled process, as the process itself has published them."""

    pid: int
    started: int
    """When the process began, in ticks since the machine started: a later process can have the same number."""
    gpu_uuid: str
    what: str
    """The script or the trial that runs in it."""
    phase: Phase | None
    step: int
    """Optimizer step, from 1; 0 while loading."""
    allocated_bytes: int
    reserved_bytes: int
    alloc_retries: int
    """How often the allocator released its cache and tried again."""
    out_of_memory: int
    """How often an allocation failed, also if the program went on."""


@dataclass(frozen=True, kw_only=True)
class GpuProcessState:
    """One process on a GPU."""

    pid: int
    command: str
    """Empty if the process is not visible here, as in a container."""
    used_bytes: int | None
    """By the driver; None if it does not report it."""
    counters: LiveCounters | None = None
    """None unless the process is profiled."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU. None means that the driver does not report the value."""

    index: int
    """In the order of CUDA_VISIBLE_DEVICES, from 0."""
    uuid: str
    name: str
    compute_capability: tuple[int, int] | None
    total_bytes: int
    used_bytes: int | None
    """Memory of all processes."""
    free_bytes: int | None
    utilisation_percent: int | None
    power_watts: float | None
    temperature_celsius: int | None
    processes: tuple[GpuProcessState, ...]
    """The largest first."""
    problem: str = ""
    """Why the GPU cannot be read, such as a lost one; empty if it can."""

    @property
    def used_share(self) -> float | None:
        """Used memory as a share of the total."""
        return None if self.used_bytes is None or not self.total_bytes else self.used_bytes / self.total_bytes
