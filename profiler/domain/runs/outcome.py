"""The result of a run as plain values: written by the worker, read by every layer above.

The fields of an outcome's parts declare how they are stored (`profiler.domain.runs.columns`): with `column(...)` as a
column of the row of a run, and with `stored_as(...)` in its record only, or in tables of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from profiler.domain.memory import OF_THE_MODEL, Phase
from profiler.domain.runs.columns import column, columns_of, spread, stored_as
from profiler.domain.runs.readings import (
    ENDED,
    NO_ALLOCATOR,
    NO_GPU,
    NOT_CUDA,
    CategoryShare,
    OutOfMemory,
    PhasePeak,
    StepInstant,
    StepPeak,
    TensorGroup,
)
from profiler.domain.trials.trial import PlannedTrial, TrialSpec


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


_NO_TIME = "emulated or simulated: nothing was computed"
_NOT_GIVEN = "not measured, or the driver does not report it (not_measured gives the reason)"
_NOT_COUNTED = "the trial did not run, failed, was refused, or its process was lost"
_NOT_RUN = "the trial did not run: another one answers it"
_NO_PROCESS = "the trial did not run, its process was lost, or the system has no counter of it (Windows)"
_NOT_UNLIMITED = f"neither simulated, nor emulated and out of memory; or {ENDED}"
_NO_STEPS = "neither measured nor emulated"
_NO_ESTIMATE = "there is no closed form"
_NOT_INSTALLED = "not installed"
_LATER = f"{_NOT_INSTALLED}, or the record is of a version that did not look"


def _package(name: str, title: str) -> Mapping[str, Any]:
    return column(f"version of {title}", _NOT_INSTALLED, name=f"{name}_version")


def _later_package(name: str, title: str) -> Mapping[str, Any]:
    """Declare the version of a package that earlier records do not have."""
    return column(f"version of {title}", _LATER, name=f"{name}_version")


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of the packages that decide memory; part of a trial's identity. None if a package is not installed."""

    torch: str | None = field(metadata=_package("torch", "torch"))
    trl: str | None = field(metadata=_package("trl", "trl"))
    transformers: str | None = field(metadata=_package("transformers", "transformers"))
    peft: str | None = field(metadata=_package("peft", "peft"))
    bitsandbytes: str | None = field(metadata=_package("bitsandbytes", "bitsandbytes"))
    profiler: str = field(metadata=column("version of this project", name="profiler_version"))
    cuda: str | None = field(
        default=None,
        metadata=column("the CUDA release that torch was built for", "not emulated", name="cuda_version"),
    )
    """On a real GPU the driver decides."""
    emulation: str | None = field(
        default=None, metadata=column("version of the emulated driver", "not emulated", name="emulation_version")
    )
    """Version of `profiler.emulation`."""
    deepspeed: str | None = field(default=None, metadata=_later_package("deepspeed", "DeepSpeed"))
    """Part of the identity of trials that run it, as the next."""
    vllm: str | None = field(default=None, metadata=_later_package("vllm", "vLLM"))


