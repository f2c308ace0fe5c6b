"""The job of a worker in a module that is preloaded, and that needs the whole package that preloads it."""

import os
from pathlib import Path

from profiler.domain.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.execution import WorkerJob, run_trials
from profiler.storage.records import RecordStore

IMPORTED_BY = os.getpid()
assert run_trials


def job(job: WorkerJob) -> None:
    """Fail if the worker itself has imported this module."""
    made = {name: getattr(job.trial, name) for name in ("trial_id", "grid", "label", "spec")}
    status = Status.FAILED if os.getpid() == IMPORTED_BY else Status.OK
    record = TrialRecord(**made, versions=job.versions, outcome=Outcome(verdict=Verdict(status=status)))
    RecordStore(Path(job.store_folder)).write(record)
