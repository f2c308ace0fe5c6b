"""What the reports of scripts and of monitored runs show: the runs of a folder, with their peaks."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from profiler.domain.memory import Origin, Phase
from profiler.domain.runs.other_runs import HeldTensors, MonitoredGpu, MonitoredRun, ScriptRecord
from profiler.domain.runs.outcome import Outcome, Run, Status
from profiler.domain.runs.readings import OutOfMemory


@dataclass(frozen=True, kw_only=True)
class PhaseLine:
    """One phase of a run."""

    phase: Phase
    allocated_bytes: int | None
    reserved_bytes: int | None
    steps_bytes: tuple[int | None, ...]
    """Allocated memory in each optimizer step, from 1; None in a step without the phase."""


@dataclass(frozen=True, kw_only=True)
class ShownRun(ABC):
    """A run whose phases are shown, of a script or of a monitored program."""

    record: Run
    phases: tuple[PhaseLine, ...]
    steps: int
    """Optimizer steps that have figures."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where its figures come from."""

    @property
    def outcome(self) -> Outcome:
        """The result of the run."""
        return self.record.outcome

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The allocation that failed; None if none ended the run."""
        return self.outcome.verdict.oom if self.outcome.status is Status.OOM else None


@dataclass(frozen=True, kw_only=True)
class RunLines(ShownRun):
    """One run of a script."""

    record: ScriptRecord

    @property
    def origin(self) -> Origin:
        """Where its figures come from."""
        origin = self.record.spec.backend.origin
        if origin is None:
            raise ValueError(f"backend={self.record.spec.backend} has no figures")
        return origin

    @property
    def script(self) -> str:
        """Name of the script."""
        return PurePath(self.record.spec.script).name

    @property
    def largest(self) -> tuple[HeldTensors, ...]:
        """The largest tensors at the peak or at the failure; empty where unknown."""
        return self.record.largest


def run_lines(record: ScriptRecord) -> RunLines:
    """Return what is shown of one run."""
    phases, steps = phase_lines(record.outcome)
    return RunLines(record=record, steps=steps, phases=phases)


def phase_lines(outcome: Outcome) -> tuple[tuple[PhaseLine, ...], int]:
    """Return the phases of a run and the number of its optimizer steps that have figures."""
    by_step = outcome.measured.step_peaks if outcome.measured else ()
    steps = max((peak.step for peak in by_step), default=0)
    found = {(peak.step, peak.phase): peak.peak_allocated_bytes for peak in by_step}
    lines = tuple(
        PhaseLine(
            phase=peak.phase,
            allocated_bytes=peak.peak_allocated_bytes,
            reserved_bytes=peak.peak_reserved_bytes,
            steps_bytes=tuple(found.get((step, peak.phase)) for step in range(1, steps + 1)),
        )
        for peak in outcome.peaks.phases
    )
    return lines, steps


def ordered_runs(records: Sequence[ScriptRecord]) -> tuple[RunLines, ...]:
    """Return all runs: by arguments, then by card, then the strongest origin first."""
    origins = list(Origin)
    lines = [run_lines(record) for record in records]
    return tuple(
        sorted(
            lines,
            key=lambda run: (
                run.script,
                run.record.spec.arguments,
                run.record.spec.num_processes,
                run.outcome.card.name or "",
                origins.index(run.origin),
                run.record.run_id,
            ),
        )
    )


MOST_POINTS = 2_000
"""Points of a curve in a figure."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One value over time."""

    label: str
    times_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MonitoredLines(ShownRun):
    """One monitored run; without phases unless a callback kept the record."""

    record: MonitoredRun
    gpus: tuple[Course, ...]
    """Memory of the GPUs: by all programs, and of a single GPU by the run itself."""
    host: tuple[Course, ...]

    @property
    def origin(self) -> Origin:
        """Where its figures come from: torch's counters and the driver."""
        return Origin.MEASURED

    @property
    def command(self) -> str:
        """The words of the command, as a shell would take them."""
        return shlex.join(self.record.command)

    @property
    def step_peaks(self) -> tuple[tuple[int, int], ...]:
        """Each optimizer step with its highest allocated memory, where a callback kept the record."""
        steps = zip(*(line.steps_bytes for line in self.phases), strict=True)
        peaks = (max((size for size in step if size is not None), default=None) for step in steps)
        return tuple((step, peak) for step, peak in enumerate(peaks, start=1) if peak is not None)

    @property
    def fullest(self) -> MonitoredGpu | None:
        """The GPU with the highest sample; None if none was sampled."""
        return fullest_gpu(self.record.gpus)


def fullest_gpu(gpus: Sequence[MonitoredGpu]) -> MonitoredGpu | None:
    """Return the GPU on which a run's own processes had the most memory, or all programs where that is unknown."""
    known = [gpu for gpu in gpus if gpu.peak_used_bytes is not None]
    return max(known, key=lambda gpu: (gpu.peak_process_bytes or 0, gpu.peak_used_bytes or 0), default=None)


def own_peak_bytes(gpu: MonitoredGpu) -> int | None:
    """Return the peak of a run's own memory on a GPU: by process, or what came on top of the memory before it."""
    if gpu.peak_process_bytes is not None:
        return gpu.peak_process_bytes
    if gpu.peak_used_bytes is None or gpu.before_bytes is None:
        return None
    return max(0, gpu.peak_used_bytes - gpu.before_bytes)


def monitored_lines(
    record: MonitoredRun, *, gpus: Sequence[Course] = (), host: Sequence[Course] = ()
) -> MonitoredLines:
    """Return what is shown of one run; curves have at most `MOST_POINTS` points."""
    phases, steps = phase_lines(record.outcome)
    return MonitoredLines(
        record=record,
        phases=phases,
        steps=steps,
        gpus=tuple(_reduced(course) for course in gpus if course.times_s),
        host=tuple(_reduced(course) for course in host if course.times_s),
    )


def _reduced(course: Course) -> Course:
    """Return `course` with the highest of each group of neighbours, so that no sampled peak is lost."""
    size = -(-len(course.times_s) // MOST_POINTS)
    starts = range(0, len(course.times_s), size)
    return Course(
        label=course.label,
        times_s=tuple(course.times_s[start] for start in starts),
        sizes_bytes=tuple(max(course.sizes_bytes[start : start + size]) for start in starts),
    )
