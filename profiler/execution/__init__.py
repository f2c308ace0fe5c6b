"""One trial in one fresh process, from a warmed process: time-outs, locks, what is already done."""

from profiler.execution.job import SweepObserver, WorkerJob
from profiler.execution.runner import MAX_FAILURES_IN_A_ROW, TooManyFailuresError, run_trials

__all__ = ["MAX_FAILURES_IN_A_ROW", "SweepObserver", "TooManyFailuresError", "WorkerJob", "run_trials"]
