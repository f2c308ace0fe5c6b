"""A trial on a real GPU, measured by three rulers at once: CUDA's counters, the driver's samples, `mem_get_info`.

Everything outside comes in as `Instruments`, so that a script can stand in for the card up to its door.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from profiler.domain.memory import Phase
from profiler.domain.optimizers import Optimizer
from profiler.domain.outcome import Outcome, OutOfMemory, Sample, Status
from profiler.domain.trial import TrialSpec
from profiler.domain.units import MIB
from profiler.measurement.activity import missed_by_sampling_bytes, sampled_max_device_bytes, with_activity
from profiler.measurement.contention import PhaseEnd, contention
from profiler.measurement.cuda import CudaDevice
from profiler.measurement.growth import growth
from profiler.measurement.nvml import GpuLostError, GpuProbe, Nvml, NvmlError
from profiler.measurement.phase_counters import PhaseCounters, by_phase, peak_of_steps
from profiler.measurement.process_tree import RecentProcessTree
from profiler.measurement.sampler import PERIOD_S, Sampler
from profiler.worker.card import Card, prepare_card
from profiler.worker.oom_message import read_oom_message

SNAPSHOT_ENTRIES = 100_000
"""Of a snapshot: the last optimizer steps, in a file that a browser can open."""

_BROKEN = ("uncorrectable ECC error", "GPU is lost", "fallen off the bus", "Hardware stack error")
"""CUDA's words for a GPU that broke."""

FULL_BYTES = 256 * MIB
"""With less than this left on the card, a library that cannot make its handle has run out of memory."""


class TrialObserver(Protocol):
    """What training tells whoever measures it."""

    def enter(self, phase: Phase) -> None:
        """`phase` begins now."""

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """The trainer is ready; so many parameters, and so many with a gradient."""


Train = Callable[[TrialObserver], Outcome]
"""Runs the trial; its outcome but for what the GPU has to say."""


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """The card, the driver and the clock."""

    cuda: CudaDevice
    nvml: Nvml
    assumed_context_bytes: Callable[[tuple[int, int]], int]
    """What CUDA takes on a card of that compute capability; only for capping."""
    clock: Callable[[], float] = time.monotonic
    own_processes: Callable[[], frozenset[int]] = field(default_factory=RecentProcessTree)
    sample_period_s: float | None = PERIOD_S
    """None to take no samples."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An outcome and what is too big for its record."""

    outcome: Outcome
    samples: tuple[Sample, ...] = ()
    snapshot: Mapping[str, Any] | None = None
    """In the memory viewer's format, of the moment of the out-of-memory error or of the end."""


@dataclass(frozen=True, kw_only=True)
class MeasuringTask:
    """What to measure and how it was asked for."""

    spec: TrialSpec
    gpu_uuid: str | None
    """The GPU as whoever chose it names it; None if nobody did."""
    snapshot: bool
    started_s: float
    """When the worker began, on the instruments' clock."""
    history_entries: int = SNAPSHOT_ENTRIES
    """How many allocations and frees a snapshot's history goes back."""


def measure(task: MeasuringTask, instruments: Instruments, train: Train) -> Measured:
    """Run the trial on the GPU. Out of memory, a broken GPU and memory taken by others are outcomes.

    Raises:
        CapError: The card cannot be capped as the specification asks.
        Exception: Whatever training raises otherwise.
    """
    trial = _MeasuredTrial(task, instruments)
    try:
        return trial.run(train)
    except GpuLostError as error:
        return Measured(outcome=Outcome(status=Status.DEVICE_FAULT, gpu_uuid=trial.uuid, message=str(error)))


@dataclass
class _Standing:
    """What stood on the card at one moment."""

    requested_bytes: int | None
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass
class _Borders:
    """What `mem_get_info` and the driver said where phases ended."""

    readings: list[PhaseEnd] = field(default_factory=list)
    peak_device_bytes: int = 0
    peak_inactive_split_bytes: int = 0


