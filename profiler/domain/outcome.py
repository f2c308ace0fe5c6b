"""The result of a trial as plain values: written by the worker, read by every layer above."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from profiler.domain.memory import Category, Phase
from profiler.domain.trial import PlannedTrial, TrialSpec


class Status(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OOM = "oom"
    """The GPU ran out of memory. This is an answer, not a failure."""
    FAILED = "failed"
    """The worker raised, exited or crashed."""
    KILLED = "killed"
    """The worker received SIGKILL."""
    TIMEOUT = "timeout"
    STALLED = "stalled"
    """The worker was alive but made no progress."""
    HOST_OOM = "host_oom"
    """The host ran out of memory."""
    DEVICE_FAULT = "device_fault"
    """The GPU broke."""
    CONTENDED = "contended"
    """Another program used the GPU."""
    UNSUPPORTED = "unsupported"
    """The simulation does not support an operation, or the combination of keys does not exist."""
    IMPLIED = "implied"
    """Not run: a trial that needs at most as much memory ran out of it (`Verdict.implied_by`)."""

    @property
    def answered(self) -> bool:
        """Whether the result is final, so that the trial need not run again."""
        return self in (Status.OK, Status.OOM, Status.UNSUPPORTED, Status.IMPLIED)


@dataclass(frozen=True, kw_only=True)
class PhasePeak:
    """Peak memory of one phase. None means not known with this backend."""

    phase: Phase
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    time_s: float | None = None
    """Total over all steps; None unless measured."""
    samples: int | None = None
    """Number of samples taken in it. This and all fields below are None if nothing was sampled."""
    sampled_max_device_bytes: int | None = None
    """Maximum of the driver's count, polled: a lower bound."""
    mean_utilisation_percent: float | None = None
    mean_power_watts: float | None = None
    mean_sm_clock_mhz: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """Exact peaks of one phase in one optimizer step."""

    step: int
    """From 1; 0 for loading."""
    phase: Phase
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    time_s: float | None
    """None if emulated."""
    context_bytes: int | None = None
    """Memory of CUDA beyond torch's at the end of the phase; grows as libraries load kernels and plans."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading of the driver during a trial. None means not read at this sample, or unavailable."""

    time_s: float
    """Since sampling began, on the monotonic clock."""
    phase: Phase | None
    """None before the first phase."""
    step: int
    """Optimizer step, from 1; 0 while loading."""
    device_used_bytes: int | None
    """Memory of all processes on the GPU."""
    process_used_bytes: int | None
    """Memory of the trial's own processes."""
    utilisation_percent: int | None
    power_watts: float | None
    sm_clock_mhz: int | None


@dataclass(frozen=True, kw_only=True)
class CategoryShare:
    """Bytes of one category at one instant, usually the peak of allocated memory."""

    category: Category
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepInstant:
    """One instant of an optimizer step."""

    phase: Phase
    shares: tuple[CategoryShare, ...]


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Similar tensors at the peak: the same shape and origin, from the same place in every layer."""

    category: Category
    size_bytes: int
    """Total of the group."""
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    """torch's name without ``torch.``; empty for a kernel's scratch."""
    name: str
    """Such as ``"gradient of lm_head.weight"``; empty if unknown."""
    module: str
    """Path of the module, layers as ``*``; empty if no module created the tensor."""
    operation: str
    phase: Phase
    """The phase in which the tensors were created."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The allocation that failed, and the memory in use at that instant. None means not reported."""

    phase: Phase
    requested_bytes: int | None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    step: int | None = None
    """The optimizer step, from 1; 0 while loading. None if simulated."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of the packages that decide memory; part of a trial's identity. None if a package is not installed."""

    torch: str | None
    trl: str | None
    transformers: str | None
    peft: str | None
    bitsandbytes: str | None
    profiler: str
    cuda: str | None = None
    """The CUDA release that torch was built for; None unless emulated. On a real GPU the driver decides."""
    emulation: str | None = None
    """Version of `profiler.emulation`; None unless emulated."""
    deepspeed: str | None = None
    """Part of the identity of trials that run it, as the next."""
    vllm: str | None = None
    """Part of the identity of trials that run it."""


