"""Memory by phase, step, sample, category and tensor, and the GPUs of a machine at one instant.

The first are values of which an outcome has several: their fields with `column(...)` are columns of a table of rows.
"""

from dataclasses import dataclass, field

from profiler.domain.memory import Category, Phase
from profiler.domain.runs.columns import column

ENDED = "the trial did not run or ended before the value was known"
NO_GPU = f"backend is cpu, or {ENDED}"
NO_ALLOCATOR = f"unknown with this backend, or {ENDED}"
NOT_CUDA = f"backend is not cuda, or {ENDED}"
_NOT_SAMPLED = "no samples, or the driver does not report it"
_NOT_READ = "not read at this sample, or the driver does not report it"
_NO_OOM = "status is not oom, or the framework does not report it"


@dataclass(frozen=True, kw_only=True)
class PhasePeak:
    """Peak memory of one phase. None means not known with this backend."""

    phase: Phase = field(metadata=column("part of the training step", identifies=True))
    peak_allocated_bytes: int | None = field(
        metadata=column("most bytes in tensors at once during the phase", NO_GPU, peaks_at="peak_allocated_bytes")
    )
    peak_reserved_bytes: int | None = field(
        metadata=column("most bytes held by torch's allocator during the phase", NO_ALLOCATOR)
    )
    time_s: float | None = field(default=None, metadata=column("in all steps together", NOT_CUDA))
    samples: int | None = field(default=None, metadata=column("samples during the phase", NOT_CUDA, unit="samples"))
    """This and all fields below are None if nothing was sampled."""
    sampled_max_device_bytes: int | None = field(
        default=None, metadata=column("the driver's count, polled, of all programs: a lower bound", _NOT_SAMPLED)
    )
    mean_utilisation_percent: float | None = field(
        default=None, metadata=column("share of time in which a kernel ran", _NOT_SAMPLED)
    )
    mean_power_watts: float | None = field(default=None, metadata=column("power of the card", _NOT_SAMPLED))
    mean_sm_clock_mhz: float | None = field(
        default=None, metadata=column("clock of the card's processors", _NOT_SAMPLED)
    )


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """Exact peaks of one phase in one optimizer step."""

    step: int = field(
        metadata=column("the optimizer step, from 1; 0 while loading", unit="optimizer steps", identifies=True)
    )
    phase: Phase = field(metadata=column("part of the training step", identifies=True))
    peak_allocated_bytes: int = field(metadata=column("most bytes in tensors at once, by torch's exact counter"))
    peak_reserved_bytes: int = field(metadata=column("most bytes held by torch's allocator, by its exact counter"))
    time_s: float | None = field(metadata=column("duration", "emulated: nothing was computed"))
    context_bytes: int | None = field(
        default=None,
        metadata=column(
            "memory of CUDA beyond torch's at the end of the phase",
            "emulated, the memory of other programs on the GPU is unknown, or paged optimizer states hide it",
        ),
    )
    """Grows as libraries load kernels and plans."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading of the driver during a trial. None means not read at this sample, or unavailable."""

    time_s: float = field(metadata=column("since the start of sampling, on a monotonic clock"))
    phase: Phase | None = field(metadata=column("part of the training step", "before the first phase"))
    step: int = field(metadata=column("the optimizer step, from 1; 0 while loading", unit="optimizer steps"))
    device_used_bytes: int | None = field(
        metadata=column("in use on the GPU by all programs, as the driver reports", _NOT_READ)
    )
    process_used_bytes: int | None = field(
        metadata=column("in use on the GPU by the processes of the trial, as the driver reports", _NOT_READ)
    )
    utilisation_percent: int | None = field(
        metadata=column("share of the driver's last interval in which a kernel ran", _NOT_READ)
    )
    power_watts: float | None = field(metadata=column("power of the card", _NOT_READ))
    sm_clock_mhz: int | None = field(metadata=column("clock of the card's processors", _NOT_READ))


@dataclass(frozen=True, kw_only=True)
class CategoryShare:
    """Bytes of one category at one instant, usually the peak of allocated memory."""

    category: Category = field(metadata=column("kind of content", identifies=True))
    size_bytes: int = field(
        metadata=column(
            "bytes of the category at the instant of peak_allocated_bytes; they sum to it exactly",
            name="bytes",
            sums_to="peak_allocated_bytes",
        )
    )


@dataclass(frozen=True, kw_only=True)
class StepInstant:
    """One instant of an optimizer step."""

    phase: Phase = field(metadata=column("what the trainer was doing"))
    shares: tuple[CategoryShare, ...]


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Similar tensors at the peak: the same shape and origin, from the same place in every layer."""

    size_bytes: int = field(metadata=column("bytes of the group at the instant of peak_allocated_bytes", name="bytes"))
    tensors: int = field(
        metadata=column("tensors in the group: equal ones from the same place in each layer", unit="tensors")
    )
    category: Category = field(metadata=column("kind of content"))
    shape: tuple[int, ...] = field(
        metadata=column(
            "sizes joined by x; empty for a scalar or a kernel's scratch",
            as_text=lambda shape: "x".join(map(str, shape)),
        )
    )
    dtype: str = field(metadata=column("data type, by torch's name; empty for a kernel's scratch"))
    name: str = field(metadata=column("name of the tensor; empty where unknown"))
    """Such as ``"gradient of lm_head.weight"``."""
    module: str = field(metadata=column("path of the module that created it, layers as *; empty where it has a name"))
    operation: str = field(metadata=column("the operation that created it; empty for weights and states"))
    phase: Phase = field(metadata=column("the phase in which it was created"))


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The allocation that failed, and the memory in use at that instant. None means not reported."""

    phase: Phase = field(metadata=column("the phase that ran out of memory", "status is not oom"))
    requested_bytes: int | None = field(metadata=column("the allocation that did not fit", _NO_OOM))
    free_bytes: int | None = field(default=None, metadata=column("free bytes by the driver at that time", _NO_OOM))
    allocated_bytes: int | None = field(default=None, metadata=column("bytes in tensors at that time", _NO_OOM))
    reserved_bytes: int | None = field(
        default=None, metadata=column("bytes held by torch's allocator at that time", _NO_OOM)
    )
    step: int | None = field(
        default=None,
        metadata=column(
            "the step that ran out of memory, from 1; 0 while loading",
            "status is not oom, or it was simulated",
            unit="optimizer steps",
        ),
    )


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
    """One GPU, with the memory of all processes. None means that the driver does not report the value."""

    index: int
    """In the order of CUDA_VISIBLE_DEVICES, from 0."""
    uuid: str
    name: str
    compute_capability: tuple[int, int] | None
    total_bytes: int
    used_bytes: int | None
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
