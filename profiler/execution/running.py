"""A running sweep: which trials wait, which run and where, and what follows from the end of each."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import NoReturn, Self

from profiler.domain.errors import EXIT_INTERNAL, ProfilerError
from profiler.domain.outcome import Status, TrialRecord
from profiler.domain.trial import Backend, PlannedTrial
from profiler.execution.child import EXIT_END_OF_SWEEP
from profiler.execution.claim import Claim
from profiler.execution.gpus import GpuPool, GpuSlot, GpuUnusableError
from profiler.execution.heartbeat import Heartbeat
from profiler.execution.host_memory import oom_kills
from profiler.execution.job import Place, WorkerJob
from profiler.execution.open_trials import NotTaken, OpenTrials
from profiler.execution.pending import Pending
from profiler.execution.postponed import postponed_signals
from profiler.execution.verdict import last_lines
from profiler.execution.warm import WarmProcess
from profiler.execution.worker_process import WorkerProcess
from profiler.execution.worker_record import WorkerRecords

POLL_S = 0.5
"""How often an unavailable GPU is asked for again."""


class UnfitWorkersError(ProfilerError):
    """No worker of this sweep can run a trial, for a cause outside the trials."""

    exit_code = EXIT_INTERNAL


@dataclass(kw_only=True)
class RunningSweep:
    """The state of one call of `run_trials`. Leaving it as a context ends all workers."""

    pending: Pending
    trials: OpenTrials
    gpus: GpuPool | None
    warm: WarmProcess
    running: list[WorkerProcess] = field(default_factory=list, init=False)
    unplaced: list[PlannedTrial] = field(default_factory=list, init=False)
    """Trials for which no GPU is left."""
    waits_for_gpu: bool = field(default=False, init=False)

    @property
    def _records(self) -> WorkerRecords:
        return WorkerRecords(trials=self.trials)

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
                self.trials.announce(
                    f"Waiting for {trial.label} of {trial.spec.model}: another sweep runs it in this folder."
                )
            if not self._try_to_start(trial, wait_for_lock=not self.waits_for_gpu):
                self.pending.appendleft(trial)
                time.sleep(POLL_S)

    def _try_to_start(self, trial: PlannedTrial, *, wait_for_lock: bool) -> bool:
        """Start a trial, or settle it without a run; return False if it has to wait."""
        if self.waits_for_gpu and trial.spec.backend is Backend.CUDA:
            return False  # the trial before it got none either
        claim = self.trials.take(trial, wait=wait_for_lock)
        if not isinstance(claim, Claim):
            return claim is NotTaken.SETTLED
        gpus = self.gpus if trial.spec.backend is Backend.CUDA else None
        slots = gpus.take_together(trial.spec.num_processes) if gpus is not None else ()
        if gpus is not None and not slots:
            claim.lock.release()
            if gpus.usable < trial.spec.num_processes:
                self.unplaced.append(trial)
                return True
            self.waits_for_gpu = True
            for reason in gpus.waits:
                self.trials.announce(reason)
            return False
        self._start(claim, slots)
        return True

    def _start(self, claim: Claim, slots: Sequence[GpuSlot]) -> None:
        self.trials.store.remove_partial(claim.trial.trial_id)
        siblings = self.trials.take_siblings(claim.trial, self.pending)
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
                                options=self.trials.options,
                                heartbeat=heartbeat,
                                slots=slots,
                                oom_kills_before=kills_before,
                            )
                        )
                        undo.pop_all()
        self.trials.observer.started(claim.trial)

    def _job(self, claim: Claim, siblings: Sequence[Claim], slots: Sequence[GpuSlot]) -> WorkerJob:
        return WorkerJob(
            trial=claim.trial,
            versions=self.trials.versions,
            store_folder=str(claim.record_path.parents[1]),
            stderr_path=str(claim.stderr_path),
            options=self.trials.options,
            siblings=tuple(sibling.trial for sibling in siblings),
            place=Place(gpu_uuids=tuple(slot.uuid for slot in slots)),
            heartbeat_path=str(claim.heartbeat_path),
        )

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
            self.trials.observer.lost(worker.trial)
            return
        self.trials.report(worker.trial, record)
        for sibling in reversed(worker.siblings):
            self._conclude_sibling(sibling)
        if record.outcome.status.answered:
            worker.stderr_path.unlink(missing_ok=True)
        self.trials.count_failures(record, left=len(self.pending) + len(self.running))

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
        self.trials.observer.lost(worker.trial)

    def _conclude_sibling(self, sibling: Claim) -> None:
        """Report the record that the worker left for a sibling; without a record the sibling runs by itself."""
        record = self._records.written(sibling)
        if record is None:
            self.pending.appendleft(sibling.trial)
        else:
            self.trials.observer.finished(sibling.trial, record)

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
            self.trials.store.remove_partial(claim.trial.trial_id)
        worker.clean_up()


def _pool_of(gpus: GpuPool | None) -> GpuPool:
    """Return the pool that a worker's GPUs are from."""
    assert gpus is not None
    return gpus


def _reported_faults(worker: WorkerProcess, record: TrialRecord) -> dict[str, str]:
    """Return the fault that a worker has stored, by the GPU that it names; of all its GPUs if it names none."""
    broken = record.outcome.measured.gpu_uuid if record.outcome.measured else None
    uuids = [slot.uuid for slot in worker.slots]
    return dict.fromkeys([broken] if broken in uuids else uuids, record.outcome.message)
