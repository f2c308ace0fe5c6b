"""A plan of trials, each run once in a fresh process, whatever happens to it."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Self

from profiler.domain.errors import EXIT_TOO_MANY_FAILURES, ProfilerError
from profiler.domain.outcome import TrialRecord, Versions
from profiler.domain.trial import PlannedTrial, run_key
from profiler.execution.job import SweepObserver, WorkerJob
from profiler.execution.lock import TrialLock, take_lock
from profiler.execution.verdict import judge
from profiler.execution.warm import PRELOAD, start_process, warm_up
from profiler.execution.worker_process import Sibling, WorkerProcess, record_stamp
from profiler.storage.records import RecordStore

WORKER_TARGET = "profiler.worker:run_job"
"""The worker's entry point, by dotted name: it stands above this package and imports torch."""

MAX_FAILURES_IN_A_ROW = 5


class TooManyFailuresError(ProfilerError):
    """Trial after trial fails: the cause is not in the trials."""

    exit_code = EXIT_TOO_MANY_FAILURES


def run_trials(
    plan: Sequence[PlannedTrial],
    *,
    store: RecordStore,
    versions: Versions,
    jobs: int,
    timeout_s: float,
    observer: SweepObserver,
    target: str = WORKER_TARGET,
    preload: Sequence[str] = PRELOAD,
    resume: bool = True,
    snapshot: bool = False,
) -> None:
    """Run every trial of `plan` in a process of its own, and see that each has a record in `store` afterwards.

    Args:
        plan: The trials, in the order to run them.
        store: Where workers write their records; those that leave none get one from here.
        versions: Versions that go into the records.
        jobs: How many trials at once.
        timeout_s: Wall-clock limit of one trial.
        observer: Told of each start and each record.
        target: Dotted name of what a worker runs on its `WorkerJob`, ``"package.module:function"``.
        preload: Modules imported once, in the process that workers are forked from.
        snapshot: Have simulated trials write memory snapshots beside their records.
        resume: Leave alone what has an answered record by its turn; two sweeps in one folder share the work so.

    Raises:
        TooManyFailuresError: `MAX_FAILURES_IN_A_ROW` trials one after another had no answer.
        KeyboardInterrupt: Ctrl-C. As with any exception, workers are ended and finished records stay.
    """
    if not plan:
        return
    sweep = _Sweep(
        pending=deque(plan),
        store=store,
        versions=versions,
        jobs=jobs,
        timeout_s=timeout_s,
        observer=observer,
        target=target,
        resume=resume,
        snapshot=snapshot,
    )
    warm_up(preload, jobs=jobs)
    with sweep:
        sweep.run()


