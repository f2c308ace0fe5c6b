"""A running sweep: which trials wait, which run and where, and what follows from the end of each."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import NoReturn, Self

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_INTERNAL, EXIT_TOO_MANY_FAILURES, ProfilerError
from profiler.domain.outcome import Status, TrialRecord, Versions
from profiler.domain.trial import Backend, PlannedTrial
from profiler.execution.child import EXIT_END_OF_SWEEP
from profiler.execution.claim import Claim, claim_of
from profiler.execution.decision import stored_answer
from profiler.execution.gpus import GpuPool, GpuSlot, GpuUnusableError
from profiler.execution.heartbeat import Heartbeat
from profiler.execution.host_memory import oom_kills
from profiler.execution.job import Place, SweepObserver, WorkerJob
from profiler.execution.pending import Pending
from profiler.execution.postponed import postponed_signals
from profiler.execution.pruning import Pruning
from profiler.execution.verdict import last_lines
from profiler.execution.warm import WarmProcess
from profiler.execution.worker_process import WorkerProcess
from profiler.execution.worker_record import WorkerRecords
from profiler.storage.records import Held
from profiler.storage.trial_store import TrialStore

MAX_FAILURES_IN_A_ROW = 5

POLL_S = 0.5
"""How often an unavailable GPU is asked for again."""


class TooManyFailuresError(ProfilerError):
    """Trial after trial fails: the cause is not in the trials."""

    exit_code = EXIT_TOO_MANY_FAILURES


class UnfitWorkersError(ProfilerError):
    """No worker of this sweep can run a trial, for a cause outside the trials."""

    exit_code = EXIT_INTERNAL


@dataclass(kw_only=True)
class RunningSweep:
    """The state of one call of `run_trials`. Leaving it as a context ends all workers."""

    pending: Pending
    options: RunOptions
    store: TrialStore
    versions: Versions
    observer: SweepObserver
    gpus: GpuPool | None
    pruning: Pruning | None
    warm: WarmProcess
    running: list[WorkerProcess] = field(default_factory=list, init=False)
    failures_in_a_row: int = field(default=0, init=False)
    unplaced: list[PlannedTrial] = field(default_factory=list, init=False)
    """Trials for which no GPU is left."""
    waits_for_gpu: bool = field(default=False, init=False)
    _announced: set[str] = field(default_factory=set, init=False)
    """Reasons to wait that the observer has heard."""

    @property
    def _records(self) -> WorkerRecords:
        return WorkerRecords(store=self.store, versions=self.versions, options=self.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """End all workers, however the block was left."""
        for worker in self.running:
            worker.end_now()
        while any(not worker.ended for worker in self.running):
            self._sleep()
            for worker in self.running:
                worker.escalate_if_due()
        for worker in self.running:
            self._end_silent_warm_process(worker)
            self._free_gpus(worker, {})
            self._clean_up(worker)
        self.running.clear()

    def run(self) -> None:
        """Run until no trial is left.

        Raises:
            TooManyFailuresError: Trial after trial had no answer.
            UnfitWorkersError: A worker reported a cause that every worker would meet.
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
        if self.unplaced and self.gpus is not None:
            left = len(self.unplaced)
            were = "trial was" if left == 1 else "trials were"
            few = "fewer GPUs are left than they need" if self.gpus.usable else "no GPU is left"
            raise GpuUnusableError(f"{left} {were} not run: {few}. {' '.join(self.gpus.retired)}")

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        """Sleep until a worker ends, a deadline passes, or a GPU may be free."""
        alive = [worker for worker in self.running if not worker.ended]
        next_s = min((worker.deadline_s for worker in alive), default=0.0) - time.monotonic()
        if self.waits_for_gpu:
            next_s = min(next_s, POLL_S)
        if alive:
            wait([worker.sentinel for worker in alive], timeout=None if math.isinf(next_s) else max(0.0, next_s))

    def _fill_slots(self) -> None:
        """Start trials while there are slots. A trial of another sweep, or without a free GPU, goes to the back."""
        self.waits_for_gpu = False
        for _ in range(len(self.pending)):
            if len(self.running) >= self.warm.jobs:
                return
            if not self.pending:  # siblings were started along with another trial
                return
            trial = self.pending.popleft()
            if not self._try_to_start(trial, wait_for_lock=False):
                self.pending.append(trial)
        if self.pending and not self.running:
            trial = self.pending.popleft()
            if not self.waits_for_gpu:
                self._announce(
                    f"Waiting for {trial.label} of {trial.spec.model}: another sweep runs it in this folder."
                )
            if not self._try_to_start(trial, wait_for_lock=not self.waits_for_gpu):
                self.pending.appendleft(trial)
                time.sleep(POLL_S)

    def _try_to_start(self, trial: PlannedTrial, *, wait_for_lock: bool) -> bool:
        """Start a trial, or settle it without a run; return False if it has to wait."""
        if self.waits_for_gpu and trial.spec.backend is Backend.CUDA:
            return False  # the trial before it got none either
        if self.store.is_news(trial.trial_id) and self._settle(trial):
            return True
        lock = self.store.claim(trial.trial_id, wait=wait_for_lock)
        if lock is None:
            return False
        if self._settle(trial):
            lock.release()
            return True
        gpus = self.gpus if trial.spec.backend is Backend.CUDA else None
        slots = gpus.take_together(trial.spec.num_processes) if gpus is not None else ()
        if gpus is not None and not slots:
            lock.release()
            if gpus.usable < trial.spec.num_processes:
                self.unplaced.append(trial)
                return True
            self.waits_for_gpu = True
            for reason in gpus.waits:
                self._announce(reason)
            return False
        self._start(trial, lock, slots)
        return True

    def _announce(self, reason: str) -> None:
        if reason not in self._announced:
            self._announced.add(reason)
            self.observer.waiting(reason)

    def _settle(self, trial: PlannedTrial) -> bool:
        """Settle a trial without a run if a stored record or the outcome of another trial answers it."""
        record = stored_answer(trial.trial_id, store=self.store, options=self.options)
        if record is None:
            pruning = self.pruning if trial.spec.backend is Backend.CUDA else None
            outcome = pruning.implied(trial) if pruning is not None else None
            if outcome is None:
                return False
            record = self._records.store_outcome(trial, outcome)
        self._report(trial, record)
        return True

    def _report(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Pass a record on to the observer and to pruning."""
        self.observer.finished(trial, record)
        if self.pruning is not None:
            self.pruning.learn([record])

    def _start(self, trial: PlannedTrial, lock: Held, slots: Sequence[GpuSlot]) -> None:
        self.store.remove_partial(trial.trial_id)
        claim = claim_of(trial, lock, self.store.path(trial.trial_id))
        siblings = self._claim_siblings(trial)
        job = self._job(claim, siblings, slots)
        with ExitStack() as undo:
            for held in (claim, *siblings):
                undo.callback(held.lock.release)
            for slot in slots:
                undo.callback(_pool_of(self.gpus).give_back, slot)
            process = None
            while process is None:
                self.warm.prepare()
                heartbeat = Heartbeat(claim.heartbeat_path, now_s=time.monotonic())
                kills_before = oom_kills()
                # A signal in between would release the locks, and the trial would run elsewhere at the same time.
                with postponed_signals():
                    process = self.warm.fork(job)
                    if process is not None:
                        self.running.append(
                            WorkerProcess(
                                process,
                                claim=claim,
                                siblings=siblings,
                                options=self.options,
                                heartbeat=heartbeat,
                                slots=slots,
                                oom_kills_before=kills_before,
                            )
                        )
                        undo.pop_all()
        self.observer.started(trial)

    def _job(self, claim: Claim, siblings: Sequence[Claim], slots: Sequence[GpuSlot]) -> WorkerJob:
        return WorkerJob(
            trial=claim.trial,
            versions=self.versions,
            store_folder=str(claim.record_path.parents[1]),
            stderr_path=str(claim.stderr_path),
            options=self.options,
            siblings=tuple(sibling.trial for sibling in siblings),
            place=Place(gpu_uuids=tuple(slot.uuid for slot in slots)),
            heartbeat_path=str(claim.heartbeat_path),
        )

    def _claim_siblings(self, trial: PlannedTrial) -> list[Claim]:
        """Take the trials that the same run answers out of the queue, except those of other sweeps.

        A sibling that is answered meanwhile, by another sweep in the folder, is settled.
        """
        found: list[Claim] = []
        for other in self.pending.siblings(trial):
            path = self.store.path(other.trial_id)
            lock = self.store.claim(other.trial_id, wait=False)
            if lock is None:
                continue
            self.pending.remove(other)
            if self._settle(other):
                lock.release()
            else:
                found.append(claim_of(other, lock, path))
        return found

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, worker: WorkerProcess) -> None:
        """Store the record of an ended worker's trial, notify the observer, and count failures."""
        self._end_silent_warm_process(worker)
        if worker.is_lost and not self._left_a_record(worker):
            self._run_again(worker)
            return
        if worker.exit_code == EXIT_END_OF_SWEEP:
            self._end_sweep(worker)
        faults = self._gpu_faults(worker)
        try:
            record = self._records.final(worker, " and ".join(dict.fromkeys(faults.values())))
            if record.outcome.status is Status.DEVICE_FAULT:
                faults = faults or _reported_faults(worker, record)
        finally:
            self._free_gpus(worker, faults)
            self._clean_up(worker)
        if faults:
            # The trial is not to blame: it runs on other GPUs, if enough are left.
            self.pending.append(worker.trial)
            self.observer.lost(worker.trial)
            return
        self._report(worker.trial, record)
        for sibling in reversed(worker.siblings):
            self._conclude_sibling(sibling)
        self._count_failures(worker, record)

    def _count_failures(self, worker: WorkerProcess, record: TrialRecord) -> None:
        if record.outcome.status.answered:
            worker.stderr_path.unlink(missing_ok=True)
            self.failures_in_a_row = 0
            return
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise TooManyFailuresError(too_many_failures(record, len(self.pending) + len(self.running)))

    def _end_sweep(self, worker: WorkerProcess) -> NoReturn:
        """Raise the cause that this worker reported, because every other worker would meet it too."""
        self._free_gpus(worker, {})
        self._clean_up(worker)
        sentence = last_lines(worker.stderr_path)
        worker.stderr_path.unlink(missing_ok=True)
        raise UnfitWorkersError(sentence)

    def _end_silent_warm_process(self, worker: WorkerProcess) -> None:
        """End a warmed process that is alive and does not send the worker's exit code: it is stopped or hangs."""
        if worker.is_exit_code_late:
            self.warm.end("did not answer")

    def _left_a_record(self, worker: WorkerProcess) -> bool:
        """Return whether a lost worker finished its trial. It is killed first, so that it cannot do so afterwards."""
        worker.kill_group()
        return self._records.written(worker.claim) is not None

    def _run_again(self, worker: WorkerProcess) -> None:
        """Put the trials of a lost worker back: the warmed process ended, and they are not to blame."""
        self._free_gpus(worker, self._gpu_faults(worker))
        self._clean_up(worker)
        for claim in reversed(worker.claims):
            self.pending.appendleft(claim.trial)
        self.observer.lost(worker.trial)

    def _conclude_sibling(self, sibling: Claim) -> None:
        """Report the record that the worker left for a sibling; without a record the sibling runs by itself."""
        record = self._records.written(sibling)
        if record is None:
            self.pending.appendleft(sibling.trial)
        else:
            self.observer.finished(sibling.trial, record)

    def _gpu_faults(self, worker: WorkerProcess) -> dict[str, str]:
        """Return what happened to each of the worker's GPUs that is not sound, by UUID."""
        found = {slot.uuid: _pool_of(self.gpus).fault_of(slot) for slot in worker.slots}
        return {uuid: fault for uuid, fault in found.items() if fault}

    def _free_gpus(self, worker: WorkerProcess, faults: Mapping[str, str]) -> None:
        """Give the worker's GPUs back, and retire those with a fault."""
        for slot in worker.slots:
            fault = faults.get(slot.uuid, "")
            if worker.unkillable:
                fault = "a worker that cannot be killed still holds it"
            if fault:
                _pool_of(self.gpus).retire(slot, fault)
            else:
                _pool_of(self.gpus).give_back(slot)

    def _clean_up(self, worker: WorkerProcess) -> None:
        """Leave nothing of an ended worker: no process, no partial file, no lock."""
        worker.kill_group()
        for claim in worker.claims:
            self.store.remove_partial(claim.trial.trial_id)
        worker.clean_up()


def too_many_failures(last: TrialRecord, left: int) -> str:
    """Return the sentence of a `TooManyFailuresError` after the record `last`, with `left` trials unfinished."""
    lines = last.outcome.message.splitlines() or ["no message"]
    return (
        f"Stopped: {MAX_FAILURES_IN_A_ROW} trials in a row ended without an answer, and {left} were not run or "
        f"not finished. The last one, {last.label} of {last.spec.model}, ended as {last.outcome.status}: "
        f"{' '.join(dict.fromkeys((lines[0], lines[-1])))}"
    )


def _pool_of(gpus: GpuPool | None) -> GpuPool:
    """Return the pool that a worker's GPUs are from."""
    assert gpus is not None
    return gpus


def _reported_faults(worker: WorkerProcess, record: TrialRecord) -> dict[str, str]:
    """Return the fault that a worker has stored, by the GPU that it names; of all its GPUs if it names none."""
    broken = record.outcome.measured.gpu_uuid if record.outcome.measured else None
    uuids = [slot.uuid for slot in worker.slots]
    return dict.fromkeys([broken] if broken in uuids else uuids, record.outcome.message)
