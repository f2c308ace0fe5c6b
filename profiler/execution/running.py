"""A sweep under way: which trials wait, which run and where, and what becomes of each that ends."""

import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Self

from profiler.domain.errors import EXIT_INTERNAL, EXIT_TOO_MANY_FAILURES, ProfilerError
from profiler.domain.outcome import Outcome, Status, TrialRecord
from profiler.domain.trial import Backend, PlannedTrial, run_key
from profiler.execution.child import EXIT_END_OF_SWEEP
from profiler.execution.conditions import Conditions
from profiler.execution.gpus import GpuSlot, GpuUnusableError
from profiler.execution.heartbeat import Heartbeat
from profiler.execution.host_memory import oom_kills
from profiler.execution.job import WorkerJob
from profiler.execution.lock import Lock, take_lock
from profiler.execution.stamp import stamp_of
from profiler.execution.verdict import judge, last_lines
from profiler.execution.worker_process import Sibling, WorkerProcess

MAX_FAILURES_IN_A_ROW = 5

POLL_S = 0.5
"""How often a GPU that could not be had is asked for again."""


class TooManyFailuresError(ProfilerError):
    """Trial after trial fails: the cause is not in the trials."""

    exit_code = EXIT_TOO_MANY_FAILURES


class UnfitWorkersError(ProfilerError):
    """No worker of this sweep can run a trial, for a cause that lies in none of them."""

    exit_code = EXIT_INTERNAL


