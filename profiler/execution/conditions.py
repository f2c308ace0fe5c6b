"""What every trial of a sweep is run with."""

from dataclasses import dataclass

from profiler.domain.outcome import Versions
from profiler.execution.gpus import GpuPool
from profiler.execution.job import SweepObserver
from profiler.execution.pruning import Pruning
from profiler.execution.warm import WarmProcess
from profiler.execution.worker_process import Timeouts
from profiler.storage.records import RecordStore


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How trials are run; `run_trials` explains each."""

    store: RecordStore
    versions: Versions
    warm: WarmProcess
    jobs: int
    timeouts: Timeouts
    observer: SweepObserver
    gpus: GpuPool | None
    pruning: Pruning | None
    target: str
    resume: bool
    snapshot: bool
    breakdown: bool
    sample_period_s: float | None
