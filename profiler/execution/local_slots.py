"""The slots of this machine: one worker process per run, and the record of each that ended."""

import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from profiler.domain.errors import EXIT_INTERNAL, ProfilerError
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution.gpus import GpuPool, GpuSlot, GpuUnusableError
from profiler.execution.job import Place, WorkerJob
from profiler.execution.processes.child import EXIT_END_OF_SWEEP, judge, last_lines, oom_kills
from profiler.execution.processes.warm import WarmProcess
from profiler.execution.processes.worker_process import Heartbeat, WorkerProcess
from profiler.execution.slots import Ended, Start, postponed_signals
from profiler.execution.trials import LockedTrial, OpenTrials


@dataclass(frozen=True, kw_only=True)
class WorkerRecords:
    """Reads the records of ended workers, and writes those that workers did not leave."""

    trials: OpenTrials

    def written(self, claim: LockedTrial) -> TrialRecord | None:
        """Return the record that a worker wrote for a trial during this run."""
        return self.trials.store.find(claim.trial.trial_id) if claim.has_new_record else None

    def final(self, worker: WorkerProcess, gpu_fault: str) -> TrialRecord:
        """Return the record of an ended worker, after storing it if necessary. A fault of the GPU overrides it."""
        record = self.written(worker.claim)
        if record is not None and not gpu_fault:
            return record
        outcome = record.outcome if record is not None else self._judged(worker)
        if gpu_fault:
            verdict = replace(outcome.verdict, status=Status.DEVICE_FAULT, message=f"The GPU broke: {gpu_fault}.")
            outcome = replace(outcome, verdict=verdict)
        return self.trials.store_outcome(worker.trial, outcome)

    def _judged(self, worker: WorkerProcess) -> Outcome:
        wall_s = worker.elapsed_s
        outcome = judge(
            exit_code=worker.exit_code,
            timed_out=worker.timed_out,
            timeout_s=self.trials.options.timeout_s,
            wall_s=wall_s,
            stderr_path=worker.stderr_path,
            stalled_s=self.trials.options.stall_s if worker.stalled else None,
            oom_killed=_oom_killer_was_active(worker),
        )
        gpu_s = wall_s * len(worker.slots) if worker.slots else None
        return replace(outcome, work=replace(outcome.work, gpu_s=gpu_s))


def _oom_killer_was_active(worker: WorkerProcess) -> bool:
    """Return whether the kernel has killed a process for lack of memory since the worker started."""
    kills, before = oom_kills(), worker.oom_kills_before
    return kills is not None and before is not None and kills > before


POLL_S = 0.5
"""How often an unavailable GPU is asked for again."""


class UnfitWorkersError(ProfilerError):
    """No worker of this sweep can run a trial, for a cause outside the trials."""

    exit_code = EXIT_INTERNAL


