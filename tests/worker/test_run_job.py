"""A worker's job: one simulated run, a record for each card that it answers, and the snapshots asked for."""

import pickle
from dataclasses import replace
from pathlib import Path

from simulating import small_spec

from profiler.config.identity import trial_id
from profiler.domain.outcome import Status, Versions
from profiler.domain.trial import PlannedTrial, TrialSpec
from profiler.execution import WorkerJob
from profiler.storage.memory_snapshot import snapshot_path
from profiler.storage.records import RecordStore
from profiler.worker import run_job

VERSIONS = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")


def planned(spec: TrialSpec) -> PlannedTrial:
    return PlannedTrial(trial_id=trial_id(spec, VERSIONS), grid="tests", label="full", spec=spec)


def test_one_run_answers_its_siblings_and_writes_snapshots(tmp_path: Path) -> None:
    own = planned(small_spec(gpu="h100-80gb"))
    other = planned(replace(own.spec, gpu="h200-141gb", alloc_conf="expandable_segments:True"))
    run_job(
        WorkerJob(
            trial=own,
            versions=VERSIONS,
            store_folder=str(tmp_path),
            stderr_path=str(tmp_path / "stderr"),
            siblings=(other,),
            snapshot=True,
        )
    )
    store = RecordStore(tmp_path)
    records = [store.find(trial.trial_id) for trial in (own, other)]
    assert all(record is not None and record.outcome.status is Status.OK for record in records)
    first, second = (record.outcome for record in records if record is not None)
    assert (first.gpu_name, second.gpu_name) == ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    assert first.required_allocated_bytes == second.required_allocated_bytes
    # Expandable segments take what they need in pages, and keep less of it.
    assert second.peak_reserved_bytes != first.peak_reserved_bytes
    for trial in (own, other):
        snapshot = pickle.loads(snapshot_path(tmp_path, trial.trial_id).read_bytes())
        assert snapshot["segments"]
        assert {entry["action"] for entry in snapshot["device_traces"][0]} >= {"alloc", "free_completed"}


def test_without_being_asked_no_snapshot_is_written(tmp_path: Path) -> None:
    own = planned(small_spec())
    run_job(WorkerJob(trial=own, versions=VERSIONS, store_folder=str(tmp_path), stderr_path=str(tmp_path / "stderr")))
    assert RecordStore(tmp_path).find(own.trial_id) is not None
    assert not (tmp_path / "snapshots").exists()