class BreakdownStatus(StrEnum):
    """Whether a trial's breakdown is known."""

    KNOWN = "known"
    ABSENT = "absent"
    """Not requested, or the trial has no peak."""
    FAILED = "failed"
    """Requested, but it could not be determined (`Breakdown.problem`)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the trial ended, and why."""

    status: Status
    message: str = ""
    """Why it did not end well: the framework's sentence, or the last lines of the worker's stderr."""
    oom: OutOfMemory | None = None
    """Set if an allocation failed."""
    unavailable: str = ""
    """Figures that are missing or uncertain, each with its reason."""
    implied_by: str | None = None
    """Id of the trial that ran out of memory and needs at most as much; set if the status is `implied`."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much was trained, and how long it took."""

    parameters: int | None = None
    trainable_parameters: int | None = None
    steps_run: int | None = None
    micro_batches_run: int | None = None
    step_time_s: float | None = None
    """Mean time of an optimizer step, rollout included; None if emulated or simulated."""
    wall_s: float | None = None
    """Duration of the worker on this host, whatever the backend."""
    host_peak_rss_bytes: int | None = None
    gpu_s: float | None = None
    """How long the trial occupied GPUs, summed over them; None if it occupied none."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The card that was measured, emulated or simulated."""

    name: str | None = None
    memory_bytes: int | None = None
    """Its memory as torch reports it; for a capped card, the cap."""
    context_bytes: int | None = None
    """Memory that CUDA itself takes on the card; assumed if emulated or simulated."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The highest memory of the trial. After an out-of-memory error: the highest before it."""

    allocated_bytes: int | None = None
    """torch's `max_memory_allocated`, or its simulated value."""
    reserved_bytes: int | None = None
    """torch's `max_memory_reserved`."""
    device_bytes: int | None = None
    """The driver's count: reserved memory, the context and loaded kernels."""
    phase: Phase | None = None
    """The phase of `allocated_bytes`."""
    phases: tuple[PhasePeak, ...] = ()
    inactive_split_bytes: int | None = None
    """Most bytes free between blocks in use, in segments that cannot be released."""
    alloc_retries: int | None = None
    """How often the allocator released its whole cache and tried again."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """What the peak of allocated memory consists of. Either `shares` or `problem` is set, or neither."""

    shares: tuple[CategoryShare, ...] = ()
    """Sum to `Peaks.allocated_bytes`."""
    largest: tuple[TensorGroup, ...] = ()
    """The ten largest tensors, or groups of similar tensors, at the peak; largest first."""
    problem: str = ""
    """Why there is no breakdown although it was requested."""

    def __post_init__(self) -> None:
        if self.problem and (self.shares or self.largest):
            raise ValueError(f"a breakdown with a problem: {self.problem}")

    @property
    def status(self) -> BreakdownStatus:
        """Whether the breakdown is known, absent or failed."""
        if self.problem:
            return BreakdownStatus.FAILED
        return BreakdownStatus.KNOWN if self.shares else BreakdownStatus.ABSENT


@dataclass(frozen=True, kw_only=True)
class UnlimitedCard:
    """The same trial on a card of unlimited memory."""

    required_allocated_bytes: int
    """Peak of allocated memory on that card."""
    required_reserved_bytes: int | None = None
    """Peak of reserved memory on that card."""
    required_unreleasable_bytes: int | None = None
    """Peak on that card of segments that hold a tensor; a full card cannot release them. None unless simulated."""
    step_shape: Sequence[StepInstant] = ()
    """The last optimizer step on that card, in the order of its events; of a stored record a `StepShape`. Empty unless
    simulated."""


@dataclass(frozen=True, kw_only=True)
class MeasuredDetails:
    """What torch's counters and the driver know; of an emulated trial only what comes from torch's counters."""

    gpu_uuid: str | None = None
    driver_version: str | None = None
    startup_s: float | None = None
    """From the worker's start to the first phase: imports and the CUDA context."""
    load_s: float | None = None
    """Time to build the models, the adapters and the trainer."""
    rollout_s: float | None = None
    """Mean time of an optimizer step's rollouts."""
    sampled_max_device_bytes: int | None = None
    """Maximum over all samples, other programs included: a lower bound."""
    sample_period_s: float | None = None
    missed_by_sampling_bytes: int | None = None
    """Part of the peak on the device that no sample saw, because it was shorter than the period."""
    settled_step: int | None = None
    """The optimizer step at which the peak stopped growing; None if it never did, or if there was only one step."""
    growth_bytes_per_step: float | None = None
    """Slope of the steps' peaks from `settled_step` on."""
    step_peaks: tuple[StepPeak, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EmulatedDetails:
    """What only an emulation knows."""

    values: str
    """``"complete"`` if every integer and boolean that the host read was computed; otherwise those that were not."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a trial. None means "not known here", never 0. Sizes are integers of bytes, times in seconds."""

    verdict: Verdict
    work: Work = Work()
    card: CardFacts = CardFacts()
    peaks: Peaks = Peaks()
    breakdown: Breakdown = Breakdown()
    unlimited: UnlimitedCard | None = None
    """None unless simulated, or emulated and out of memory."""
    measured: MeasuredDetails | None = None
    """None unless measured or emulated."""
    emulated: EmulatedDetails | None = None
    """None unless emulated."""

    @property
    def status(self) -> Status:
        """How the trial ended."""
        return self.verdict.status

    @property
    def message(self) -> str:
        """Why the trial did not end well."""
        return self.verdict.message


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial with its outcome; stored as one file."""

    trial_id: str
    """Content hash of the spec and the versions (`profiler.config.trials.identity`)."""
    grid: str
    label: str
    """The method's name in tables, from the grid: ``"LoRA + checkpointing"``."""
    spec: TrialSpec
    versions: Versions
    outcome: Outcome

    @classmethod
    def of(cls, trial: PlannedTrial, *, versions: Versions, outcome: Outcome) -> Self:
        """Return the record of a trial that was planned."""
        return cls(
            trial_id=trial.trial_id,
            grid=trial.grid,
            label=trial.label,
            spec=trial.spec,
            versions=versions,
            outcome=outcome,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of a trial by a closed form. None means that the form has no such value."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_rule_bytes: int
    """The published blog's rule of thumb."""
    peak_phase: Phase
    breakdown: tuple[CategoryShare, ...] = field(default=())
    """Of the estimated peak; sums to `peak_allocated_bytes`."""
