"""What a worker process does: choose the backend, run the trial, store the record."""

import resource
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from profiler.domain.builtin_models import find_builtin
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.outcome import Outcome, Status, TrialRecord
from profiler.domain.trial import Backend, PlannedTrial
from profiler.domain.units import KIB
from profiler.execution import EndOfSweepError, WorkerJob, beat
from profiler.measurement.untouched_cuda import fork_problem
from profiler.seams.checking import check_seams, note_on_versions
from profiler.storage.memory_snapshot import snapshot_path, write_memory_snapshot
from profiler.storage.model_config import load_model_config
from profiler.storage.records import RecordStore


def run_job(job: WorkerJob) -> None:
    """Run one trial and store its record. An exception means that there is no answer; the parent writes the record."""
    spec = job.trial.spec
    try:
        check_seams(spec.backend)
    except UnsupportedTrialError as error:
        if spec.backend is not Backend.SIMULATED:
            # No answer: a measured trial keeps its name under a later profiler, which may support these versions.
            raise
        for trial in (job.trial, *job.siblings):
            _store(job, trial, Outcome(status=Status.UNSUPPORTED, message=str(error)), time.monotonic())
        return
    model_config = _model_config(spec.model)
    if spec.backend is Backend.SIMULATED:
        _run_simulated(job, model_config)
        return
    if spec.backend is Backend.CUDA and (problem := fork_problem()):
        raise EndOfSweepError(problem)
    from profiler.storage.samples import write_samples  # pyarrow, which simulated trials do without
    from profiler.worker.real import run_real

    started = time.monotonic()
    path = job.heartbeat_path
    sign_of_life = (lambda: beat(Path(path))) if path is not None else (lambda: None)
    measured = run_real(
        spec,
        model_config,
        gpu_uuid=job.gpu_uuid,
        snapshot=job.snapshot,
        sample_period_s=job.sample_period_s,
        beat=sign_of_life,
    )
    outcome = measured.outcome
    if spec.backend is Backend.CUDA:
        outcome = replace(outcome, gpu_s=time.monotonic() - started)
    # The record after what belongs to it, because with it the trial is done; but before the snapshot, which is big and
    # slow, and which is looked for by itself.
    folder = Path(job.store_folder)
    if measured.samples:
        write_samples(folder, job.trial.trial_id, measured.samples)
    _store(job, job.trial, outcome, started)
    if measured.snapshot is not None:
        write_memory_snapshot(snapshot_path(folder, job.trial.trial_id), measured.snapshot)
    if job.breakdown and spec.backend is Backend.CUDA and outcome.status is Status.OK:
        from profiler.worker.attributed import breakdown_of

        # Last, and into a record that is there already: what was measured is not lost with it.
        told = breakdown_of(outcome, spec, model_config, beat=sign_of_life)
        _store(job, job.trial, replace(told, gpu_s=time.monotonic() - started), started)


def _run_simulated(job: WorkerJob, model_config: Mapping[str, object]) -> None:
    """One run of the trainer, and a record for each card that it answers: the trial's own and its siblings'.

    A sibling whose card would have chosen other kernels gets none; it runs by itself.
    """
    from profiler.worker.simulated import card_of, outcome_on_card, simulate, snapshot_on_card, unsupported

    started = time.monotonic()
    trials = (job.trial, *job.siblings)
    try:
        run = simulate(job.trial.spec, model_config, gpus=[card_of(trial.spec) for trial in job.siblings])
    except UnsupportedTrialError as error:
        for trial in trials:
            _store(job, trial, unsupported(trial.spec, error), started)
        return
    for trial in filter(lambda trial: run.answers(trial.spec), trials):
        _store(job, trial, outcome_on_card(run, trial.spec), started)
        if job.snapshot:
            path = snapshot_path(Path(job.store_folder), trial.trial_id)
            write_memory_snapshot(path, snapshot_on_card(run, trial.spec))
        # The run itself is the first trial's; a sibling only takes the time of its own card.
        started = time.monotonic()


def _model_config(model: str) -> Mapping[str, object]:
    builtin = find_builtin(model)
    return load_model_config(model) if builtin is None else builtin.config


def _store(job: WorkerJob, trial: PlannedTrial, outcome: Outcome, started: float) -> None:
    """Write a trial's record. `started`: when it began, on the monotonic clock."""
    notes = "; ".join(filter(None, (outcome.not_measured, note_on_versions())))
    outcome = replace(outcome, not_measured=notes)
    RecordStore(Path(job.store_folder)).write(
        TrialRecord(
            trial_id=trial.trial_id,
            grid=trial.grid,
            label=trial.label,
            spec=trial.spec,
            versions=job.versions,
            outcome=replace(outcome, wall_s=time.monotonic() - started, host_peak_rss_bytes=_host_peak_rss_bytes()),
        )
    )


def _host_peak_rss_bytes() -> int:
    """The worker's highest resident memory; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
