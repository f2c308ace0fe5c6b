"""One trial in one fresh process, from a warmed process: time-outs, locks, what is already done."""

from profiler.execution.child import EndOfSweepError
from profiler.execution.gpus import GpuPool, GpuUnusableError
from profiler.execution.heartbeat import beat
from profiler.execution.job import SweepObserver, WorkerJob
from profiler.execution.pruning import Pruning
from profiler.execution.runner import run_trials
from profiler.execution.running import MAX_FAILURES_IN_A_ROW, TooManyFailuresError

__all__ = [
    "MAX_FAILURES_IN_A_ROW",
    "EndOfSweepError",
    "GpuPool",
    "GpuUnusableError",
    "Pruning",
    "SweepObserver",
    "TooManyFailuresError",
    "WorkerJob",
    "beat",
    "run_trials",
]
