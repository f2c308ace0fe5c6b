"""Run a plan of trials, each once in a fresh process: the loop of every sweep."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import labels, trial_id
from profiler.domain.errors import ProfilerError
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution.gpus import GpuPool
from profiler.execution.job import TRIAL_WORKER, SilentObserver, SweepObserver, WorkerProgram
from profiler.execution.local_slots import LocalSlots
from profiler.execution.processes.warm import WarmProcess
from profiler.execution.pythons import Interpreter, InterpreterOf
from profiler.execution.slots import Ended, Kind, Slots, Start
from profiler.execution.trials import LockedTrial, NotTaken, OpenTrials, Pending, Pruning
from profiler.measurement.samples.host_usage import usable_cores
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.stores.trial_store import TrialStore


@dataclass(kw_only=True)
class RunningSweep(Generic[Kind]):
    """The trials of a plan on the slots of one engine: which wait, and which run where."""

    slots: Slots[Kind]
    trials: OpenTrials
    _pending: dict[Kind, Pending] = field(default_factory=dict, init=False)
    """By the kind of slot that they need."""
    _running: dict[Hashable, list[LockedTrial]] = field(default_factory=dict, init=False)
    """By slot; a run answers its first trial, and also the others."""

    def run(self, plan: Sequence[PlannedTrial]) -> None:
        """Run until each trial has a record, or can have none. However that ends, no process and no claim is left.

        Raises:
            TooManyFailuresError: Trial after trial had no answer.
            ProfilerError: The engine cannot run any trial any more.
        """
        for trial in plan:
            self._pending_like(trial).append(trial)
        try:
            while any(self._pending.values()) or self._running:
                self._fill_slots()
                if (machines := self.slots.machines()) is not None:
                    self.trials.observer.machines(machines)
                for ended in self.slots.wait():
                    self._conclude(ended)
        finally:
            self.slots.close()
            for claim in (claim for claims in self._running.values() for claim in claims):
                with suppress(ProfilerError):
                    claim.lock.release()

    def _pending_like(self, trial: PlannedTrial) -> Pending:
        return self._pending.setdefault(self.slots.kind_of(trial.spec), Pending(()))

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Start trials on free slots. If other sweeps run all that are left, say so."""
        free = self.slots.free({kind: len(pending) for kind, pending in self._pending.items() if pending})
        starts: set[Start] = set()
        for kind, slots in free.items():
            starts |= self._start_some(self._pending.get(kind), list(slots))
        if self._running or Start.CLAIMED not in starts or Start.WAITS in starts:
            return
        if self.slots.are_fixed:
            self._wait_for_another_sweep(free)
        else:
            self.trials.announce("Waiting for trials that another sweep runs in this folder.")

    def _start_some(self, pending: Pending | None, slots: list[Hashable]) -> set[Start]:
        """Start trials on free slots; one that has to wait goes to the back. Return what became of those tried."""
        starts: set[Start] = set()
        for _ in range(len(pending or ())):
            if not slots or not pending:  # siblings were started along with another trial
                break
            trial = pending.popleft()
            start = self._start(trial, slots[0])
            if start is Start.RUNS:
                slots.pop(0)
            elif start is not Start.NEEDLESS:
                pending.append(trial)
            starts.add(start)
        return starts

    def _wait_for_another_sweep(self, free: Mapping[Kind, Sequence[Hashable]]) -> None:
        """Wait for a while until another sweep has ended the first trial that waits."""
        pending, slot = next((waiting, free[kind][0]) for kind, waiting in self._pending.items() if waiting)
        trial = pending.popleft()
        self.trials.announce(f"Waiting for {trial.label} of {trial.spec.model}: another sweep runs it in this folder.")
        if self._start(trial, slot, wait=True) not in (Start.RUNS, Start.NEEDLESS):
            pending.appendleft(trial)

    def _start(self, trial: PlannedTrial, slot: Hashable, *, wait: bool = False) -> Start:
        """Start a trial, or settle it without a run; `wait` for a while if another sweep has claimed it."""
        if not self.slots.may_start(trial):
            return Start.WAITS
        claim = self.trials.take(trial, wait=wait)
        if not isinstance(claim, LockedTrial):
            return Start.CLAIMED if claim is NotTaken.CLAIMED else Start.NEEDLESS
        # From here on the end of the loop releases the claims, whatever happens.
        claims = self._running[slot] = [claim]
        claims += self.trials.take_siblings(trial, self._pending_like(trial))
        start = self.slots.start(slot, claims)
        if start is Start.RUNS:
            self.trials.observer.started(trial)
        else:
            self._release(slot)
        return start

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, ended: Ended) -> None:
        """Report the records of a run, and put trials without one back."""
        first, *siblings = [claim.trial for claim in self._release(ended.slot)]
        if ended.is_lost:
            self.trials.observer.lost(first)
        for trial in (*reversed(siblings), first):
            if trial.trial_id not in ended.records:
                self._put_back(trial, is_suspect=ended.is_suspect)
        found = [trial for trial in (first, *reversed(siblings)) if trial.trial_id in ended.records]
        for trial in found:
            self.trials.report(trial, ended.records[trial.trial_id])
        left = sum(map(len, self._pending.values())) + sum(map(len, self._running.values()))
        for trial in found:
            self.trials.count_failures(ended.records[trial.trial_id], left=left)
        if ended.error is not None:
            raise ended.error

    def _put_back(self, trial: PlannedTrial, *, is_suspect: bool) -> None:
        pending = self._pending_like(trial)
        if is_suspect:
            pending.append(trial)
        else:
            pending.appendleft(trial)

    def _release(self, slot: Hashable) -> list[LockedTrial]:
        """Release the claims of a run, and return them."""
        claims = self._running.pop(slot)
        for claim in claims:
            claim.lock.release()
        return claims


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
    for number, (interpreter, trials) in enumerate(_by_interpreter(plan, program.interpreter_of)):
        jobs = min(jobs_for(trials, options.jobs, gpus=len(gpus) if gpus is not None else 0), len(trials))
        warm = WarmProcess(program, jobs=jobs, warm_up_s=options.warm_up_s, interpreter=interpreter)
        open_trials = OpenTrials(options=options, store=store, versions=versions, observer=observer, pruning=pruning)
        slots = LocalSlots(trials=open_trials, gpus=gpus, warm=warm)
        warm.start()
        if number == 0:
            program.meanwhile()
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
    return usable_cores()


def begin_warming(spec: TrialSpec) -> None:
    """Start the process that trials like `spec` are forked from, which imports while the caller continues.

    The next `run_trials` of this process finds it, where its trials need the same Python.
    """
    warm_up_s, interpreter = RunOptions().warm_up_s, TRIAL_WORKER.interpreter_of(spec)
    WarmProcess(TRIAL_WORKER, jobs=usable_cores(), warm_up_s=warm_up_s, interpreter=interpreter).start()


def records_of(specs: Sequence[TrialSpec]) -> Sequence[TrialRecord | None]:
    """Run trials without a folder of results, and return the record of each; None where it has none.

    Raises:
        ProfilerError: As `run_trials`.
    """
    versions = installed_versions()
    named = zip(specs, labels(list(specs)), strict=True)
    plan = [
        PlannedTrial(trial_id=trial_id(spec, versions), grid="one answer", label=label, spec=spec)
        for spec, label in named
    ]
    with TemporaryDirectory(prefix="grpo-vram-trials-") as folder:
        store = RecordStore(Path(folder))
        run_trials(plan, options=RunOptions(), store=store, versions=versions, observer=SilentObserver())
        return [store.find(trial.trial_id) for trial in plan]
