"""A trial or a script on a real GPU, by three metrics, on a whole card or a capped one.

A trial or a script on a real GPU, by three metrics: CUDA's counters, the driver's samples and `mem_get_info`.

Card, driver and clock come in as `Instruments`, so that a test can script them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiler.allocator.oom_message import read_oom_message
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB, MIB, Phase, gib_text
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, Verdict, Work
from profiler.domain.runs.readings import OutOfMemory, Sample
from profiler.measurement.counters.phase_counters import CudaDevice
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, Nvml, NvmlError
from profiler.measurement.recorder import SYNCHRONISED, CounterRecorder, Device, PhaseReading, Recorder
from profiler.measurement.samples.host_usage import RecentProcessTree
from profiler.measurement.samples.sampler import PERIOD_S
from profiler.measurement.samples.summary import PhaseEnd, contention, missed_by_sampling_bytes
from profiler.storage.files.live_counters import LivePublisher
from profiler.training.placement import TrainingObserver

_MARGIN_BYTES = 64 * MIB
"""Bytes beyond the cap that the check requests: more than the rounding of the fraction and of blocks."""


class CapError(Exception):
    """The card cannot be capped as asked."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Name and memory of the card in a measured row."""

    title: str
    memory_bytes: int
    """As torch reports it; the smaller card's if capped."""
    allocator_limit_bytes: int | None
    """Most memory of the allocator on a capped card; None if not capped."""


def prepare_card(cuda: CudaDevice, gpu: str | None, context_bytes: Callable[[tuple[int, int]], int]) -> Card:
    """Cap the card to the known card `gpu`, if one is named, and check that the cap works.

    The cap is the smaller card's memory less its CUDA context. It limits the caching allocator only: the kernels are
    still the host card's, so the row is not a measurement of the smaller card.

    Raises:
        CapError: The card has too little free memory for the cap, or the allocator exceeds the cap.
    """
    name, total = cuda.name(), cuda.total_bytes()
    if gpu is None:
        return Card(title=name, memory_bytes=total, allocator_limit_bytes=None)
    target = KNOWN_GPUS[gpu]
    if target.is_called(name, total):
        return Card(title=name, memory_bytes=total, allocator_limit_bytes=None)
    limit = target.memory_bytes - context_bytes(target.compute_capability)
    if limit + _MARGIN_BYTES > cuda.free_bytes():
        raise CapError(
            f"gpu={gpu}: {name} has {gib_text(cuda.free_bytes(), 2)} free, so it cannot be capped to "
            f"{gib_text(limit, 2)}. Leave gpu out to measure the whole card."
        )
    cuda.limit_allocator(limit)
    if cuda.can_allocate(limit + _MARGIN_BYTES):
        raise CapError(
            f"gpu={gpu}: {name} allocated more than the cap of {gib_text(limit, 2)}, so the cap does not work. "
            "Use backend=simulated for any card."
        )
    size = f"{target.memory_bytes / GIB:.0f} GiB"
    return Card(title=f"{name} capped to {size}", memory_bytes=target.memory_bytes, allocator_limit_bytes=limit)


SNAPSHOT_ENTRIES = 100_000
"""Entries of a snapshot's history: the last optimizer steps, in a file that a browser can open."""

_BROKEN = ("uncorrectable ECC error", "GPU is lost", "fallen off the bus", "Hardware stack error")
"""Parts of CUDA's messages about a broken GPU."""

FULL_BYTES = 256 * MIB
"""With less than this free on the card, a library that cannot make its handle has run out of memory."""


Train = Callable[[TrainingObserver], Outcome]
"""Runs the trial and returns its outcome without the GPU's numbers."""


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """The card, the driver and the clock."""

    cuda: CudaDevice
    nvml: Nvml
    assumed_context_bytes: Callable[[tuple[int, int]], int]
    """Memory of the CUDA context by compute capability; only for capping."""
    clock: Callable[[], float] = time.monotonic
    own_processes: Callable[[], frozenset[int]] = field(default_factory=RecentProcessTree)
    sample_period_s: float | None = PERIOD_S
    """None takes no samples."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An outcome, and results that are too big for its record."""

    outcome: Outcome
    samples: tuple[Sample, ...] = ()
    snapshot: Mapping[str, Any] | None = None
    """In the memory viewer's format, taken at the out-of-memory error or at the end."""


