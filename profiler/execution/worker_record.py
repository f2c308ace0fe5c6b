"""The record of an ended worker: the one it wrote, or one made from how it ended."""

from dataclasses import dataclass, replace

from profiler.domain.runs.outcome import Outcome, Status, TrialRecord
from profiler.execution.processes.host_memory import oom_kills
from profiler.execution.processes.verdict import judge
from profiler.execution.processes.worker_process import WorkerProcess
from profiler.execution.trials.claim import LockedTrial
from profiler.execution.trials.open_trials import OpenTrials


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