@dataclass(kw_only=True)
class RunningSweep:
    """The state of one call of `run_trials`. Leaving it as a context ends what still runs."""

    pending: deque[PlannedTrial]
    given: Conditions
    running: list[WorkerProcess] = field(default_factory=list)
    failures_in_a_row: int = 0
    stranded: list[PlannedTrial] = field(default_factory=list)
    """Trials for which no GPU is left."""
    waits_for_gpu: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """End what still runs, however the block was left."""
        for worker in self.running:
            worker.end_now()
        while any(not worker.ended for worker in self.running):
            self._sleep()
            for worker in self.running:
                worker.escalate_if_due()
        for worker in self.running:
            self._end_silent_warm_process(worker)
            self._free_gpu(worker, fault="")
            self._clean_up(worker)
        self.running.clear()

    def run(self) -> None:
        """Until no trial is left.

        Raises:
            TooManyFailuresError: Trial after trial had no answer.
            UnfitWorkersError: A worker found out that none of them can run a trial.
            GpuUnusableError: Trials are left, and no GPU to run them on.
            WarmProcessError: The warmed process ended or hung too often.
        """
        while self.pending or self.running:
            self._fill_slots()
            if self.running:
                self._sleep()
            for worker in list(self.running):
                worker.escalate_if_due()
                if worker.ended:
                    self.running.remove(worker)
                    self._conclude(worker)
        if self.stranded and self.given.gpus is not None:
            left = len(self.stranded)
            were = "trial was" if left == 1 else "trials were"
            reasons = " ".join(self.given.gpus.retired)
            raise GpuUnusableError(f"{left} {were} not run: no GPU is left. {reasons}")

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        """Until a worker ends, a deadline passes, or a GPU may be free."""
        alive = [worker for worker in self.running if not worker.ended]
        next_s = min((worker.deadline_s for worker in alive), default=0.0) - time.monotonic()
        if self.waits_for_gpu:
            next_s = min(next_s, POLL_S)
        if alive:
            wait([worker.sentinel for worker in alive], timeout=None if math.isinf(next_s) else max(0.0, next_s))

    def _fill_slots(self) -> None:
        """Start what can be started. Trials that cannot go to the back: another sweep's, or without a free GPU."""
        self.waits_for_gpu = False
        for _ in range(len(self.pending)):
            if len(self.running) >= self.given.jobs:
                return
            if not self.pending:  # siblings went along with another
                return
            trial = self.pending.popleft()
            if not self._try_to_start(trial, wait_for_lock=False):
                self.pending.append(trial)
        if self.pending and not self.running:
            trial = self.pending.popleft()
            if not self._try_to_start(trial, wait_for_lock=not self.waits_for_gpu):
                self.pending.appendleft(trial)
                time.sleep(POLL_S)

    def _try_to_start(self, trial: PlannedTrial, *, wait_for_lock: bool) -> bool:
        """Start a trial, or settle it without; False if it has to wait."""
        if self.waits_for_gpu and trial.spec.backend is Backend.CUDA:
            return False  # the one before it got none either
        lock = take_lock(self.given.store.path(trial.trial_id).with_suffix(".lock"), wait=wait_for_lock)
        if lock is None:
            return False
        if self._settled(trial):
            lock.release()
            return True
        gpus = self.given.gpus if trial.spec.backend is Backend.CUDA else None
        slot = gpus.take() if gpus is not None else None
        if gpus is not None and slot is None:
            lock.release()
            if not gpus.usable:
                self.stranded.append(trial)
                return True
            self.waits_for_gpu = True
            return False
        self._start(trial, lock, slot)
        return True

    def _settled(self, trial: PlannedTrial) -> bool:
        """Whether the trial is answered: by a stored record, or by what other trials found."""
        stored = self.given.store.find(trial.trial_id) if self.given.resume else None
        if stored is not None and stored.outcome.status.answered and not self._is_to_run(stored.outcome):
            self._tell(trial, stored)
            return True
        pruning = self.given.pruning if trial.spec.backend is Backend.CUDA else None
        outcome = pruning.implied(trial) if pruning is not None else None
        if outcome is None:
            return False
        record = self._record(trial, outcome)
        self.given.store.write(record)
        self._tell(trial, record)
        return True

    def _tell(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Whoever watches, and whoever draws conclusions."""
        self.given.observer.finished(trial, record)
        if self.given.pruning is not None:
            self.given.pruning.learn([record])

    def _is_to_run(self, outcome: Outcome) -> bool:
        """What was only implied is run where nothing is to be implied."""
        return outcome.status is Status.IMPLIED and self.given.pruning is None

    def _start(self, trial: PlannedTrial, lock: Lock, slot: GpuSlot | None) -> None:
        path = self.given.store.path(trial.trial_id)
        self.given.store.remove_partial(trial.trial_id)
        siblings = self._take_siblings(trial)
        heartbeat = Heartbeat(path.with_suffix(".beat"), now_s=time.monotonic())
        job = WorkerJob(
            trial=trial,
            versions=self.given.versions,
            store_folder=str(path.parents[1]),
            stderr_path=str(path.with_suffix(".stderr")),
            siblings=tuple(sibling.trial for sibling in siblings),
            snapshot=self.given.snapshot,
            breakdown=self.given.breakdown,
            sample_period_s=self.given.sample_period_s,
            gpu_uuid=slot.uuid if slot else None,
            heartbeat_path=str(heartbeat.path),
        )
        try:
            stamp_before, kills_before = stamp_of(path), oom_kills()
            process = self.given.warm.fork(job, self.given.target)
        except BaseException:
            for held in (lock, *(sibling.lock for sibling in siblings)):
                held.release()
            if slot is not None and self.given.gpus is not None:
                self.given.gpus.give_back(slot)
            raise
        self.running.append(
            WorkerProcess(
                process,
                trial=trial,
                lock=lock,
                stderr_path=path.with_suffix(".stderr"),
                stamp_before=stamp_before,
                timeouts=self.given.timeouts,
                heartbeat=heartbeat,
                slot=slot,
                oom_kills_before=kills_before,
                siblings=siblings,
            )
        )
        self.given.observer.started(trial)

    def _take_siblings(self, trial: PlannedTrial) -> list[Sibling]:
        """Take out of the queue what the same run answers, where nobody else holds it."""
        key = run_key(trial.spec)
        found: list[Sibling] = []
        for other in [other for other in self.pending if key is not None and run_key(other.spec) == key]:
            path = self.given.store.path(other.trial_id)
            lock = take_lock(path.with_suffix(".lock"), wait=False)
            if lock is not None:
                self.pending.remove(other)
                found.append(Sibling(trial=other, lock=lock, stamp_before=stamp_of(path)))
        return found

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, worker: WorkerProcess) -> None:
        """Give an ended worker's trial its record, tell the observer, and count failures."""
        self._end_silent_warm_process(worker)
        if worker.is_lost and not self._left_a_record(worker):
            self._run_again(worker)
            return
        if worker.exit_code == EXIT_END_OF_SWEEP:
            self._free_gpu(worker, fault="")
            self._clean_up(worker)
            sentence = last_lines(worker.stderr_path)
            worker.stderr_path.unlink(missing_ok=True)
            raise UnfitWorkersError(sentence)
        fault = self._gpu_fault(worker)
        try:
            record = self._fresh_record(worker, fault)
            if record.outcome.status is Status.DEVICE_FAULT:
                fault = fault or record.outcome.message
        finally:
            self._free_gpu(worker, fault)
            self._clean_up(worker)
        if fault and worker.slot is not None:
            # The trial is not to blame; it runs elsewhere, if there is an elsewhere.
            self.pending.append(worker.trial)
            return
        self._tell(worker.trial, record)
        for sibling in reversed(worker.siblings):
            self._conclude_sibling(sibling)
        if record.outcome.status.answered:
            worker.stderr_path.unlink(missing_ok=True)
            self.failures_in_a_row = 0
            return
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise TooManyFailuresError(self._too_many(record))

    def _end_silent_warm_process(self, worker: WorkerProcess) -> None:
        """End a warmed process that lives and does not say how the worker ended: it is stopped or hangs."""
        if worker.is_exit_code_late:
            self.given.warm.end("did not answer")

    def _left_a_record(self, worker: WorkerProcess) -> bool:
        """Whether a lost worker finished its trial. It is killed first, so that it does not do so afterwards."""
        worker.kill_group()
        return self._written_record(worker) is not None

    def _run_again(self, worker: WorkerProcess) -> None:
        """Put the trials of a lost worker back: the warmed process ended, and they are not to blame."""
        self._free_gpu(worker, fault=self._gpu_fault(worker))
        self._clean_up(worker)
        self.pending.extendleft(sibling.trial for sibling in reversed(worker.siblings))
        self.pending.appendleft(worker.trial)

    def _conclude_sibling(self, sibling: Sibling) -> None:
        """Tell of the record that the worker left for a sibling; without one the sibling runs by itself."""
        path = self.given.store.path(sibling.trial.trial_id)
        record = self.given.store.find(sibling.trial.trial_id) if stamp_of(path) != sibling.stamp_before else None
        if record is None:
            self.pending.appendleft(sibling.trial)
        else:
            self.given.observer.finished(sibling.trial, record)

    def _gpu_fault(self, worker: WorkerProcess) -> str:
        """What befell the worker's GPU; empty if it is sound, or there is none."""
        if worker.slot is None or self.given.gpus is None:
            return ""
        return self.given.gpus.fault_of(worker.slot)

    def _free_gpu(self, worker: WorkerProcess, fault: str) -> None:
        """Give the worker's GPU back, or retire it."""
        if worker.slot is None or self.given.gpus is None:
            return
        if worker.unkillable:
            fault = "a worker that cannot be killed still holds it"
        if fault:
            self.given.gpus.retire(worker.slot, fault)
        else:
            self.given.gpus.give_back(worker.slot)

    def _clean_up(self, worker: WorkerProcess) -> None:
        """Leave nothing of an ended worker: no process, no half-written file, no lock."""
        worker.kill_group()
        for trial in (worker.trial, *(sibling.trial for sibling in worker.siblings)):
            self.given.store.remove_partial(trial.trial_id)
        worker.clean_up()

    def _fresh_record(self, worker: WorkerProcess, fault: str) -> TrialRecord:
        """The record this worker wrote, or one made from how it ended. A GPU that broke beats both."""
        trial = worker.trial
        record = self._written_record(worker)
        if record is not None and not fault:
            return record
        held_s = worker.elapsed_s if worker.slot is not None else None
        outcome = record.outcome if record is not None else self._judged(worker, gpu_s=held_s)
        if fault:
            verdict = replace(outcome.verdict, status=Status.DEVICE_FAULT, message=f"The GPU broke: {fault}.")
            outcome = replace(outcome, verdict=verdict)
        record = self._record(trial, outcome)
        self.given.store.write(record)
        return record

    def _written_record(self, worker: WorkerProcess) -> TrialRecord | None:
        """The record that this worker wrote."""
        trial_id = worker.trial.trial_id
        is_new = stamp_of(self.given.store.path(trial_id)) != worker.stamp_before
        return self.given.store.find(trial_id) if is_new else None

    def _judged(self, worker: WorkerProcess, *, gpu_s: float | None) -> Outcome:
        kills = oom_kills()
        outcome = judge(
            exit_code=worker.exit_code,
            timed_out=worker.timed_out,
            timeout_s=self.given.timeouts.timeout_s,
            wall_s=worker.elapsed_s,
            stderr_path=worker.stderr_path,
            stalled_s=self.given.timeouts.stall_s if worker.stalled else None,
            oom_killed=kills is not None and worker.oom_kills_before is not None and kills > worker.oom_kills_before,
        )
        return replace(outcome, work=replace(outcome.work, gpu_s=gpu_s))

    def _record(self, trial: PlannedTrial, outcome: Outcome) -> TrialRecord:
        return TrialRecord(
            trial_id=trial.trial_id,
            grid=trial.grid,
            label=trial.label,
            spec=trial.spec,
            versions=self.given.versions,
            outcome=outcome,
        )

    def _too_many(self, last: TrialRecord) -> str:
        left = len(self.pending) + len(self.running)
        lines = last.outcome.message.splitlines() or ["no message"]
        return (
            f"Stopped: {MAX_FAILURES_IN_A_ROW} trials in a row ended without an answer, and {left} were not run or "
            f"not finished. The last one, {last.label} of {last.spec.model}, ended as {last.outcome.status}: "
            f"{' '.join(dict.fromkeys((lines[0], lines[-1])))}"
        )
