"""The job of a worker in a module that is preloaded, and that needs the whole package that preloads it."""

import os
from pathlib import Path

from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.execution import WorkerJob, run_trials
from profiler.storage.stores.record_store import RecordStore

IMPORTED_BY = os.getpid()
assert run_trials


def job(job: WorkerJob) -> None:
    """Fail if the worker itself has imported this module."""
    status = Status.FAILED if os.getpid() == IMPORTED_BY else Status.OK
    record = TrialRecord.of(job.trial, versions=job.versions, outcome=Outcome(verdict=Verdict(status=status)))
    RecordStore(Path(job.store_folder)).write(record)
