"""The recorder of one GPU while something runs: the driver's samples, and torch's counters.

The recorder of one GPU while something runs: memory before it, the driver's samples, and the loss of the GPU.

A trial, `VramCallback` and a watched command use it, each in its `Mode`. `recorder.py` adds torch's counters.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import MonitoredGpu, NamedCard
from profiler.domain.runs.outcome import MeasuredDetails, Peaks
from profiler.domain.runs.readings import OutOfMemory, Sample, StepPeak
from profiler.measurement.counters.phase_counters import (
    CudaDevice,
    PhaseCounters,
    Unmapped,
    VllmMapping,
    by_phase,
    peak_of_steps,
    unmapped_now,
)
from profiler.measurement.driver.nvml import GpuProbe
from profiler.measurement.driver.visible import VisibleGpu
from profiler.measurement.samples.sampler import MOST_SAMPLES, SLOW_EVERY, Sampler, Whereabouts
from profiler.measurement.samples.summary import growth, mean_of, sampled_max_device_bytes, with_activity


@dataclass(frozen=True, kw_only=True)
class Start:
    """When a recorded run began, and its name."""

    run_id: str
    started_at: str


def start_now() -> Start:
    """Return the start of a run of this process."""
    now = datetime.now(UTC)
    return Start(
        run_id=f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}-{os.getpid()}",
        started_at=now.isoformat(timespec="seconds"),
    )


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How much a recorder may cost what it records."""

    most_samples: int = MOST_SAMPLES
    """More are merged."""
    has_times: bool = False
    """Whether the counters wait for the GPU, so that the time of a phase is that of its work."""
    context_after: frozenset[Phase] = frozenset()
    """Phases at whose end the memory of CUDA beyond torch's is read, which takes a call of the driver."""
    owns_cuda: bool = False
    """Whether CUDA is in use from the first phase on. Otherwise nothing is read until torch has reserved memory."""
    subtracts_unmapped: bool = False
    """Whether memory that vLLM has returned to the driver is subtracted, which takes a walk through its pools."""


SYNCHRONISED = Mode(
    most_samples=sys.maxsize,
    has_times=True,
    context_after=frozenset(Phase),
    owns_cuda=True,
    subtracts_unmapped=True,
)
"""A trial, which may be slowed down where phases change."""

CHEAP = Mode(context_after=frozenset({Phase.LOAD, Phase.OPTIMIZER}))
"""Training of others in this process: the GPU is never waited for, and the driver is asked once per step."""

OUTSIDE = Mode()
"""A command in processes of its own: samples, and no counters."""


class Recorder:
    """Samples of one GPU, and what they show."""

    def __init__(
        self,
        mode: Mode,
        *,
        probe: GpuProbe | None,
        before_bytes: int | None,
        sample_period_s: float | None,
        slow_every: int = SLOW_EVERY,
    ) -> None:
        """Take no sample yet.

        Args:
            mode: What recording may cost.
            probe: Values of the GPU; None without one.
            before_bytes: Memory in use before the run, by other programs; None if unknown.
            sample_period_s: Time between two samples; None takes none.
            slow_every: As of `Sampler`.
        """
        self.mode = mode
        self.probe = probe
        self.before_bytes = before_bytes
        self.sample_period_s = sample_period_s
        self._slow_every = slow_every
        self._sampler: Sampler | None = None

    def prepare(self, clock: Callable[[], float], where: Whereabouts = lambda: (None, 0)) -> None:
        """Make the sampler: times of samples count from now on `clock`."""
        if self.probe is None or self.sample_period_s is None:
            return
        self._sampler = Sampler(
            self.probe,
            clock=clock,
            where=where,
            period_s=self.sample_period_s,
            slow_every=self._slow_every,
            most_samples=self.mode.most_samples,
        )

    def start(self) -> None:
        """Sample in a thread."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> None:
        """Stop the thread."""
        if self._sampler is not None:
            self._sampler.stop()

    def take(self) -> None:
        """Take one sample now."""
        if self._sampler is not None:
            self._sampler.take()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples so far."""
        return self._sampler.samples if self._sampler is not None else ()

    @property
    def gpu_lost(self) -> str:
        """The driver's message if the GPU was lost while it was sampled; empty if not."""
        return self._sampler.gpu_lost if self._sampler is not None else ""

    @property
    def missing(self) -> Mapping[str, str]:
        """The reason per value that the driver did not report."""
        return self.probe.missing if self.probe is not None else {}

    @property
    def sampled_max_device_bytes(self) -> int | None:
        """The highest sample of device memory; None without one."""
        return sampled_max_device_bytes(self.samples)

    def monitored(self, gpu: NamedCard | VisibleGpu, index: int) -> MonitoredGpu:
        """Return what the samples show, of the GPU with this index among those that the run sees."""
        samples = self.samples
        own = [one.process_used_bytes for one in samples if one.process_used_bytes is not None]
        return MonitoredGpu(
            index=index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            before_bytes=self.before_bytes,
            peak_used_bytes=self.sampled_max_device_bytes,
            peak_process_bytes=max(own, default=None),
            mean_utilisation_percent=mean_of(one.utilisation_percent for one in samples),
            mean_power_watts=mean_of(one.power_watts for one in samples),
            problem=self.gpu_lost,
        )


