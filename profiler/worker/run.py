"""What a worker process does: choose the backend, run the trial, store the record."""

import resource
import time
from dataclasses import replace
from pathlib import Path

from profiler.domain.builtin_models import find_builtin
from profiler.domain.outcome import Outcome, TrialRecord
from profiler.domain.trial import Backend, TrialSpec
from profiler.domain.units import KIB
from profiler.execution import WorkerJob
from profiler.storage.model_config import load_model_config
from profiler.storage.records import RecordStore


def run_job(job: WorkerJob) -> None:
    """Run one trial and store its record. An exception means that there is no answer; the parent writes the record."""
    started = time.monotonic()
    outcome = replace(
        _run(job.trial.spec), wall_s=time.monotonic() - started, host_peak_rss_bytes=_host_peak_rss_bytes()
    )
    RecordStore(Path(job.store_folder)).write(
        TrialRecord(
            trial_id=job.trial.trial_id,
            grid=job.trial.grid,
            label=job.trial.label,
            spec=job.trial.spec,
            versions=job.versions,
            outcome=outcome,
        )
    )


def _run(spec: TrialSpec) -> Outcome:
    builtin = find_builtin(spec.model)
    model_config = load_model_config(spec.model) if builtin is None else builtin.config
    if spec.backend is Backend.SIMULATED:
        from profiler.worker.simulated import run_simulated

        return run_simulated(spec, model_config)
    from profiler.worker.real import run_real

    return run_real(spec, model_config)


def _host_peak_rss_bytes() -> int:
    """The worker's highest resident memory; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
