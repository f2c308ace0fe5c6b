"""What the report of monitored runs shows: their peaks, their phases, and memory over time."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analysis.scripts import ShownRun, phase_lines
from profiler.domain.memory import Origin
from profiler.domain.runs.monitored import MonitoredGpu, MonitoredRun

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
