"""The nouns of `python -m profiler.monitor COMMAND` and `VramCallback`: a run that others start, and what was read."""

from dataclasses import dataclass
from enum import StrEnum

from profiler.domain.outcome import Outcome, Versions

RANK = "-rank"
"""In the name of a run, before the rank."""


class Watcher(StrEnum):
    """Who watched a run."""

    COMMAND = "command"
    """`python -m profiler.monitor`, from outside: the driver, the processes and the host."""
    CALLBACK = "callback"
    """`VramCallback`, in the process that trains: torch's counters and the driver."""


@dataclass(frozen=True, kw_only=True)
class MonitoredGpu:
    """One GPU during a run. None means that the driver does not report it."""

    index: int
    """In the order of CUDA_VISIBLE_DEVICES, from 0."""
    uuid: str
    name: str
    memory_bytes: int
    before_bytes: int | None
    """In use before the run began, by other programs."""
    peak_used_bytes: int | None
    """Highest sample of all programs: a lower bound of the peak."""
    peak_process_bytes: int | None
    """Highest sample of the run's own processes."""
    mean_utilisation_percent: float | None
    mean_power_watts: float | None
    problem: str = ""
    """Why sampling ended early, such as a lost GPU; empty if it did not."""


@dataclass(frozen=True, kw_only=True)
class HostPeaks:
    """Memory of the host during a run."""

    tree_bytes: int | None
    """Most memory of the run's processes together, pages that they share counted once for each process."""
    processes: int | None
    """Most processes at once."""
    used_bytes: int | None
    """Most memory in use on the whole host."""
    total_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One reading of the host."""

    time_s: float
    """Since sampling began, on the monotonic clock."""
    processes: int
    tree_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class EstimateBeside:
    """The estimate of the job that was run."""

    peak_bytes: int
    """Allocated in tensors; of a job of verl, everything that is counted on one GPU."""
    device_bytes: int | None
    """Reserved by torch, with the assumed CUDA context; None if there is no such estimate."""
    phase: str
    text: str
    """As `python -m profiler.estimate` shows it."""


@dataclass(frozen=True, kw_only=True)
class MonitoredRun:
    """One run; stored as one file."""

    run_id: str
    """Start in UTC, to the millisecond, and the number of the process: ``"20260131T090000123-4711"``.

    Of a rank of several processes it ends with ``"-rank1"``.
    """
    watcher: Watcher
    command: tuple[str, ...]
    """The words of the command; of a callback those of the process."""
    started_at: str
    """In UTC: ``"2026-01-31T09:00:00+00:00"``."""
    exit_code: int | None
    """As a shell would report it; None if the process itself kept the record."""
    gpus: tuple[MonitoredGpu, ...]
    host: HostPeaks
    estimate: EstimateBeside | None
    versions: Versions
    outcome: Outcome

    @property
    def rank(self) -> int | None:
        """The rank in a job of several processes; None in any other."""
        _, _, rank = self.run_id.partition(RANK)
        return int(rank) if rank.isdecimal() else None
