"""What is recorded of a training in its own process, and its peaks as metrics of the trainer."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from transformers import Trainer

from profiler.domain.memory import Phase, as_gib
from profiler.domain.runs.other_runs import HostPeaks, MonitoredRun, NamedCard, Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, Verdict, Work
from profiler.domain.runs.readings import Sample
from profiler.measurement.counters.phase_counters import CudaDevice, peak_of_steps
from profiler.measurement.counters.torch_cuda import CheapCuda
from profiler.measurement.driver.nvml import GpuProbe, NoDriver, Nvml
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import visible_gpus
from profiler.measurement.recorder import CHEAP, CounterRecorder, Device, PhaseReading, Recorder, Start, start_now
from profiler.measurement.samples.host_usage import RecentProcessTree, peak_pinned_bytes, peak_resident_bytes
from profiler.scripts.session import CountedSession, ParameterTotals
from profiler.seams.checked import problem_of
from profiler.seams.libraries import SEAM_OF
from profiler.seams.patching import patched
from profiler.storage.files.live_counters import LivePublisher
from profiler.storage.records.versioned import installed_versions
from profiler.training.models.parameter_count import parameter_counts

_LOCAL_RANK = "LOCAL_RANK"

_EVALUATION = "eval_"
"""Beginning of the keys of an evaluation, which is logged apart from training."""


def metrics_of(
    phases: Mapping[Phase, int], *, reserved_bytes: int, device_bytes: int | None, retries: int, failed: int
) -> dict[str, float]:
    """Return what is logged: GiB by phase, and the counts of the allocator.

    Args:
        phases: Peak of allocated memory by phase.
        reserved_bytes: Peak of reserved memory.
        device_bytes: Peak on the card; None if it is unknown.
        retries: How often the allocator released its cache.
        failed: How many allocations failed.
    """
    found = {f"vram/allocated_gib/{phase}": _rounded(size) for phase, size in phases.items()}
    found["vram/reserved_gib"] = _rounded(reserved_bytes)
    if device_bytes is not None:
        found["vram/device_gib"] = _rounded(device_bytes)
    return found | {"vram/alloc_retries": float(retries), "vram/out_of_memory": float(failed)}


@contextmanager
def added_to_logs(metrics: Callable[[], Mapping[str, float]]) -> Iterator[str]:
    """While active, add `metrics()` to what trainers log; yields why that is not possible, or an empty text.

    A callback cannot do that: those of `report_to` run before it.
    """
    seam = SEAM_OF["transformers.trainer:Trainer.log"]
    if problem := problem_of(seam):
        yield f"metrics in the logs: {seam.key} {problem}"
        return
    log = Trainer.log

    @wraps(log)
    def with_peaks(self: Any, logs: dict[str, float], *arguments: Any, **named: Any) -> Any:
        if not any(key.startswith(_EVALUATION) for key in logs):
            logs.update(metrics())
        return log(self, logs, *arguments, **named)

    with patched([(Trainer, "log", with_peaks)]):
        yield ""


def _rounded(size_bytes: int) -> float:
    return round(as_gib(size_bytes), 4)


_LOOKS_APART = 10
"""How many times as many steps precede the next look at how memory grows (our choice)."""

_NO_TIMES = "times of phases: a callback does not wait for the GPU"


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
        self._cuda.synchronize()  # reads the counters
        self._failed_before = self._cuda.failed_allocations()
        self._steps_run = 0
        self._since_log = _SinceLog()
        self._recorder = self._recorder_of(instruments)
        self._counters = CounterRecorder(
            Device(cuda=self._cuda, uuid=instruments.card.uuid if instruments.card else "", clock=instruments.clock),
            self._recorder,
            publisher=LivePublisher(_what_runs()),
            at_phase_end=self._at_phase_end,
        )
        self._counters.enter(Phase.LOAD)
        self._counters.start()
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
        return self._recorder.samples

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
            retries=self._counters.retries(),
            failed=self._cuda.failed_allocations() - self._failed_before,
        )

    def growth(self) -> str | None:
        """Return how memory grows, after 20, 200, 2,000 ... steps; None after others, and without a GPU."""
        # Imported here: a page of a report needs it, and training does not.
        from profiler.rendering.runs.monitored import LEAST_STEPS, growth_of_steps

        looks = LEAST_STEPS
        while looks < self._steps_run:
            looks *= _LOOKS_APART
        if looks != self._steps_run or self._tools.card is None:
            return None
        peaks = enumerate(peak_of_steps(self._counters.details().step_peaks), start=1)
        return growth_of_steps(tuple(peaks), self._card_facts(), others_bytes=self._recorder.before_bytes)

    # ---- during training ---------------------------------------------------------------------------------------------

    def _recorder_of(self, instruments: Instruments) -> Recorder:
        probe = None
        if instruments.card is not None:
            probe = GpuProbe(instruments.nvml, instruments.card.uuid, own_processes=RecentProcessTree())
        before = self._before(probe) if probe is not None else None
        return Recorder(CHEAP, probe=probe, before_bytes=before, sample_period_s=instruments.sample_period_s)

    def _before(self, probe: GpuProbe) -> int | None:
        """Return the memory of other programs; None if it is unknown, as when the model is already on the card."""
        used = probe.before_the_trial()
        if not self._cuda.reserved_bytes():
            return used
        own = probe.process_bytes()
        return None if used is None or own is None else used - own

    def _at_phase_end(self, reading: PhaseReading) -> None:
        log, phase = self._since_log, reading.phase
        log.allocated_bytes[phase] = max(log.allocated_bytes.get(phase, 0), self._cuda.peak_allocated_bytes())
        log.reserved_bytes = max(log.reserved_bytes, reading.peak_reserved_bytes)
        if reading.context_bytes is not None:
            log.device_bytes = max(log.device_bytes or 0, reading.peak_reserved_bytes + reading.context_bytes)

    # ---- after training ----------------------------------------------------------------------------------------------

    def finished(self, *, completed: bool, problem: str = "") -> MonitoredRun:
        """End the recording and return its record.

        Args:
            completed: Whether training reached its end.
            problem: What ended it otherwise; empty if that is unknown.
        """
        self._counters.stop()
        self._counters.read()
        card = self._tools.card
        return MonitoredRun(
            run_id=self._start.run_id,
            watcher=Watcher.CALLBACK,
            command=tuple(sys.argv),
            started_at=self._start.started_at,
            exit_code=None,
            gpus=(self._recorder.monitored(card, index=0),) if card is not None else (),
            host=HostPeaks(tree_bytes=None, processes=None, used_bytes=None, total_bytes=None),
            estimate=None,
            versions=installed_versions(),
            outcome=self._outcome(completed, problem),
        )

    def _outcome(self, completed: bool, problem: str) -> Outcome:
        card, totals = self._tools.card, self.session.totals
        return Outcome(
            verdict=self._verdict(completed, problem),
            work=Work(
                parameters=totals.parameters or None,
                trainable_parameters=totals.trainable or None,
                steps_run=self._steps_run,
                micro_batches_run=self._counters.times_finished(Phase.BACKWARD),
                wall_s=self._tools.clock() - self._started_s,
                host_peak_rss_bytes=peak_resident_bytes(),
                host_peak_pinned_bytes=peak_pinned_bytes(),
            ),
            card=self._card_facts(),
            peaks=self._counters.peaks() if card else Peaks(),
            measured=self._counters.details() if card else MeasuredDetails(),
        )

    def _card_facts(self) -> CardFacts:
        card = self._tools.card
        return CardFacts(
            name=card.name if card else None,
            memory_bytes=card.memory_bytes if card else None,
            context_bytes=self._counters.peak_context_bytes,
        )

    def _verdict(self, completed: bool, problem: str) -> Verdict:
        missing = dict(self._recorder.missing if self._tools.card is not None else {"GPU": "none is visible"})
        if peak_resident_bytes() is None:
            missing["host_peak_rss_bytes"] = f"{sys.platform} has no counter of it"
        unavailable = "; ".join([_NO_TIMES, *(f"{name}: {why}" for name, why in missing.items()), *self.notes])
        if completed:
            return Verdict(status=Status.OK, unavailable=unavailable)
        oom = self._counters.oom
        status = Status.OOM if oom is not None else Status.FAILED
        message = problem or "the training did not reach its end"
        return Verdict(status=status, message=message, oom=oom, unavailable=unavailable)


def _what_runs() -> str:
    """Return the name of the program in this process."""
    return os.path.basename(sys.argv[0]) or "python"  # noqa: PTH119  as typed


def instruments_of_this_machine(sample_period_s: float) -> Instruments:
    """Return the visible GPU of this rank and the driver, or what takes their place without a GPU."""
    gpus = visible_gpus()
    card, device = None, _device_of_this_rank(len(gpus.gpus))
    if gpus.gpus:
        own = gpus.gpus[device]
        card = NamedCard(
            uuid=own.uuid,
            name=own.name,
            memory_bytes=own.memory_bytes,
            compute_capability=own.compute_capability or (0, 0),
        )
    unused = NamedCard(uuid="", name="", memory_bytes=0, compute_capability=(0, 0))
    return Instruments(
        cuda=CheapCuda(card or unused, device=device),
        nvml=PynvmlDriver() if card else NoDriver(gpus.note),
        card=card,
        sample_period_s=sample_period_s,
    )


def _device_of_this_rank(visible: int) -> int:
    """Return CUDA's index of the GPU that the launcher gives to this rank; 0 if it sees one only."""
    text = os.environ.get(_LOCAL_RANK, "0")
    rank = int(text) if text.isdecimal() else 0
    return rank if rank < visible else 0
