"""Run a plan of trials, each once in a fresh process, however that process ends."""

import os
from collections.abc import Sequence

from profiler.config.options.run_options import RunOptions
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.execution.gpus import GpuPool
from profiler.execution.job import TRIAL_WORKER, SweepObserver, WorkerProgram
from profiler.execution.local_slots import LocalSlots
from profiler.execution.processes.warm import WarmProcess
from profiler.execution.pythons.interpreter import Interpreter, InterpreterOf
from profiler.execution.running import RunningSweep
from profiler.execution.trials.open_trials import OpenTrials
from profiler.execution.trials.pruning import Pruning
from profiler.storage.stores.trial_store import TrialStore


def run_trials(
    plan: Sequence[PlannedTrial],
    *,
    options: RunOptions,
    store: TrialStore,
    versions: Versions,
    observer: SweepObserver,
    gpus: GpuPool | None = None,
    pruning: Pruning | None = None,
    program: WorkerProgram = TRIAL_WORKER,
) -> tuple[str, ...]:
    """Run every trial of `plan` in its own process. Afterwards each has a record in `store`.

    A trial that is answered by its turn does not run; so two sweeps in one folder share the work. Trials that need
    different interpreters run one interpreter after the other.

    Args:
        plan: The trials, in the order to run them.
        options: How to run them.
        store: Where workers write their records, and this function those of workers that leave none.
        versions: Versions that go into the records.
        observer: Called at each start and at each record.
        gpus: GPUs for the trials on CUDA, one GPU per trial; None to assign no GPU.
        pruning: Finds trials on CUDA that need not run; None to run all.
        program: The code of the workers, and the Python that runs it.

    Returns:
        One sentence per GPU that was retired, and per restart of the process that workers are forked from.

    Raises:
        TooManyFailuresError: `MAX_FAILURES_IN_A_ROW` trials in a row had no answer.
        UnfitWorkersError: A worker reported a cause that every worker would meet.
        GpuUnusableError: Trials are left, and no GPU to run them on.
        WarmProcessError: The process that workers are forked from ended or hung too often.
        KeyboardInterrupt: Ctrl-C. As with any exception, workers are ended and finished records stay.
    """
    notes: list[str] = []
    for interpreter, trials in _by_interpreter(plan, program.interpreter_of):
        jobs = min(jobs_for(trials, options.jobs, gpus=len(gpus) if gpus is not None else 0), len(trials))
        warm = WarmProcess(program, jobs=jobs, warm_up_s=options.warm_up_s, interpreter=interpreter)
        open_trials = OpenTrials(options=options, store=store, versions=versions, observer=observer, pruning=pruning)
        slots = LocalSlots(trials=open_trials, gpus=gpus, warm=warm)
        warm.start()
        RunningSweep(slots=slots, trials=open_trials).run(trials)
        slots.check_placed()
        notes.extend(warm.problems)
    return (*(gpus.retired if gpus is not None else ()), *notes)


def _by_interpreter(
    plan: Sequence[PlannedTrial], interpreter_of: InterpreterOf
) -> list[tuple[Interpreter | None, list[PlannedTrial]]]:
    """Return the interpreters that `plan` needs, in order, each with its trials."""
    found: list[tuple[Interpreter | None, list[PlannedTrial]]] = []
    for trial in plan:
        interpreter = interpreter_of(trial.spec)
        group = next((trials for other, trials in found if other == interpreter), None)
        if group is None:
            found.append((interpreter, [trial]))
        else:
            group.append(trial)
    return found


def jobs_for(plan: Sequence[PlannedTrial], jobs: int | None, *, gpus: int = 0) -> int:
    """Return how many trials run at the same time: `jobs` if it is given, otherwise by the backends of `plan`.

    One per CPU core if no trial needs a GPU or really computes, as many as the GPUs serve if all are measured, and one
    in any other case.
    """
    if jobs is not None:
        return jobs
    backends = {trial.spec.backend for trial in plan}
    if backends == {Backend.CUDA}:
        return max(1, gpus // min(trial.spec.num_processes for trial in plan))
    if not all(backend.names_its_card for backend in backends):
        return 1
    # The cores that this process may use: a container may have fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
