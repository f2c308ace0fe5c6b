"""The nouns of `python -m profiler.monitor COMMAND` and `VramCallback`: a run that others start, and what was read."""

import shlex
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.domain.runs.columns import column, spread
from profiler.domain.runs.outcome import Run

RANK = "-rank"
"""In the name of a run, before the rank."""

_NOT_REPORTED = "the driver does not report it"
_NO_HOST_MEMORY = "the kernel does not report it"
_NO_ESTIMATE = "no config= was given, or a callback kept the record"


class Watcher(StrEnum):
    """Who watched a run."""

    COMMAND = "command"
    """`python -m profiler.monitor`, from outside: the driver, the processes and the host."""
    CALLBACK = "callback"
    """`VramCallback`, in the process that trains: torch's counters and the driver."""


@dataclass(frozen=True, kw_only=True)
class MonitoredGpu:
    """One GPU during a run. None means that the driver does not report it."""

    index: int = field(
        metadata=column(
            "the GPU, in the order of CUDA_VISIBLE_DEVICES, from 0", name="gpu", unit="index", identifies=True
        )
    )
    uuid: str = field(metadata=column("the GPU as the driver names it"))
    name: str = field(metadata=column("name of the card"))
    memory_bytes: int = field(metadata=column("its memory as the driver reports it"))
    before_bytes: int | None = field(metadata=column("in use before the run, by other programs", _NOT_REPORTED))
    peak_used_bytes: int | None = field(
        metadata=column("most bytes in use by all programs, by samples: a lower bound", _NOT_REPORTED)
    )
    peak_process_bytes: int | None = field(
        metadata=column("most bytes in use by the run's own processes, by samples", _NOT_REPORTED)
    )
    mean_utilisation_percent: float | None = field(
        metadata=column("mean share of time in which a kernel ran", _NOT_REPORTED)
    )
    mean_power_watts: float | None = field(metadata=column("mean power of the card", _NOT_REPORTED))
    problem: str = field(default="", metadata=column("why sampling ended early", "it did not"))
    """Such as a lost GPU."""


@dataclass(frozen=True, kw_only=True)
class HostPeaks:
    """Memory of the host during a run."""

    tree_bytes: int | None = field(
        metadata=column(
            "most memory of its processes together, by samples", _NO_HOST_MEMORY, name="host_tree_peak_bytes"
        )
    )
    """Pages that they share are counted once for each process."""
    processes: int | None = field(
        metadata=column("most processes at once, by samples", "not sampled", name="host_processes", unit="processes")
    )
    used_bytes: int | None = field(
        metadata=column(
            "most memory in use on the whole host, by samples", _NO_HOST_MEMORY, name="host_used_peak_bytes"
        )
    )
    total_bytes: int | None = field(metadata=column("memory of the host", _NO_HOST_MEMORY, name="host_total_bytes"))


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One reading of the host."""

    time_s: float = field(metadata=column("since the start of sampling, on a monotonic clock"))
    processes: int = field(metadata=column("processes of the run", unit="processes"))
    tree_bytes: int = field(metadata=column("their resident memory; pages that they share count once for each"))
    used_bytes: int | None = field(metadata=column("memory in use on the whole host", _NO_HOST_MEMORY))


@dataclass(frozen=True, kw_only=True)
class EstimateBeside:
    """The estimate of the job that was run."""

    peak_bytes: int = field(
        metadata=column("the peak by the closed form, in tensors", _NO_ESTIMATE, name="estimated_peak_bytes")
    )
    """Of a job of verl, everything that is counted on one GPU."""
    device_bytes: int | None = field(
        metadata=column(
            "the same as torch reserves it, with the assumed CUDA context",
            _NO_ESTIMATE,
            name="estimated_device_bytes",
        )
    )
    phase: str = field(metadata=column("the phase of the estimated peak", _NO_ESTIMATE, name="estimated_phase"))
    text: str
    """As `python -m profiler.estimate` shows it."""


@dataclass(frozen=True, kw_only=True)
class MonitoredRun(Run):
    """One monitored run with its outcome."""

    run_id: str = field(metadata=column("start of the run in UTC, and the number of its process", identifies=True))
    """To the millisecond: ``"20260131T090000123-4711"``. Of a rank of several processes it ends with ``"-rank1"``."""
    watcher: Watcher = field(
        metadata=column("command: from outside; callback: VramCallback, in the process that trains")
    )
    command: tuple[str, ...] = field(
        metadata=column("the words of the command or of the process, as a shell would take them", as_text=shlex.join)
    )
    started_at: str = field(metadata=column("when it began, in UTC"))
    """``"2026-01-31T09:00:00+00:00"``."""
    exit_code: int | None = field(
        metadata=column("as a shell would report it", "a callback kept the record", unit="exit code", is_signed=True)
    )
    gpus: tuple[MonitoredGpu, ...]
    host: HostPeaks = field(metadata=spread())
    estimate: EstimateBeside | None = field(metadata=spread())

    @property
    def rank(self) -> int | None:
        """The rank in a job of several processes; None in any other."""
        _, _, rank = self.run_id.partition(RANK)
        return int(rank) if rank.isdecimal() else None