class _MeasuredTrial:
    def __init__(self, task: MeasuringTask, instruments: Instruments) -> None:
        self._task = task
        self._tools = instruments
        self._cuda = instruments.cuda
        self._borders = _Borders()
        self._sizes: tuple[int, int] | None = None
        self._standing: _Standing | None = None
        self._snapshot: Mapping[str, Any] | None = None
        self._retries_before = 0
        self.uuid = task.gpu_uuid
        self._probe: GpuProbe | None = self._probe_of(self.uuid) if self.uuid else None

    def run(self, train: Train) -> Measured:
        # Before CUDA is touched: what is in use now is others'.
        before = self._probe.before_the_trial() if self._probe else None
        if self._task.spec.alloc_conf:
            self._cuda.set_allocator_settings(self._task.spec.alloc_conf)
        self._card = prepare_card(self._cuda, self._task.spec.gpu, self._tools.assumed_context_bytes)
        self.uuid = self.uuid or self._cuda.uuid()
        self._before_bytes = before
        self._retries_before = self._cuda.alloc_retries()
        self._cuda.when_out_of_memory(self._out_of_memory)
        if self._task.snapshot:
            self._cuda.record_history(most_entries=self._task.history_entries)
        self._counters = PhaseCounters(self._cuda, clock=self._tools.clock, at_phase_end=self._at_border)
        probe = self._probe = self._probe or self._probe_of(self.uuid)
        sampler = Sampler(
            probe, clock=self._tools.clock, where=self._counters.where, period_s=self._tools.sample_period_s or PERIOD_S
        )
        if self._tools.sample_period_s is not None:
            sampler.start()
        try:
            outcome = self._trained(train, sampler)
        finally:
            sampler.stop()
        if self._task.snapshot and self._snapshot is None:
            self._snapshot = self._cuda.snapshot()
        outcome = self._judged(self._completed(outcome, sampler, probe), sampler)
        return Measured(outcome=outcome, samples=sampler.samples, snapshot=self._snapshot)

    # ---- what training tells -----------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        self._counters.enter(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """The trainer is ready."""
        self._sizes = (parameters, trainable)

    # ---- in between --------------------------------------------------------------------------------------------------

    def _probe_of(self, uuid: str) -> GpuProbe:
        return GpuProbe(self._tools.nvml, uuid, own_processes=self._tools.own_processes)

    def _at_border(self, peak_reserved_bytes: int) -> int | None:
        """Read the card where a phase ends, and return the bytes of the CUDA context; None where they are not known."""
        inactive = self._cuda.peak_inactive_split_bytes()
        self._borders.peak_inactive_split_bytes = max(self._borders.peak_inactive_split_bytes, inactive)
        # Paged optimizer states lie in memory that neither torch nor its peak counts: nothing can be told apart.
        if self._before_bytes is None or self._task.spec.optim is Optimizer.PAGED_ADAMW_8BIT:
            return None
        used = self._cuda.total_bytes() - self._cuda.free_bytes()
        context = max(0, used - self._cuda.reserved_bytes() - self._before_bytes)
        self._borders.readings.append(PhaseEnd(context_bytes=context, others_bytes=self._others_bytes()))
        self._borders.peak_device_bytes = max(self._borders.peak_device_bytes, peak_reserved_bytes + context)
        return context

    def _others_bytes(self) -> int | None:
        """Memory of other programs now, by the driver; None where it does not say which process is ours."""
        device = self._probe.used_bytes() if self._probe else None
        own = self._probe.process_bytes() if self._probe else None
        return None if device is None or own is None else device - own

    def _out_of_memory(self, requested_bytes: int, free_bytes: int) -> None:
        """At the very moment of the error: nothing has been freed yet."""
        self._standing = self._stands(requested_bytes, free_bytes)
        if self._task.snapshot:
            self._snapshot = self._cuda.snapshot()

    def _stands(self, requested_bytes: int | None, free_bytes: int) -> _Standing:
        reserved, limit = self._cuda.reserved_bytes(), self._card.allocator_limit_bytes
        # On a capped card the driver has more left than the cap allows.
        free = free_bytes if limit is None else max(0, min(free_bytes, limit - reserved))
        return _Standing(requested_bytes, free, self._cuda.allocated_bytes(), reserved)

    def _trained(self, train: Train, sampler: Sampler) -> Outcome:
        try:
            return train(self)
        except Exception as error:
            if self._cuda.is_out_of_memory(error) or (self._cuda.has_no_handle(error) and self._is_full()):
                return self._ran_out(str(error))
            broken = sampler.gpu_lost or next((words for words in _BROKEN if words in str(error)), "")
            if not broken:
                raise
            return Outcome(status=Status.DEVICE_FAULT, message=f"{type(error).__name__}: {error}")

    def _is_full(self) -> bool:
        """Whether the card has next to nothing left at this instant; the error still holds what the trial held."""
        free = self._probe.free_bytes() if self._probe else None
        return (self._cuda.free_bytes() if free is None else free) < FULL_BYTES

    def _ran_out(self, message: str) -> Outcome:
        # The error still holds the frames that ran, so most of what stood then still stands.
        said, after = read_oom_message(message), self._stands(None, self._cuda.free_bytes())
        standing = self._standing
        oom = OutOfMemory(
            phase=self._counters.phase or Phase.LOAD,
            step=self._counters.step,
            requested_bytes=standing.requested_bytes if standing else said.requested_bytes,
            free_bytes=standing.free_bytes if standing else _first(said.free_bytes, after.free_bytes),
            allocated_bytes=standing.allocated_bytes
            if standing
            else _first(said.allocated_bytes, after.allocated_bytes),
            reserved_bytes=standing.reserved_bytes if standing else _first(said.reserved_bytes, after.reserved_bytes),
        )
        parameters, trainable = self._sizes or (None, None)
        return Outcome(
            status=Status.OOM,
            oom=oom,
            message=message,
            parameters=parameters,
            trainable_parameters=trainable,
            steps_run=self._counters.times_finished(Phase.OPTIMIZER),
            micro_batches_run=self._counters.times_finished(Phase.BACKWARD),
        )

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def _completed(self, outcome: Outcome, sampler: Sampler, probe: GpuProbe) -> Outcome:
        """The outcome with everything that was measured."""
        if outcome.status is not Status.DEVICE_FAULT and not sampler.gpu_lost:
            self._counters.read()
        steps, samples = self._counters.step_peaks(), sampler.samples
        phases = by_phase(steps)
        highest = max(phases, key=lambda peak: peak.peak_allocated_bytes or 0, default=None)
        grown = growth(peak_of_steps(steps))
        contexts = [reading.context_bytes for reading in self._borders.readings]
        seen = sampled_max_device_bytes(samples)
        device = self._borders.peak_device_bytes if contexts else None
        return replace(
            self._named(outcome, self._card),
            peak_allocated_bytes=highest.peak_allocated_bytes if highest else None,
            peak_phase=highest.phase if highest else None,
            peak_reserved_bytes=max((peak.peak_reserved_bytes or 0 for peak in phases), default=None),
            peak_device_bytes=device,
            context_bytes=max(contexts, default=None),
            peak_inactive_split_bytes=self._borders.peak_inactive_split_bytes,
            alloc_retries=None if outcome.status is Status.DEVICE_FAULT else self._retries(),
            phases=with_activity(phases, samples),
            step_peaks=steps,
            load_s=next((peak.time_s for peak in phases if peak.phase is Phase.LOAD), None),
            rollout_s=_mean_by_step([one.time_s for one in steps if one.phase is Phase.ROLLOUT]),
            sampled_max_device_bytes=seen,
            missed_by_sampling_bytes=missed_by_sampling_bytes(
                peak_device_bytes=None if device is None else device + (self._before_bytes or 0),
                sampled_max_bytes=seen,
            ),
            sample_period_s=self._tools.sample_period_s,
            settled_step=grown.settled_step,
            growth_bytes_per_step=grown.slope_bytes_per_step,
            not_measured=self._not_measured(probe),
        )

    def _named(self, outcome: Outcome, card: Card) -> Outcome:
        return replace(
            outcome,
            gpu_name=card.title,
            gpu_memory_bytes=card.memory_bytes,
            gpu_uuid=self.uuid,
            driver_version=self._driver_version(),
            startup_s=self._counters.first_phase_at_s - self._task.started_s,
        )

    def _judged(self, outcome: Outcome, sampler: Sampler) -> Outcome:
        """What befell the GPU counts for more than what the trial found on it."""
        if sampler.gpu_lost:
            return replace(outcome, status=Status.DEVICE_FAULT, message=sampler.gpu_lost)
        taken = contention(sampler.samples, self._borders.readings, before_bytes=self._before_bytes)
        if taken and outcome.status in (Status.OK, Status.OOM):
            return replace(outcome, status=Status.CONTENDED, message=taken)
        return outcome

    def _retries(self) -> int:
        return self._cuda.alloc_retries() - self._retries_before

    def _driver_version(self) -> str | None:
        try:
            return self._tools.nvml.driver_version()
        except NvmlError:
            return None

    def _not_measured(self, probe: GpuProbe) -> str:
        missing = dict(probe.missing)
        if self._before_bytes is None:
            missing["context"] = "what others had on the GPU before the trial is not known"
        elif self._task.spec.optim is Optimizer.PAGED_ADAMW_8BIT:
            missing["context"] = "paged optimizer states lie in memory that is counted neither as torch's nor as CUDA's"
        return "; ".join(f"{figure}: {reason}" for figure, reason in missing.items())


def _first(said: int | None, otherwise: int) -> int:
    return otherwise if said is None else said


def _mean_by_step(times_s: list[float]) -> float | None:
    return sum(times_s) / len(times_s) if times_s else None
