"""Run each trial in a fresh process: processes, time limits, locks, and the decision which trials must run.

One warmed process imports torch and trl once, without initialising CUDA, and forks one worker per trial, each with a
time limit, a process group and a lock of its own. If it ends, is stopped or exceeds `warm_up_s`, it is restarted, at
most twice. Workers outlive it: their end is learned from the kernel (pidfd). A worker whose exit code is lost and
that left no record runs again.
"""

from profiler.execution.gpus import GpuPool, GpuUnusableError
from profiler.execution.job import Place, SilentObserver, SweepObserver, WorkerJob, WorkerProgram
from profiler.execution.local_slots import UnfitWorkersError
from profiler.execution.processes.child import EndOfSweepError
from profiler.execution.processes.worker_process import beat
from profiler.execution.pythons import Interpreter, InterpreterOf
from profiler.execution.runner import begin_warming, records_of, run_trials
from profiler.execution.trials import LockedTrial, NotTaken, OpenTrials, Pruning, TooManyFailuresError, stored_answer

__all__ = [
    "EndOfSweepError",
    "GpuPool",
    "GpuUnusableError",
    "Interpreter",
    "InterpreterOf",
    "LockedTrial",
    "NotTaken",
    "OpenTrials",
    "Place",
    "Pruning",
    "SilentObserver",
    "SweepObserver",
    "TooManyFailuresError",
    "UnfitWorkersError",
    "WorkerJob",
    "WorkerProgram",
    "beat",
    "begin_warming",
    "records_of",
    "run_trials",
    "stored_answer",
]