@dataclass(kw_only=True)
class LocalSlots:
    """As many slots as trials run at the same time; GPUs are taken when a trial starts."""

    trials: OpenTrials
    gpus: GpuPool | None
    warm: WarmProcess
    are_fixed: bool = field(default=True, init=False)
    _running: dict[Hashable, WorkerProcess] = field(default_factory=dict, init=False)
    _unplaced: int = field(default=0, init=False)
    """Trials for which no GPU is left."""
    _waits_for_gpu: bool = field(default=False, init=False)

    @property
    def _records(self) -> WorkerRecords:
        return WorkerRecords(trials=self.trials)

    def check_placed(self) -> None:
        """Check that there was a GPU for every trial.

        Raises:
            GpuUnusableError: There was none for some.
        """
        if not self._unplaced or self.gpus is None:
            return
        were = "trial was" if self._unplaced == 1 else "trials were"
        few = "fewer GPUs are left than they need" if self.gpus.usable else "no GPU is left"
        raise GpuUnusableError(f"{self._unplaced} {were} not run: {few}. {' '.join(self.gpus.retired)}")

    # ---- starting ----------------------------------------------------------------------------------------------------

    def kind_of(self, _spec: TrialSpec) -> None:
        """Return nothing: any slot is for any trial, and all start in the order of the plan."""

    def free(self, _waiting: Mapping[None, int]) -> Mapping[None, Sequence[Hashable]]:
        """Return the slots without a worker."""
        self._waits_for_gpu = False
        return {None: [number for number in range(self.warm.jobs) if number not in self._running]}

    def may_start(self, trial: PlannedTrial) -> bool:
        """Return whether the trial before it found a GPU, if it needs one."""
        return not (self._waits_for_gpu and trial.spec.backend is Backend.CUDA)

    def start(self, slot: Hashable, claims: Sequence[LockedTrial]) -> Start:
        """Fork a worker, if there are GPUs for it."""
        spec = claims[0].trial.spec
        if self.gpus is None or spec.backend is not Backend.CUDA:
            self._fork(slot, claims, ())
            return Start.RUNS
        gpus = self.gpus.take_together(spec.num_processes)
        if gpus:
            self._fork(slot, claims, gpus)
            return Start.RUNS
        if self.gpus.usable < spec.num_processes:
            self._unplaced += 1
            return Start.NEEDLESS
        self._waits_for_gpu = True
        for reason in self.gpus.waits:
            self.trials.announce(reason)
        return Start.WAITS

    def _fork(self, slot: Hashable, claims: Sequence[LockedTrial], gpus: Sequence[GpuSlot]) -> None:
        claim, *siblings = claims
        self.trials.store.remove_partial(claim.trial.trial_id)
        job = self._job(claim, siblings, gpus)
        with ExitStack() as undo:
            for gpu in gpus:
                undo.callback(_pool_of(self.gpus).give_back, gpu)
            process = None
            while process is None:
                self.warm.prepare()
                heartbeat = Heartbeat(claim.heartbeat_path, now_s=time.monotonic())
                kills_before = oom_kills()
                # A signal in between would release the locks, and the trial would run elsewhere at the same time.
                with postponed_signals():
                    process = self.warm.fork(job)
                    if process is not None:
                        self._running[slot] = WorkerProcess(
                            process,
                            claim=claim,
                            siblings=siblings,
                            options=self.trials.options,
                            heartbeat=heartbeat,
                            slots=gpus,
                            oom_kills_before=kills_before,
                        )
                        undo.pop_all()

    def _job(self, claim: LockedTrial, siblings: Sequence[LockedTrial], gpus: Sequence[GpuSlot]) -> WorkerJob:
        return WorkerJob(
            trial=claim.trial,
            versions=self.trials.versions,
            store_folder=str(claim.record_path.parents[1]),
            stderr_path=str(claim.stderr_path),
            options=self.trials.options,
            siblings=tuple(sibling.trial for sibling in siblings),
            place=Place(gpu_uuids=tuple(gpu.uuid for gpu in gpus)),
            heartbeat_path=str(claim.heartbeat_path),
        )

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait(self) -> Iterator[Ended]:
        """Wait until a worker ends, a deadline passes, or a GPU may be free; yield the runs that have ended."""
        if self._running:
            # One that has ended since it was forked has no descriptor that could wake this process.
            if not any(worker.ended for worker in self._running.values()):
                self._sleep()
        elif self._waits_for_gpu:
            time.sleep(POLL_S)
        for slot, worker in list(self._running.items()):
            worker.escalate_if_due()
            if worker.ended:
                del self._running[slot]
                yield self._ended(slot, worker)

    def _sleep(self) -> None:
        alive = [worker for worker in self._running.values() if not worker.ended]
        next_s = min((worker.deadline_s for worker in alive), default=0.0) - time.monotonic()
        if self._waits_for_gpu:
            next_s = min(next_s, POLL_S)
        if alive:
            wait([worker.sentinel for worker in alive], timeout=None if math.isinf(next_s) else max(0.0, next_s))

    def machines(self) -> None:
        """Return nothing: the sweep knows this machine."""

    def close(self) -> None:
        """End all workers, and free their GPUs."""
        workers = self._running.values()
        for worker in workers:
            worker.end_now()
        while any(not worker.ended for worker in workers):
            self._sleep()
            for worker in workers:
                worker.escalate_if_due()
        for worker in workers:
            self._end_silent_warm_process(worker)
            self._clean_up(worker, {})
        self._running.clear()

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _ended(self, slot: Hashable, worker: WorkerProcess) -> Ended:
        """Return the end of a worker, after all that it held but its claims is free."""
        self._end_silent_warm_process(worker)
        if worker.is_lost and not self._left_a_record(worker):
            # The warmed process ended; the trial is not to blame.
            self._clean_up(worker, self._gpu_faults(worker))
            return Ended(slot=slot, is_lost=True)
        if worker.exit_code == EXIT_END_OF_SWEEP:
            self._clean_up(worker, {})
            return Ended(slot=slot, error=_unfit(worker))
        faults = self._gpu_faults(worker)
        try:
            record = self._records.final(worker, " and ".join(dict.fromkeys(faults.values())))
            if record.outcome.status is Status.DEVICE_FAULT:
                faults = faults or _reported_faults(worker, record)
        finally:
            self._clean_up(worker, faults)
        if faults:
            # The trial runs on other GPUs, if enough are left.
            return Ended(slot=slot, is_lost=True, is_suspect=True)
        if record.outcome.status.answered:
            worker.stderr_path.unlink(missing_ok=True)
        # A sibling without a record runs by itself.
        written = {claim.trial.trial_id: self._records.written(claim) for claim in worker.siblings}
        records = {trial_id: found for trial_id, found in written.items() if found is not None}
        return Ended(slot=slot, records={worker.trial.trial_id: record, **records})

    def _end_silent_warm_process(self, worker: WorkerProcess) -> None:
        """End a warmed process that is alive and does not send the worker's exit code: it is stopped or hangs."""
        if worker.is_exit_code_late:
            self.warm.end("did not answer")

    def _left_a_record(self, worker: WorkerProcess) -> bool:
        """Return whether a lost worker finished its trial. It is killed first, so that it cannot do so afterwards."""
        worker.kill_group()
        return self._records.written(worker.claim) is not None

    def _gpu_faults(self, worker: WorkerProcess) -> dict[str, str]:
        """Return what happened to each of the worker's GPUs that is not sound, by UUID."""
        found = {slot.uuid: _pool_of(self.gpus).fault_of(slot) for slot in worker.slots}
        return {uuid: fault for uuid, fault in found.items() if fault}

    def _clean_up(self, worker: WorkerProcess, faults: Mapping[str, str]) -> None:
        """Leave nothing of an ended worker but its claims: no GPU, no process, no partial file.

        Args:
            worker: The worker.
            faults: What happened to its GPUs, by UUID. GPUs with a fault are retired.
        """
        for slot in worker.slots:
            fault = "a worker that cannot be killed still holds it" if worker.unkillable else faults.get(slot.uuid, "")
            if fault:
                _pool_of(self.gpus).retire(slot, fault)
            else:
                _pool_of(self.gpus).give_back(slot)
        worker.kill_group()
        for claim in worker.claims:
            self.trials.store.remove_partial(claim.trial.trial_id)
        worker.clean_up()


def _pool_of(gpus: GpuPool | None) -> GpuPool:
    """Return the pool that a worker's GPUs are from."""
    assert gpus is not None
    return gpus


def _unfit(worker: WorkerProcess) -> UnfitWorkersError:
    """Return the cause that a worker reported, because every other worker would meet it too."""
    sentence = last_lines(worker.stderr_path)
    worker.stderr_path.unlink(missing_ok=True)
    return UnfitWorkersError(sentence)


def _reported_faults(worker: WorkerProcess, record: TrialRecord) -> dict[str, str]:
    """Return the fault that a worker has stored, by the GPU that it names; of all its GPUs if it names none."""
    broken = record.outcome.measured.gpu_uuid if record.outcome.measured else None
    uuids = [slot.uuid for slot in worker.slots]
    return dict.fromkeys([broken] if broken in uuids else uuids, record.outcome.message)