@dataclass(kw_only=True)
class _Sweep:
    """The state of one call of `run_trials`."""

    pending: deque[PlannedTrial]
    running: list[WorkerProcess] = field(default_factory=list)
    failures_in_a_row: int = 0
    store: RecordStore
    versions: Versions
    jobs: int
    timeout_s: float
    observer: SweepObserver
    target: str
    resume: bool
    snapshot: bool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """End what still runs, however the block was left."""
        for worker in self.running:
            worker.end_now()
        while any(not worker.ended for worker in self.running):
            self._sleep()
            for worker in self.running:
                worker.press()
        for worker in self.running:
            worker.clean_up()
        self.running.clear()

    def run(self) -> None:
        """Until no trial is left."""
        while self.pending or self.running:
            self._fill_slots()
            if self.running:
                self._sleep()
            for worker in list(self.running):
                worker.press()
                if worker.ended:
                    self.running.remove(worker)
                    self._conclude(worker)

    def _sleep(self) -> None:
        """Until a worker ends or a deadline passes."""
        alive = [worker for worker in self.running if not worker.ended]
        next_s = min((worker.deadline_s for worker in alive), default=0.0) - time.monotonic()
        if alive:
            wait([worker.sentinel for worker in alive], timeout=None if math.isinf(next_s) else max(0.0, next_s))

    def _fill_slots(self) -> None:
        """Start what can be started. Trials that another sweep holds go to the back."""
        for _ in range(len(self.pending)):
            if len(self.running) >= self.jobs:
                return
            trial = self.pending.popleft()
            lock = take_lock(self.store.path(trial.trial_id).with_suffix(".lock"), wait=False)
            if lock is None:
                self.pending.append(trial)
            else:
                self._start(trial, lock)
        if self.pending and not self.running:
            trial = self.pending.popleft()
            lock = take_lock(self.store.path(trial.trial_id).with_suffix(".lock"), wait=True)
            assert lock is not None
            self._start(trial, lock)

    def _start(self, trial: PlannedTrial, lock: TrialLock) -> None:
        stored = self.store.find(trial.trial_id) if self.resume else None
        if stored is not None and stored.outcome.status.answered:
            lock.release()
            self.observer.finished(trial, stored)
            return
        stderr_path = self.store.path(trial.trial_id).with_suffix(".stderr")
        siblings = self._take_siblings(trial)
        try:
            job = WorkerJob(
                trial=trial,
                versions=self.versions,
                store_folder=str(self.store.path(trial.trial_id).parents[1]),
                stderr_path=str(stderr_path),
                siblings=tuple(sibling.trial for sibling in siblings),
                snapshot=self.snapshot,
            )
            stamp_before = record_stamp(self.store.path(trial.trial_id))
            process = start_process(job, self.target, jobs=self.jobs)
        except BaseException:
            for held in (lock, *(sibling.lock for sibling in siblings)):
                held.release()
            raise
        self.running.append(
            WorkerProcess(
                process,
                trial=trial,
                lock=lock,
                stderr_path=stderr_path,
                stamp_before=stamp_before,
                timeout_s=self.timeout_s,
                siblings=siblings,
            )
        )
        self.observer.started(trial)

    def _take_siblings(self, trial: PlannedTrial) -> list[Sibling]:
        """Take out of the queue what the same run answers, where nobody else holds it."""
        key = run_key(trial.spec)
        found: list[Sibling] = []
        for other in [other for other in self.pending if key is not None and run_key(other.spec) == key]:
            path = self.store.path(other.trial_id)
            lock = take_lock(path.with_suffix(".lock"), wait=False)
            if lock is not None:
                self.pending.remove(other)
                found.append(Sibling(trial=other, lock=lock, stamp_before=record_stamp(path)))
        return found

    def _conclude(self, worker: WorkerProcess) -> None:
        """Give an ended worker's trial its record, tell the observer, and count failures."""
        try:
            record = self._fresh_record(worker)
        finally:
            worker.clean_up()
        self.observer.finished(worker.trial, record)
        for sibling in reversed(worker.siblings):
            self._conclude_sibling(sibling)
        if record.outcome.status.answered:
            worker.stderr_path.unlink(missing_ok=True)
            self.failures_in_a_row = 0
            return
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise TooManyFailuresError(self._too_many(record))

    def _conclude_sibling(self, sibling: Sibling) -> None:
        """Tell of the record that the worker left for a sibling; without one the sibling runs by itself."""
        path = self.store.path(sibling.trial.trial_id)
        record = self.store.find(sibling.trial.trial_id) if record_stamp(path) != sibling.stamp_before else None
        if record is None:
            self.pending.appendleft(sibling.trial)
        else:
            self.observer.finished(sibling.trial, record)

    def _fresh_record(self, worker: WorkerProcess) -> TrialRecord:
        """The record this worker wrote; else one made from how it ended, and stored."""
        trial = worker.trial
        if record_stamp(self.store.path(trial.trial_id)) != worker.stamp_before:
            written = self.store.find(trial.trial_id)
            if written is not None:
                return written
        outcome = judge(
            exit_code=worker.exit_code,
            timed_out=worker.timed_out,
            timeout_s=self.timeout_s,
            wall_s=worker.elapsed_s,
            stderr_path=worker.stderr_path,
        )
        record = TrialRecord(
            trial_id=trial.trial_id,
            grid=trial.grid,
            label=trial.label,
            spec=trial.spec,
            versions=self.versions,
            outcome=outcome,
        )
        self.store.write(record)
        return record

    def _too_many(self, last: TrialRecord) -> str:
        left = len(self.pending) + len(self.running)
        return (
            f"Stopped: {MAX_FAILURES_IN_A_ROW} trials in a row ended without an answer, and {left} were not run or "
            f"not finished. The last one, {last.label} of {last.spec.model}, ended as {last.outcome.status}: "
            f"{last.outcome.message or 'no message'}"
        )
