"""A worker that takes milliseconds and needs no torch. It notes each run, so that a second one is seen."""

import os
import random
import time
from pathlib import Path

from profiler.domain.memory import MIB, Phase
from profiler.domain.runs.outcome import Outcome, Peaks, Status, TrialRecord, Verdict
from profiler.domain.runs.readings import PhasePeak
from profiler.execution import WorkerJob
from profiler.storage.stores.record_store import RecordStore

NOTES = "notes.txt"
AGAIN, DONE = "again", "done"

_LONGEST_S = 0.4


def job(job: WorkerJob) -> None:
    """Store a record that depends on the trial only."""
    folder = Path(job.store_folder)
    store = RecordStore(folder)
    found = store.find(job.trial.trial_id)
    if found is not None and found.outcome.status.answered:
        _note(folder, AGAIN, job)
    time.sleep(random.uniform(0, _LONGEST_S))
    store.write(TrialRecord.of(job.trial, versions=job.versions, outcome=_outcome(job.trial.spec.seed * MIB)))
    _note(folder, DONE, job)


def _note(folder: Path, word: str, job: WorkerJob) -> None:
    with (folder / NOTES).open("a") as file:
        file.write(f"{word} {job.trial.trial_id} {os.getpid()}\n")


def _outcome(size: int) -> Outcome:
    phases = (PhasePeak(phase=Phase.BACKWARD, peak_allocated_bytes=size, peak_reserved_bytes=2 * size),)
    return Outcome(verdict=Verdict(status=Status.OK), peaks=Peaks(allocated_bytes=size, phases=phases))
