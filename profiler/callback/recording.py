"""What is recorded of a training in its own process: torch's counters by phase and step, and the driver's samples."""

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from profiler.callback.metrics import metrics_of
from profiler.domain.memory import Phase
from profiler.domain.runs.monitored import HostPeaks, MonitoredGpu, MonitoredRun, Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, Verdict, Work
from profiler.domain.runs.readings import OutOfMemory, PhasePeak, Sample, StepPeak
from profiler.domain.runs.script import NamedCard
from profiler.domain.units import KIB
from profiler.measurement.counters.cuda import CudaDevice
from profiler.measurement.counters.phase_counters import PhaseCounters, by_phase, peak_of_steps
from profiler.measurement.driver.nvml import GpuProbe, Nvml
from profiler.measurement.samples.activity import mean_of, sampled_max_device_bytes, with_activity
from profiler.measurement.samples.bounded_samples import MOST_SAMPLES
from profiler.measurement.samples.growth import growth
from profiler.measurement.samples.process_tree import RecentProcessTree
from profiler.measurement.samples.sampler import Sampler
from profiler.monitor.watch.watched import Start, start_now
from profiler.scripts.session import CountedSession
from profiler.scripts.totals import ParameterTotals
from profiler.storage.files.live_counters import LivePublisher
from profiler.storage.records.versions import installed_versions
from profiler.training.models.sizes import parameter_counts

