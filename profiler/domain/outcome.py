"""What came of a trial, as plain values: written by the worker, read by everything above."""

from dataclasses import dataclass, field
from enum import StrEnum

from profiler.domain.memory import Category, Phase
from profiler.domain.trial import TrialSpec

NO_BREAKDOWN = "breakdown: "
"""In `Outcome.not_measured`, before the reason why a trial that was asked for its breakdown has none."""


class Status(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OOM = "oom"
    """The GPU ran out of memory: an answer, not a failure."""
    FAILED = "failed"
    """The worker raised, exited or crashed."""
    KILLED = "killed"
    """Somebody killed the worker."""
    TIMEOUT = "timeout"
    STALLED = "stalled"
    """Alive, but without progress."""
    HOST_OOM = "host_oom"
    """The host's own memory ran out."""
    DEVICE_FAULT = "device_fault"
    """The GPU broke."""
    CONTENDED = "contended"
    """Another program used the GPU."""
    UNSUPPORTED = "unsupported"
    """The simulation does not know an operation, or the combination does not exist."""
    IMPLIED = "implied"
    """Not run: a trial that needs no more memory ran out of it (`Outcome.implied_by`)."""

    @property
    def answered(self) -> bool:
        """Whether the trial's question was answered, so that it need not run again."""
        return self in (Status.OK, Status.OOM, Status.UNSUPPORTED, Status.IMPLIED)


@dataclass(frozen=True, kw_only=True)
class PhasePeak:
    """The highest memory during one phase. None means not known with this backend."""

    phase: Phase
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    time_s: float | None = None
    """In all its steps; None when simulated."""
    samples: int | None = None
    """How many samples were taken in it. None, as all below, where nothing was sampled."""
    sampled_max_device_bytes: int | None = None
    """The driver's count, polled: a lower bound."""
    mean_utilisation_percent: float | None = None
    mean_power_watts: float | None = None
    mean_sm_clock_mhz: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """The exact peaks of one phase in one optimizer step."""

    step: int
    """From 1; 0 for loading."""
    phase: Phase
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    time_s: float
    context_bytes: int | None = None
    """What CUDA held beyond torch's memory where the phase ended; it grows as libraries load kernels and plans."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading of the driver during a trial. None where it was not read at that moment, or not to be had."""

    time_s: float
    """Since the sampling began, on the monotonic clock."""
    phase: Phase | None
    """None before the first."""
    step: int
    """Optimizer step, from 1; 0 while loading."""
    device_used_bytes: int | None
    """Of all processes on the GPU."""
    process_used_bytes: int | None
    """Of the trial's own processes."""
    utilisation_percent: int | None
    power_watts: float | None
    sm_clock_mhz: int | None


@dataclass(frozen=True, kw_only=True)
class CategoryShare:
    """Bytes of one category at one instant, mostly that of the trial's peak of allocated memory."""

    category: Category
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepInstant:
    """One instant of an optimizer step."""

    phase: Phase
    shares: tuple[CategoryShare, ...]


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors alike at the instant of the trial's peak: of one make, from the same place in every layer."""

    category: Category
    size_bytes: int
    """Of all of them together."""
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    """torch's name without ``torch.``; empty for a kernel's scratch."""
    name: str
    """What it is where that is known: ``"gradient of lm_head.weight"``; else empty."""
    module: str
    """Path of the module, layers as ``*``; empty where no module made it."""
    operation: str
    phase: Phase
    """The phase in which it was made."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The allocation that did not fit, and what stood when it was asked for. None where the framework did not say."""

    phase: Phase
    requested_bytes: int | None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    step: int | None = None
    """The optimizer step, from 1; 0 while loading. None when simulated."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of what decides memory; part of a trial's identity. None where a package is not installed."""

    torch: str | None
    trl: str | None
    transformers: str | None
    peft: str | None
    bitsandbytes: str | None
    profiler: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial found. None means "not known here", never 0. Sizes are integers of bytes, times in seconds.

    In an `oom` outcome the peaks are the highest reached before failing.
    """

    status: Status
    parameters: int | None = None
    trainable_parameters: int | None = None
    gpu_name: str | None = None
    """Name of the card measured, or of the card simulated."""
    gpu_memory_bytes: int | None = None
    """Its memory as torch reports it; of a capped card, the cap."""
    peak_allocated_bytes: int | None = None
    """torch's `max_memory_allocated`, or what it would have said."""
    peak_reserved_bytes: int | None = None
    """torch's `max_memory_reserved`."""
    peak_device_bytes: int | None = None
    """The driver's view: reserved, the context and loaded kernels."""
    peak_phase: Phase | None = None
    required_allocated_bytes: int | None = None
    """Simulated only: the peak that a card of unlimited memory would have seen."""
    oom: OutOfMemory | None = None
    phases: tuple[PhasePeak, ...] = ()
    breakdown: tuple[CategoryShare, ...] = ()
    """Sums to `peak_allocated_bytes`; empty where not known."""
    step_shape: tuple[StepInstant, ...] = ()
    """Simulated only: the last optimizer step of a run without a limit, in the order of its events."""
    largest: tuple[TensorGroup, ...] = ()
    """The ten largest tensors, or groups of tensors alike, at the instant of the peak; largest first."""
    peak_inactive_split_bytes: int | None = None
    """The most that lay free between blocks in use, in segments that cannot be given back."""
    alloc_retries: int | None = None
    """How often the allocator gave all its cached memory back to make room."""
    context_bytes: int | None = None
    """What CUDA itself takes on the card; assumed when simulated."""
    required_reserved_bytes: int | None = None
    """Simulated only: reserved memory's peak on a card of unlimited memory."""
    required_unreleasable_bytes: int | None = None
    """Simulated only, on such a card: the most in segments with a tensor in them, which no full card gets back."""
    steps_run: int | None = None
    micro_batches_run: int | None = None
    wall_s: float | None = None
    step_time_s: float | None = None
    """Mean time of an optimizer step, rollout included; None when simulated."""
    host_peak_rss_bytes: int | None = None
    gpu_uuid: str | None = None
    """Measured only, as is all from here to `not_measured`."""
    driver_version: str | None = None
    startup_s: float | None = None
    """From the worker's start to the first phase: imports, the CUDA context."""
    load_s: float | None = None
    """Models, adapters and the trainer made."""
    rollout_s: float | None = None
    """Mean time of an optimizer step's rollouts."""
    sampled_max_device_bytes: int | None = None
    """The highest the sampler saw, other programs included: a lower bound."""
    sample_period_s: float | None = None
    missed_by_sampling_bytes: int | None = None
    """How much of the peak on the device no sample saw, because it was shorter than the period."""
    settled_step: int | None = None
    """The optimizer step at which the peak stopped growing; None if it still grew in the last, or there was but one."""
    growth_bytes_per_step: float | None = None
    """Slope of the steps' peaks from there on."""
    step_peaks: tuple[StepPeak, ...] = ()
    not_measured: str = ""
    """What the driver did not give, and why."""
    gpu_s: float | None = None
    """How long the trial held a GPU; None if it held none."""
    implied_by: str | None = None
    """The trial that ran out of memory with no more need of it; only of an `implied` one."""
    message: str = ""
    """Why it did not end well: the framework's sentence, or the last lines of the worker's stderr."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial with its outcome, as stored: one file each."""

    trial_id: str
    """Content hash of the spec and the versions (`profiler.config.identity`)."""
    grid: str
    label: str
    """The method's name in tables, from the grid: ``"LoRA + checkpointing"``."""
    spec: TrialSpec
    versions: Versions
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a closed form says of a trial. None means that the form does not say."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_rule_bytes: int
    """The published blog's rule of thumb."""
    peak_phase: Phase
    breakdown: tuple[CategoryShare, ...] = field(default=())
    """Of the estimate's peak; sums to `peak_allocated_bytes`."""