class Publisher(Protocol):
    """Shows the counters to other programs while they are recorded."""

    def offer(self, gpu_uuid: str, phase: Phase, step: int, counters: CudaDevice) -> None:
        """Publish the counters if that is due."""

    def withdraw(self) -> None:
        """Remove what was published."""


@dataclass(frozen=True, kw_only=True)
class PhaseReading:
    """Readings where a phase ends."""

    phase: Phase
    peak_reserved_bytes: int
    context_bytes: int | None
    """Memory of CUDA beyond torch's, as it was last read; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The GPU of this process."""

    cuda: CudaDevice
    uuid: str
    """Its name for programs."""
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    allocator_limit_bytes: int | None = None
    """Most memory of the allocator on a capped card; None if not capped."""
    separates_context: bool = True
    """Whether memory that is neither torch's nor other programs' is CUDA's own, and not also paged states."""


class CounterRecorder:
    """An observer of phases in the process that uses the GPU."""

    def __init__(
        self,
        device: Device,
        recorder: Recorder,
        *,
        publisher: Publisher | None = None,
        at_phase_end: Callable[[PhaseReading], None] = lambda _: None,
        at_out_of_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """Count retries and notice failed allocations from now on.

        Args:
            device: The GPU.
            recorder: Its samples, and the mode.
            publisher: Shows the counters to others until `stop`.
            at_phase_end: Called where a phase ends, before the counters are reset.
            at_out_of_memory: Called at a failed allocation, before anything is freed.
        """
        self._device = device
        self._cuda = device.cuda
        self._recorder = recorder
        self._mode = recorder.mode
        self._publisher = publisher
        self._at_phase_end = at_phase_end
        self._at_out_of_memory = at_out_of_memory
        self._context_bytes: int | None = None
        self._peak_device_bytes: int | None = None
        self._peak_inactive_split_bytes = 0
        self._mapping = VllmMapping(changed=lambda: self._counters.mapping_changed())
        self._counters = PhaseCounters(
            self._cuda,
            clock=device.clock,
            at_phase_end=self._phase_ended,
            unmapped=self._mapping.unmapped if self._mode.subtracts_unmapped else Unmapped,
        )
        self.peak_context_bytes: int | None = None
        """Most memory of CUDA beyond torch's; None if unknown."""
        self.oom: OutOfMemory | None = None
        """The last failed allocation that torch reported."""
        self._retries_before = self._cuda.alloc_retries()
        self._cuda.when_out_of_memory(self._ran_out)

    def start(self) -> None:
        """Start sampling."""
        self._recorder.prepare(self._device.clock, self._counters.where)
        self._recorder.start()

    def stop(self) -> None:
        """Stop sampling and publishing."""
        self._recorder.stop()
        self._mapping.close()
        if self._publisher is not None:
            self._publisher.withdraw()
            self._publisher = None  # the last reading is not published any more

    # ---- phases ------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The current phase; before the first, loading."""
        return self._counters.phase or Phase.LOAD

    @property
    def first_phase_at_s(self) -> float:
        """Time of the first phase on the clock."""
        return self._counters.first_phase_at_s

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self._counters.enter(phase)

    def read(self) -> None:
        """Add the counters to the current phase."""
        self._counters.read()

    def times_finished(self, phase: Phase) -> int:
        """Return how often the phase has begun and ended."""
        return self._counters.times_finished(phase)

    def _phase_ended(self, peak_reserved_bytes: int) -> int | None:
        """Read what is beyond the counters; return the memory of CUDA beyond torch's, None if unknown."""
        phase, inactive = self.phase, self._cuda.peak_inactive_split_bytes()
        self._peak_inactive_split_bytes = max(self._peak_inactive_split_bytes, inactive)
        if self._publisher is not None and self._device.uuid:
            self._publisher.offer(self._device.uuid, phase, self._counters.step, self._cuda)
        if phase in self._mode.context_after:
            self._read_context()
        context = self._context_bytes
        if context is not None:
            self._peak_device_bytes = max(self._peak_device_bytes or 0, peak_reserved_bytes + context)
        self._at_phase_end(PhaseReading(phase=phase, peak_reserved_bytes=peak_reserved_bytes, context_bytes=context))
        return context

    def _read_context(self) -> None:
        before = self._recorder.before_bytes
        if before is None or not self._device.separates_context:
            return
        if not self._mode.owns_cuda and not self._cuda.reserved_bytes():
            return
        used = self._cuda.total_bytes() - self._cuda.free_bytes()
        gone = unmapped_now() if self._mode.subtracts_unmapped else Unmapped()
        reserved = self._cuda.reserved_bytes() - gone.reserved_bytes
        self._context_bytes = max(0, used - reserved - before)
        self.peak_context_bytes = max(self.peak_context_bytes or 0, self._context_bytes)

    # ---- failed allocations ------------------------------------------------------------------------------------------

    def memory_in_use(self, requested_bytes: int | None, free_bytes: int) -> OutOfMemory:
        """Return the memory in use now, of an allocation that failed with the driver's `free_bytes`."""
        reserved, limit = self._cuda.reserved_bytes(), self._device.allocator_limit_bytes
        return OutOfMemory(
            phase=self.phase,
            step=self._counters.step,
            requested_bytes=requested_bytes,
            # On a capped card the driver reports more free memory than the cap allows.
            free_bytes=free_bytes if limit is None else max(0, min(free_bytes, limit - reserved)),
            allocated_bytes=self._cuda.allocated_bytes(),
            reserved_bytes=reserved,
        )

    def _ran_out(self, requested_bytes: int, free_bytes: int) -> None:
        """Read the card at the error, before anything is freed."""
        self.oom = self.memory_in_use(requested_bytes, free_bytes)
        self._at_out_of_memory()

    def retries(self) -> int:
        """Return how often the allocator has released its cache and retried since recording began."""
        return self._cuda.alloc_retries() - self._retries_before

    # ---- results -----------------------------------------------------------------------------------------------------

    def peaks(self, *, gpu_works: bool = True) -> Peaks:
        """Return the peaks so far. The device is not asked if it does not work."""
        phases = by_phase(self._step_peaks())
        highest = max(phases, key=lambda peak: peak.peak_allocated_bytes or 0, default=None)
        return Peaks(
            allocated_bytes=highest.peak_allocated_bytes if highest else None,
            reserved_bytes=max((peak.peak_reserved_bytes or 0 for peak in phases), default=None),
            phase=highest.phase if highest else None,
            device_bytes=self._peak_device_bytes,
            phases=with_activity(phases, self._recorder.samples),
            inactive_split_bytes=self._peak_inactive_split_bytes,
            alloc_retries=self.retries() if gpu_works else None,
        )

    def details(self) -> MeasuredDetails:
        """Return what the counters and samples show beyond the peaks."""
        steps = self._step_peaks()
        grown = growth(peak_of_steps(steps))
        return MeasuredDetails(
            gpu_uuid=self._device.uuid,
            sampled_max_device_bytes=self._recorder.sampled_max_device_bytes,
            sample_period_s=self._recorder.sample_period_s,
            settled_step=grown.settled_step,
            growth_bytes_per_step=grown.slope_bytes_per_step,
            step_peaks=steps,
        )

    def _step_peaks(self) -> tuple[StepPeak, ...]:
        steps = self._counters.step_peaks()
        return steps if self._mode.has_times else tuple(replace(each, time_s=None) for each in steps)