_NO_TIMES = "times of phases: a callback does not wait for the GPU"
_ENDS_OF_STEPS = (Phase.LOAD, Phase.OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """The card, the driver and the clock."""

    cuda: CudaDevice
    nvml: Nvml
    card: NamedCard | None
    """None without a GPU."""
    sample_period_s: float
    clock: Callable[[], float] = time.monotonic


@dataclass
class _SinceLog:
    """Peaks since the last log."""

    allocated_bytes: dict[Phase, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    device_bytes: int | None = None


class Recording:
    """One training. It begins with loading; `session` is notified of phases; `finished` is the record."""

    def __init__(self, instruments: Instruments, *, suffix: str = "") -> None:
        self._tools = instruments
        self._cuda = instruments.cuda
        start = start_now()
        self._start = Start(run_id=f"{start.run_id}{suffix}", started_at=start.started_at)
        self._started_s = instruments.clock()
        self._probe = self._probe_of(instruments)
        self._cuda.synchronize()  # reads the counters
        self._retries_before, self._failed_before = self._cuda.alloc_retries(), self._cuda.failed_allocations()
        self._before_bytes = self._before()
        self._context_bytes: int | None = None
        self._peak_context_bytes: int | None = None
        self._peak_device_bytes: int | None = None
        self._peak_inactive_split_bytes = 0
        self._steps_run = 0
        self._publisher = LivePublisher(_what_runs())
        self._oom: OutOfMemory | None = None
        self._since_log = _SinceLog()
        self._counters = PhaseCounters(self._cuda, clock=instruments.clock, at_phase_end=self._at_phase_end)
        self._sampler = self._sampler_of(instruments)
        self._cuda.when_out_of_memory(self._out_of_memory)
        self._counters.enter(Phase.LOAD)
        if self._sampler is not None:
            self._sampler.start()
        self.session = CountedSession(observer=self, totals=ParameterTotals(count=parameter_counts))
        self.notes: list[str] = []
        """Phases or metrics that the installed libraries do not allow, each with the reason."""

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self._start.run_id

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of the driver so far."""
        return self._sampler.samples if self._sampler is not None else ()

    def counters_shared(self) -> AbstractContextManager[None]:
        """As `CudaDevice.counters_shared`."""
        return self._cuda.counters_shared()

    # ---- notifications of training -----------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self._counters.enter(phase)

    def step_ended(self) -> None:
        """Read the counters of the last phase, which goes on, before the step is logged."""
        self._counters.read()
        self._cuda.reset()
        self._steps_run += 1

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing: the session has the totals."""

    def metrics(self) -> Mapping[str, float]:
        """Return the peaks since the last call; empty without a GPU, and if no phase has ended since then."""
        found, self._since_log = self._since_log, _SinceLog()
        if self._tools.card is None or not found.allocated_bytes:
            return {}
        return metrics_of(
            found.allocated_bytes,
            reserved_bytes=found.reserved_bytes,
            device_bytes=found.device_bytes,
            retries=self._cuda.alloc_retries() - self._retries_before,
            failed=self._cuda.failed_allocations() - self._failed_before,
        )

    # ---- during training ---------------------------------------------------------------------------------------------

    def _probe_of(self, instruments: Instruments) -> GpuProbe | None:
        if instruments.card is None:
            return None
        return GpuProbe(instruments.nvml, instruments.card.uuid, own_processes=RecentProcessTree())

    def _sampler_of(self, instruments: Instruments) -> Sampler | None:
        if self._probe is None:
            return None
        period_s = instruments.sample_period_s
        return Sampler(
            self._probe,
            clock=instruments.clock,
            where=self._counters.where,
            period_s=period_s,
            most_samples=MOST_SAMPLES,
        )

    def _before(self) -> int | None:
        """Return the memory of other programs; None if it is unknown, as when the model is already on the card."""
        if self._probe is None:
            return None
        used = self._probe.before_the_trial()
        if not self._cuda.reserved_bytes():
            return used
        own = self._probe.process_bytes()
        return None if used is None or own is None else used - own

    def _at_phase_end(self, peak_reserved_bytes: int) -> int | None:
        phase = self._counters.phase or Phase.LOAD
        log = self._since_log
        log.allocated_bytes[phase] = max(log.allocated_bytes.get(phase, 0), self._cuda.peak_allocated_bytes())
        log.reserved_bytes = max(log.reserved_bytes, peak_reserved_bytes)
        inactive = self._cuda.peak_inactive_split_bytes()
        self._peak_inactive_split_bytes = max(self._peak_inactive_split_bytes, inactive)
        if phase in _ENDS_OF_STEPS:
            self._read_context()
        if self._context_bytes is not None:
            device = peak_reserved_bytes + self._context_bytes
            log.device_bytes = max(log.device_bytes or 0, device)
            self._peak_device_bytes = max(self._peak_device_bytes or 0, device)
        if self._tools.card is not None:
            self._publisher.offer(self._tools.card.uuid, phase, self._counters.step, self._cuda)
        return self._context_bytes

    def _read_context(self) -> None:
        """Read the memory of CUDA beyond torch's, once per step: it takes a call of the driver."""
        if self._before_bytes is None or not self._cuda.reserved_bytes():
            return
        used = self._cuda.total_bytes() - self._cuda.free_bytes()
        self._context_bytes = max(0, used - self._cuda.reserved_bytes() - self._before_bytes)
        self._peak_context_bytes = max(self._peak_context_bytes or 0, self._context_bytes)

    def _out_of_memory(self, requested_bytes: int, free_bytes: int) -> None:
        """Read the card at a failed allocation, before anything is freed."""
        self._oom = OutOfMemory(
            phase=self._counters.phase or Phase.LOAD,
            step=self._counters.step,
            requested_bytes=requested_bytes,
            free_bytes=free_bytes,
            allocated_bytes=self._cuda.allocated_bytes(),
            reserved_bytes=self._cuda.reserved_bytes(),
        )

    # ---- after training ----------------------------------------------------------------------------------------------

    def finished(self, *, completed: bool, problem: str = "") -> MonitoredRun:
        """End the recording and return its record.

        Args:
            completed: Whether training reached its end.
            problem: What ended it otherwise; empty if that is unknown.
        """
        if self._sampler is not None:
            self._sampler.stop()
        self._counters.read()
        self._publisher.withdraw()
        steps = self._counters.step_peaks() if self._tools.card is not None else ()
        return MonitoredRun(
            run_id=self._start.run_id,
            watcher=Watcher.CALLBACK,
            command=tuple(sys.argv),
            started_at=self._start.started_at,
            exit_code=None,
            gpus=self._gpus(),
            host=HostPeaks(tree_bytes=None, processes=None, used_bytes=None, total_bytes=None),
            estimate=None,
            versions=installed_versions(),
            outcome=self._outcome(tuple(replace(each, time_s=None) for each in steps), completed, problem),
        )

    def _outcome(self, steps: tuple[StepPeak, ...], completed: bool, problem: str) -> Outcome:
        card, phases = self._tools.card, _without_times(by_phase(steps))
        highest = max(phases, key=lambda peak: peak.peak_allocated_bytes or 0, default=None)
        grown = growth(peak_of_steps(steps))
        totals = self.session.totals
        return Outcome(
            verdict=self._verdict(completed, problem),
            work=Work(
                parameters=totals.parameters or None,
                trainable_parameters=totals.trainable or None,
                steps_run=self._steps_run,
                micro_batches_run=self._counters.times_finished(Phase.BACKWARD),
                wall_s=self._tools.clock() - self._started_s,
                host_peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
            ),
            card=CardFacts(
                name=card.name if card else None,
                memory_bytes=card.memory_bytes if card else None,
                context_bytes=self._peak_context_bytes,
            ),
            peaks=Peaks(
                allocated_bytes=highest.peak_allocated_bytes if highest else None,
                reserved_bytes=max((peak.peak_reserved_bytes or 0 for peak in phases), default=None),
                phase=highest.phase if highest else None,
                device_bytes=self._peak_device_bytes,
                phases=with_activity(phases, self.samples),
                inactive_split_bytes=self._peak_inactive_split_bytes if card else None,
                alloc_retries=self._cuda.alloc_retries() - self._retries_before if card else None,
            ),
            measured=MeasuredDetails(
                gpu_uuid=card.uuid if card else None,
                sampled_max_device_bytes=sampled_max_device_bytes(self.samples),
                sample_period_s=self._tools.sample_period_s if card else None,
                settled_step=grown.settled_step,
                growth_bytes_per_step=grown.slope_bytes_per_step,
                step_peaks=steps,
            ),
        )

    def _verdict(self, completed: bool, problem: str) -> Verdict:
        missing = self._probe.missing if self._probe is not None else {"GPU": "none is visible"}
        unavailable = "; ".join([_NO_TIMES, *(f"{name}: {why}" for name, why in missing.items()), *self.notes])
        if completed:
            return Verdict(status=Status.OK, unavailable=unavailable)
        status = Status.OOM if self._oom is not None else Status.FAILED
        message = problem or "the training did not reach its end"
        return Verdict(status=status, message=message, oom=self._oom, unavailable=unavailable)

    def _gpus(self) -> tuple[MonitoredGpu, ...]:
        card, samples = self._tools.card, self.samples
        if card is None:
            return ()
        own = [one.process_used_bytes for one in samples if one.process_used_bytes is not None]
        return (
            MonitoredGpu(
                index=0,
                uuid=card.uuid,
                name=card.name,
                memory_bytes=card.memory_bytes,
                before_bytes=self._before_bytes,
                peak_used_bytes=sampled_max_device_bytes(samples),
                peak_process_bytes=max(own, default=None),
                mean_utilisation_percent=mean_of(one.utilisation_percent for one in samples),
                mean_power_watts=mean_of(one.power_watts for one in samples),
                problem=self._sampler.gpu_lost if self._sampler is not None else "",
            ),
        )


def _without_times(phases: tuple[PhasePeak, ...]) -> tuple[PhasePeak, ...]:
    return tuple(replace(peak, time_s=None) for peak in phases)


def _what_runs() -> str:
    """Return the name of the program in this process."""
    return os.path.basename(sys.argv[0]) or "python"  # noqa: PTH119  as typed