@dataclass(frozen=True, kw_only=True)
class MeasuringTask:
    """What a measurement has to know about a trial or a script, and its options."""

    gpu: str | None
    """The known card that a larger one is capped to, or that an emulated one is; None for the whole real card."""
    alloc_conf: str = ""
    """Settings of torch's allocator; empty for those of the process."""
    has_paged_states: bool = False
    """Whether optimizer states are paged, and so neither torch's memory nor CUDA's."""
    gpu_uuid: str | None
    """The GPU as the sweep names it; None if the sweep chose none."""
    snapshot: bool
    """Whether a memory snapshot is taken."""
    started_s: float
    """When the worker began, on the instruments' clock."""
    live_name: str = ""
    """Name under which the counters are published for `python -m profiler.monitor`; empty publishes nothing."""
    history_entries: int = SNAPSHOT_ENTRIES
    """Allocations and frees in a snapshot's history."""


def measure(task: MeasuringTask, instruments: Instruments, train: Train) -> Measured:
    """Run the trial on the GPU. Out of memory, a broken GPU and memory taken by others are outcomes.

    Raises:
        CapError: The card cannot be capped as the specification asks.
        Exception: Any other error of training.
    """
    trial = _MeasuredTrial(task, instruments)
    try:
        return trial.run(train)
    except GpuLostError as error:
        verdict = Verdict(status=Status.DEVICE_FAULT, message=str(error))
        return Measured(outcome=Outcome(verdict=verdict, measured=MeasuredDetails(gpu_uuid=trial.uuid)))