VERSIONED = tuple(each.place[0] for each in columns_of(Versions))
"""What has a version that affects memory, in the order in which it is shown."""
PACKAGES = tuple(each.place[0] for each in columns_of(Versions) if each.null in (_NOT_INSTALLED, _LATER))
NAMING_PACKAGES = tuple(each.name for each in fields(Versions) if each.name in PACKAGES and each.default is MISSING)
"""Packages whose versions are part of every trial id. Later ones have a default, so that no id changes."""


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

    status: Status = field(metadata=column("how the trial ended; oom is a result"))
    message: str = field(default="", metadata=column("why the trial failed or was refused", "it did not fail"))
    """The framework's sentence, or the last lines of the worker's stderr."""
    oom: OutOfMemory | None = field(default=None, metadata=spread("oom_"))
    """Set if an allocation failed."""
    unavailable: str = field(
        default="",
        metadata=column(
            "figures that are missing or uncertain, and why; what an emulated trial cannot contain",
            "nothing is missing",
            name="not_measured",
        ),
    )
    implied_by: str | None = field(
        default=None,
        metadata=column("the trial that ran out of memory and needs at most as much", "status is not implied"),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much was trained, and how long it took."""

    parameters: int | None = field(
        default=None,
        metadata=column("parameters of the model without adapters, tied ones once", NO_GPU, unit="parameters"),
    )
    trainable_parameters: int | None = field(
        default=None, metadata=column("parameters with a gradient", NO_GPU, unit="parameters")
    )
    steps_run: int | None = field(
        default=None,
        metadata=column("optimizer steps that ran to their end", _NOT_COUNTED, unit="optimizer steps"),
    )
    micro_batches_run: int | None = field(
        default=None, metadata=column("backward passes that ran", _NOT_COUNTED, unit="micro-batches")
    )
    layers_run: int | None = field(
        default=None,
        metadata=column(
            "decoder layers of the model that ran; the others are equal and were extrapolated",
            f"not simulated, or all layers ran, or {ENDED}",
            unit="layers",
        ),
    )
    step_time_s: float | None = field(
        default=None,
        metadata=column("mean time of an optimizer step, rollout included", f"{_NO_TIME}, or no step, or {ENDED}"),
    )
    wall_s: float | None = field(
        default=None,
        metadata=column(
            "how long the worker ran on this machine, whatever the backend: not the time of the training on a GPU",
            _NOT_RUN,
        ),
    )
    host_peak_rss_bytes: int | None = field(
        default=None, metadata=column("most memory of the worker process on the host", _NO_PROCESS)
    )
    host_peak_pinned_bytes: int | None = field(
        default=None,
        metadata=column(
            "most pinned memory of the host that torch's allocator had, each block rounded up to a power of two",
            "the trial did not run, its process was lost, or torch used no CUDA, or has no counter of it",
        ),
    )
    gpu_s: float | None = field(
        default=None,
        metadata=column("how long the trial used GPUs, summed over them", "it used none, or it is no trial of a sweep"),
    )


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The card that was measured, emulated or simulated."""

    name: str | None = field(
        default=None, metadata=column("name of the measured, emulated or simulated card", NO_GPU, name="gpu_name")
    )
    memory_bytes: int | None = field(
        default=None,
        metadata=column(
            "the card's memory as torch reports it; of a capped card, the cap", NO_GPU, name="gpu_memory_bytes"
        ),
    )
    context_bytes: int | None = field(
        default=None,
        metadata=column("memory of CUDA itself on the card; assumed when emulated or simulated", NO_ALLOCATOR),
    )


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The highest memory of the trial. After an out-of-memory error: the highest before it."""

    allocated_bytes: int | None = field(
        default=None,
        metadata=column(
            "most bytes in tensors at once; in an oom row, before the failure", NO_GPU, name="peak_allocated_bytes"
        ),
    )
    """torch's `max_memory_allocated`, or its simulated value."""
    reserved_bytes: int | None = field(
        default=None,
        metadata=column("most bytes held by torch's caching allocator", NO_ALLOCATOR, name="peak_reserved_bytes"),
    )
    """torch's `max_memory_reserved`."""
    device_bytes: int | None = field(
        default=None,
        metadata=column(
            "most bytes in use by the driver's count; reserved bytes and the assumed context when emulated or "
            "simulated",
            NO_ALLOCATOR,
            name="peak_device_bytes",
        ),
    )
    """Reserved memory, the context and loaded kernels."""
    phase: Phase | None = field(
        default=None, metadata=column("the phase of peak_allocated_bytes", NO_GPU, name="peak_phase")
    )
    phases: tuple[PhasePeak, ...] = field(default=(), metadata=stored_as("phases"))
    inactive_split_bytes: int | None = field(
        default=None,
        metadata=column("most free bytes between blocks in use", NO_ALLOCATOR, name="peak_inactive_split_bytes"),
    )
    """In segments that cannot be released."""
    alloc_retries: int | None = field(
        default=None,
        metadata=column("times the allocator released its cache and tried again", NO_ALLOCATOR, unit="retries"),
    )


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """What the peak of allocated memory consists of. Either `shares` or `problem` is set, or neither."""

    shares: tuple[CategoryShare, ...] = field(default=(), metadata=stored_as("breakdown"))
    """Sum to `Peaks.allocated_bytes`."""
    largest: tuple[TensorGroup, ...] = field(default=(), metadata=stored_as("largest"))
    """The ten largest tensors, or groups of similar tensors, at the peak; largest first."""
    problem: str = field(default="", metadata=stored_as("not_measured"))
    """Why there is no breakdown although it was requested. Stored as the last figure of `Verdict.unavailable`."""

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

    required_allocated_bytes: int = field(metadata=column("the peak on a card of unlimited memory", _NOT_UNLIMITED))
    required_reserved_bytes: int | None = field(
        default=None, metadata=column("peak_reserved_bytes on a card of unlimited memory", _NOT_UNLIMITED)
    )
    required_unreleasable_bytes: int | None = field(
        default=None,
        metadata=column(
            "most bytes in segments that contain a tensor, on such a card: a full card cannot release them",
            f"not simulated, or {ENDED}",
        ),
    )
    step_shape: Sequence[StepInstant] = field(default=(), metadata=stored_as("step_shape"))
    """The last optimizer step on that card, in the order of its events; of a stored record a `StepShape`. Empty unless
    simulated."""


@dataclass(frozen=True, kw_only=True)
class MeasuredDetails:
    """What torch's counters and the driver know; of an emulated trial only what comes from torch's counters."""

    gpu_uuid: str | None = field(default=None, metadata=column("the GPU measured on, as the driver names it", NOT_CUDA))
    driver_version: str | None = field(default=None, metadata=column("version of NVIDIA's driver", _NOT_GIVEN))
    startup_s: float | None = field(
        default=None,
        metadata=column("from the start of the worker to the first phase: imports, the CUDA context", NOT_CUDA),
    )
    load_s: float | None = field(
        default=None, metadata=column("time to create models, adapters and the trainer", NOT_CUDA)
    )
    rollout_s: float | None = field(
        default=None, metadata=column("mean time of an optimizer step's rollouts", "not measured, or no rollout")
    )
    sampled_max_device_bytes: int | None = field(
        default=None, metadata=column("the driver's count, polled, of all programs: a lower bound", _NOT_GIVEN)
    )
    sample_period_s: float | None = field(
        default=None, metadata=column("time between two samples; shorter peaks can be missed", NOT_CUDA)
    )
    missed_by_sampling_bytes: int | None = field(
        default=None,
        metadata=column("part of the device's peak that no sample shows, because it was too short", _NOT_GIVEN),
    )
    settled_step: int | None = field(
        default=None,
        metadata=column(
            "the step at which the peak stopped growing",
            f"{_NO_STEPS}, the peak grew in the last step, or there were fewer than two steps",
            unit="optimizer steps",
        ),
    )
    growth_bytes_per_step: float | None = field(
        default=None,
        metadata=column(
            "slope of the peaks of the steps after that",
            f"{_NO_STEPS}, or fewer than two steps remain",
            unit="bytes",
            is_signed=True,
        ),
    )
    step_peaks: tuple[StepPeak, ...] = field(default=(), metadata=stored_as("step_peaks"))


@dataclass(frozen=True, kw_only=True)
class EmulatedDetails:
    """What only an emulation knows."""

    values: str = field(
        metadata=column(
            "complete, or the integers and booleans that the host read without their being computed",
            f"not emulated, or {ENDED}",
            name="emulated_values",
        )
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run. None means "not known here", never 0. Sizes are integers of bytes, times in seconds."""

    verdict: Verdict = field(metadata=spread())
    work: Work = field(default=Work(), metadata=spread())
    card: CardFacts = field(default=CardFacts(), metadata=spread())
    peaks: Peaks = field(default=Peaks(), metadata=spread())
    breakdown: Breakdown = field(default=Breakdown(), metadata=spread())
    unlimited: UnlimitedCard | None = field(default=None, metadata=spread())
    """None unless simulated, or emulated and out of memory."""
    measured: MeasuredDetails | None = field(default=None, metadata=spread())
    """None unless measured or emulated."""
    emulated: EmulatedDetails | None = field(default=None, metadata=spread())
    """None unless emulated."""

    @property
    def status(self) -> Status:
        """How the run ended."""
        return self.verdict.status

    @property
    def message(self) -> str:
        """Why the run did not end well."""
        return self.verdict.message

    @property
    def needed_bytes(self) -> int | None:
        """What of a card the run needs: segments that hold a tensor at the worst instant, and the CUDA context."""
        unreleasable = None if self.unlimited is None else self.unlimited.required_unreleasable_bytes
        context = self.card.context_bytes
        return None if unreleasable is None or context is None else unreleasable + context


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run with its outcome; stored as one file. Each kind of run adds what only it knows."""

    versions: Versions = field(metadata=spread())
    outcome: Outcome = field(metadata=spread())


@dataclass(frozen=True, kw_only=True)
class TrialRecord(Run):
    """One trial with its outcome."""

    trial_id: str = field(metadata=column("content hash of the specification and the versions", identifies=True))
    """See `profiler.config.trials.identity`."""
    grid: str = field(metadata=column("the grid of the trial"))
    label: str = field(metadata=column("the method's name in tables"))
    """From the grid: ``"LoRA + checkpointing"``."""
    spec: TrialSpec

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

    peak_allocated_bytes: int = field(metadata=column("peak_allocated_bytes by the closed form", _NO_ESTIMATE))
    peak_reserved_bytes: int | None = field(metadata=column("peak_reserved_bytes by the closed form", _NO_ESTIMATE))
    peak_rule_bytes: int = field(metadata=column("the peak by the published blog's rule of thumb", _NO_ESTIMATE))
    peak_phase: Phase
    breakdown: tuple[CategoryShare, ...] = ()
    """Of the estimated peak; sums to `peak_allocated_bytes`."""
    peak_unreleasable_bytes: int | None = None
    """Segments that hold a tensor at the worst instant, where the trial's requests were replayed."""
    replays_operations: bool = False
    """Whether that replay has the layers operation by operation, not in stages."""

    @property
    def reserved_bytes(self) -> int:
        """Reserved memory at the peak, at least that of the tensors."""
        return self.peak_reserved_bytes or self.peak_allocated_bytes

    @property
    def peak_of_rows_bytes(self) -> int:
        """What rows of data have of the peak: activations, logits, cache and the like."""
        return self.peak_allocated_bytes - sum(
            share.size_bytes for share in self.breakdown if share.category in OF_THE_MODEL
        )
