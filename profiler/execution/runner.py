"""A plan of trials, each run once in a fresh process, whatever happens to it."""

import math
from collections import deque
from collections.abc import Sequence

from profiler.domain.outcome import Versions
from profiler.domain.trial import PlannedTrial
from profiler.execution.conditions import Conditions
from profiler.execution.gpus import GpuPool
from profiler.execution.job import SweepObserver
from profiler.execution.pruning import Pruning
from profiler.execution.running import RunningSweep
from profiler.execution.warm import PRELOAD, WARM_UP_S, WarmProcess
from profiler.execution.worker_process import Timeouts
from profiler.storage.records import RecordStore

WORKER_TARGET = "profiler.worker:run_job"
"""The worker's entry point, by dotted name: it stands above this package and imports torch."""


def run_trials(
    plan: Sequence[PlannedTrial],
    *,
    store: RecordStore,
    versions: Versions,
    jobs: int,
    timeout_s: float,
    observer: SweepObserver,
    stall_s: float = math.inf,
    warm_up_s: float = WARM_UP_S,
    gpus: GpuPool | None = None,
    pruning: Pruning | None = None,
    target: str = WORKER_TARGET,
    preload: Sequence[str] = PRELOAD,
    resume: bool = True,
    snapshot: bool = False,
    breakdown: bool = False,
    sample_period_s: float | None = None,
) -> tuple[str, ...]:
    """Run every trial of `plan` in a process of its own, and see that each has a record in `store` afterwards.

    Args:
        plan: The trials, in the order to run them.
        store: Where workers write their records; those that leave none get one from here.
        versions: Versions that go into the records.
        jobs: How many trials at once.
        timeout_s: Wall-clock limit of one trial.
        observer: Told of each start and each record.
        stall_s: How long a trial may give no sign of life, once it gave one.
        warm_up_s: Limit of the imports in the process that workers are forked from.
        gpus: The GPUs that trials on CUDA are handed, one each; without any they get none.
        pruning: Says which trials on CUDA need not run; without it all run.
        target: Dotted name of what a worker runs on its `WorkerJob`, ``"package.module:function"``.
        preload: Modules imported once, in the process that workers are forked from.
        resume: Leave alone what has an answered record by its turn; two sweeps in one folder share the work so.
        snapshot: Have trials write memory snapshots beside their records.
        breakdown: Have measured trials run once more with books on their tensors.
        sample_period_s: How often measured trials look at the GPU's driver; None for never.

    Returns:
        One sentence per GPU that was given up on the way, and per restart of the process that workers are forked from.

    Raises:
        TooManyFailuresError: `MAX_FAILURES_IN_A_ROW` trials one after another had no answer.
        UnfitWorkersError: A worker found out that none of them can run a trial.
        GpuUnusableError: Trials are left, and no GPU to run them on.
        WarmProcessError: The process that workers are forked from ended or hung too often.
        KeyboardInterrupt: Ctrl-C. As with any exception, workers are ended and finished records stay.
    """
    if not plan:
        return ()
    warm = WarmProcess(preload, jobs=jobs, warm_up_s=warm_up_s)
    sweep = RunningSweep(
        pending=deque(plan),
        given=Conditions(
            store=store,
            versions=versions,
            warm=warm,
            jobs=jobs,
            timeouts=Timeouts(timeout_s=timeout_s, stall_s=stall_s),
            observer=observer,
            gpus=gpus,
            pruning=pruning,
            target=target,
            resume=resume,
            snapshot=snapshot,
            breakdown=breakdown,
            sample_period_s=sample_period_s,
        ),
    )
    warm.start()
    with sweep:
        sweep.run()
    return (*(gpus.retired if gpus is not None else ()), *warm.problems)