class _MeasuredTrial:
    def __init__(self, task: MeasuringTask, instruments: Instruments) -> None:
        self._task = task
        self._tools = instruments
        self._cuda = instruments.cuda
        self._phase_ends: list[PhaseEnd] = []
        self._sizes: tuple[int, int] | None = None
        self._snapshot: Mapping[str, Any] | None = None
        self.uuid = task.gpu_uuid
        self._probe: GpuProbe | None = self._probe_of(self.uuid) if self.uuid else None

    def run(self, train: Train) -> Measured:
        # CUDA is untouched, so all memory in use belongs to other programs.
        before = self._probe.before_the_trial() if self._probe else None
        if self._task.alloc_conf:
            self._cuda.set_allocator_settings(self._task.alloc_conf)
        self._card = prepare_card(self._cuda, self._task.gpu, self._tools.assumed_context_bytes)
        self.uuid = self.uuid or self._cuda.uuid()
        self._probe = self._probe or self._probe_of(self.uuid)
        self._recorder = Recorder(
            SYNCHRONISED, probe=self._probe, before_bytes=before, sample_period_s=self._tools.sample_period_s
        )
        self._counters = self._counters_of(self.uuid)
        if self._task.snapshot:
            self._cuda.record_history(most_entries=self._task.history_entries)
        self._counters.start()
        try:
            outcome = self._trained(train)
        finally:
            self._counters.stop()
        if self._task.snapshot and self._snapshot is None:
            self._snapshot = self._cuda.snapshot()
        outcome = self._judged(self._completed(outcome, self._probe))
        return Measured(outcome=outcome, samples=self._recorder.samples, snapshot=self._snapshot)

    # ---- notifications of training -----------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self._counters.enter(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Keep the size of the model, for an outcome of the status `oom`."""
        self._sizes = (parameters, trainable)

    # ---- during training ---------------------------------------------------------------------------------------------

    def _probe_of(self, uuid: str) -> GpuProbe:
        return GpuProbe(self._tools.nvml, uuid, own_processes=self._tools.own_processes)

    def _counters_of(self, uuid: str) -> CounterRecorder:
        return CounterRecorder(
            Device(
                cuda=self._cuda,
                uuid=uuid,
                clock=self._tools.clock,
                allocator_limit_bytes=self._card.allocator_limit_bytes,
                # Neither torch nor its peak counts paged optimizer states: they cannot be separated from the context.
                separates_context=not self._task.has_paged_states,
            ),
            self._recorder,
            publisher=LivePublisher(self._task.live_name) if self._task.live_name else None,
            at_phase_end=self._at_phase_end,
            at_out_of_memory=self._at_out_of_memory,
        )

    def _at_phase_end(self, reading: PhaseReading) -> None:
        if reading.context_bytes is not None:
            others = self._others_bytes()
            self._phase_ends.append(PhaseEnd(context_bytes=reading.context_bytes, others_bytes=others))

    def _others_bytes(self) -> int | None:
        """Return the memory of other programs by the driver; None if the driver does not list this process."""
        device = self._probe.used_bytes() if self._probe else None
        own = self._probe.process_bytes() if self._probe else None
        return None if device is None or own is None else device - own

    def _at_out_of_memory(self) -> None:
        if self._task.snapshot:
            self._snapshot = self._cuda.snapshot()

    def _trained(self, train: Train) -> Outcome:
        try:
            with self._cuda.counters_shared():
                return train(self)
        except Exception as error:
            if self._cuda.is_out_of_memory(error) or (self._cuda.has_no_handle(error) and self._is_full()):
                return self._ran_out(str(error))
            broken = self._recorder.gpu_lost or next((words for words in _BROKEN if words in str(error)), "")
            if not broken:
                raise
            return Outcome(verdict=Verdict(status=Status.DEVICE_FAULT, message=f"{type(error).__name__}: {error}"))

    def _is_full(self) -> bool:
        """Return whether the card is almost full. The error still references the trial's tensors."""
        free = self._probe.free_bytes() if self._probe else None
        return (self._cuda.free_bytes() if free is None else free) < FULL_BYTES

    def _ran_out(self, message: str) -> Outcome:
        parameters, trainable = self._sizes or (None, None)
        # The error references the frames that ran, so most of the memory is still in use.
        now = self._counters.memory_in_use(None, self._cuda.free_bytes())
        return Outcome(
            verdict=Verdict(status=Status.OOM, oom=self._counters.oom or _by_message(message, now), message=message),
            work=Work(
                parameters=parameters,
                trainable_parameters=trainable,
                steps_run=self._counters.times_finished(Phase.OPTIMIZER),
                micro_batches_run=self._counters.times_finished(Phase.BACKWARD),
            ),
        )

    # ---- after training ----------------------------------------------------------------------------------------------

    def _completed(self, outcome: Outcome, probe: GpuProbe) -> Outcome:
        """Return the outcome with everything that was measured."""
        if outcome.status is not Status.DEVICE_FAULT and not self._recorder.gpu_lost:
            self._counters.read()
        peaks = self._counters.peaks(gpu_works=outcome.status is not Status.DEVICE_FAULT)
        return replace(
            outcome,
            verdict=replace(outcome.verdict, unavailable=self._unavailable(probe)),
            card=CardFacts(
                name=self._card.title,
                memory_bytes=self._card.memory_bytes,
                context_bytes=self._counters.peak_context_bytes,
            ),
            peaks=peaks,
            measured=self._details(peaks),
        )

    def _details(self, peaks: Peaks) -> MeasuredDetails:
        found, device = self._counters.details(), peaks.device_bytes
        return replace(
            found,
            driver_version=self._driver_version(),
            startup_s=self._counters.first_phase_at_s - self._task.started_s,
            load_s=next((peak.time_s for peak in peaks.phases if peak.phase is Phase.LOAD), None),
            rollout_s=_mean_by_step([one.time_s or 0.0 for one in found.step_peaks if one.phase is Phase.ROLLOUT]),
            missed_by_sampling_bytes=missed_by_sampling_bytes(
                peak_device_bytes=None if device is None else device + (self._recorder.before_bytes or 0),
                sampled_max_bytes=found.sampled_max_device_bytes,
            ),
        )

    def _judged(self, outcome: Outcome) -> Outcome:
        """Return the outcome, with the status of a GPU that broke or was shared in place of the trial's own."""
        if self._recorder.gpu_lost:
            return _with_verdict(outcome, Status.DEVICE_FAULT, self._recorder.gpu_lost)
        taken = contention(self._recorder.samples, self._phase_ends, before_bytes=self._recorder.before_bytes)
        if taken and outcome.status in (Status.OK, Status.OOM):
            return _with_verdict(outcome, Status.CONTENDED, taken)
        return outcome

    def _driver_version(self) -> str | None:
        try:
            return self._tools.nvml.driver_version()
        except NvmlError:
            return None

    def _unavailable(self, probe: GpuProbe) -> str:
        missing = dict(probe.missing)
        if self._recorder.before_bytes is None:
            missing["context"] = "memory of other programs before the trial is unknown"
        elif self._task.has_paged_states:
            missing["context"] = "paged optimizer states are counted neither as torch's memory nor as CUDA's"
        return "; ".join(f"{figure}: {reason}" for figure, reason in missing.items())


def _by_message(message: str, now: OutOfMemory) -> OutOfMemory:
    """Return the failed allocation as torch's message has it, with the counters where it does not."""
    said = read_oom_message(message)
    return replace(
        now,
        requested_bytes=said.requested_bytes,
        free_bytes=_first(said.free_bytes, now.free_bytes),
        allocated_bytes=_first(said.allocated_bytes, now.allocated_bytes),
        reserved_bytes=_first(said.reserved_bytes, now.reserved_bytes),
    )


def _with_verdict(outcome: Outcome, status: Status, message: str) -> Outcome:
    return replace(outcome, verdict=replace(outcome.verdict, status=status, message=message))


def _first(said: int | None, otherwise: int | None) -> int | None:
    return otherwise if said is None else said


def _mean_by_step(times_s: list[float]) -> float | None:
    return sum(times_s) / len(times_s) if times_s else None
