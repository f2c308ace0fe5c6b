"""A recorder with torch's counters: peaks of each phase, the memory of CUDA beyond them, and failed allocations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import MeasuredDetails, Peaks
from profiler.domain.runs.readings import OutOfMemory, StepPeak
from profiler.measurement.counters.cuda import CudaDevice
from profiler.measurement.counters.phase_counters import PhaseCounters, by_phase, peak_of_steps
from profiler.measurement.counters.unmapped import Unmapped, VllmMapping, unmapped_now
from profiler.measurement.recorder import Recorder
from profiler.measurement.samples.activity import with_activity
from profiler.measurement.samples.growth import growth


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
