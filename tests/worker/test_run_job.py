"""A worker's job: one run, a record per card that it is valid for, and snapshots on request."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from simulating import small_spec

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import trial_id
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, UnlimitedCard, Versions
from profiler.domain.runs.readings import CategoryShare, OutOfMemory, Sample, StepPeak
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.emulation.card import Marks
from profiler.execution import EndOfSweepError, Place, WorkerJob
from profiler.simulation.extrapolation.left_out import StepsDifferError
from profiler.storage.files.trial_files import snapshot_path
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables, write_tables
from profiler.worker import run_job
from profiler.worker.cuda.measured import Measured

VERSIONS = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")


def planned(spec: TrialSpec) -> PlannedTrial:
    return PlannedTrial(trial_id=trial_id(spec, VERSIONS), grid="tests", label="full", spec=spec)


def test_one_run_writes_records_and_snapshots_of_its_siblings(tmp_path: Path) -> None:
    own = planned(small_spec(gpu="h100-80gb"))
    other = planned(replace(own.spec, gpu="h200-141gb", alloc_conf="expandable_segments:True"))
    run_job(
        WorkerJob(
            trial=own,
            versions=VERSIONS,
            store_folder=str(tmp_path),
            stderr_path=str(tmp_path / "stderr"),
            siblings=(other,),
            options=RunOptions(snapshot=True),
        )
    )
    store = RecordStore(tmp_path)
    records = [store.find(trial.trial_id) for trial in (own, other)]
    assert all(record is not None and record.outcome.status is Status.OK for record in records)
    first, second = (record.outcome for record in records if record is not None)
    assert (first.card.name, second.card.name) == ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    assert first.unlimited.required_allocated_bytes == second.unlimited.required_allocated_bytes
    # Expandable segments grow by pages and reserve less.
    assert second.peaks.reserved_bytes != first.peaks.reserved_bytes
    for trial in (own, other):
        snapshot = pickle.loads(snapshot_path(tmp_path, trial.trial_id).read_bytes())
        assert snapshot["segments"]
        assert {entry["action"] for entry in snapshot["device_traces"][0]} >= {"alloc", "free_completed"}


def test_without_the_option_no_snapshot_is_written(tmp_path: Path) -> None:
    own = planned(small_spec())
    run_job(WorkerJob(trial=own, versions=VERSIONS, store_folder=str(tmp_path), stderr_path=str(tmp_path / "stderr")))
    assert RecordStore(tmp_path).find(own.trial_id) is not None
    assert not (tmp_path / "snapshots").exists()


def test_an_emulated_trial_needs_the_emulated_driver(tmp_path: Path) -> None:
    own = planned(replace(small_spec(), backend=Backend.EMULATED))
    job = WorkerJob(trial=own, versions=VERSIONS, store_folder=str(tmp_path), stderr_path=str(tmp_path / "stderr"))
    with pytest.raises(EndOfSweepError, match="have not loaded the emulated driver"):
        run_job(job)
    assert RecordStore(tmp_path).find(own.trial_id) is None


def test_a_trial_on_the_cpu_gives_signs_of_life_and_uses_no_gpu(tmp_path: Path) -> None:
    spec = TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", max_prompt_length=6, max_completion_length=8, steps=1)
    own, heartbeat = planned(spec), tmp_path / "beat"
    run_job(
        WorkerJob(
            trial=own,
            versions=VERSIONS,
            store_folder=str(tmp_path),
            stderr_path=str(tmp_path / "stderr"),
            heartbeat_path=str(heartbeat),
        )
    )
    record = RecordStore(tmp_path).find(own.trial_id)
    assert record is not None
    assert (record.outcome.status, record.outcome.work.gpu_s) == (Status.OK, None)
    assert heartbeat.exists()
    assert not (tmp_path / "samples").exists()
    assert not (tmp_path / "snapshots").exists()


def test_what_was_measured_is_stored_with_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample(
        time_s=0.0,
        phase=None,
        step=0,
        device_used_bytes=1,
        process_used_bytes=None,
        utilisation_percent=None,
        power_watts=None,
        sm_clock_mhz=None,
    )
    peak = StepPeak(step=1, phase=Phase.FORWARD, peak_allocated_bytes=1, peak_reserved_bytes=2, time_s=0.1)
    outcome = builders.outcome_of(step_peaks=(peak,))
    asked: dict[str, object] = {}

    def run_real(spec: TrialSpec, model_config: object, **how: object) -> Measured:
        asked.update(how)
        return Measured(outcome=outcome, samples=(sample,), snapshot={"segments": [], "device_traces": [[]]})

    monkeypatch.setattr("profiler.worker.cuda.real.run_real", run_real)
    own = planned(TrialSpec(backend=Backend.CUDA, gpu=None, model="tiny"))
    run_job(
        WorkerJob(
            trial=own,
            versions=VERSIONS,
            store_folder=str(tmp_path),
            stderr_path=str(tmp_path / "stderr"),
            options=RunOptions(snapshot=True),
            place=Place(gpu_uuids=("GPU-1",)),
        )
    )
    assert (asked["gpu_uuid"], asked["snapshot"]) == ("GPU-1", True)
    record = RecordStore(tmp_path).find(own.trial_id)
    assert record is not None
    assert record.outcome.measured.step_peaks == (peak,)
    assert record.outcome.work.gpu_s is not None
    write_tables(tmp_path, [record], {})
    tables = read_tables(tmp_path)
    assert (len(tables.steps), len(tables.samples)) == (1, 1)
    assert pickle.loads(snapshot_path(tmp_path, own.trial_id).read_bytes())["segments"] == []


def test_a_measured_trial_is_stored_before_its_breakdown_and_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planned(TrialSpec(backend=Backend.CUDA, gpu=None, model="tiny"))
    measured = builders.outcome_of(peak_allocated_bytes=900, peak_phase=Phase.BACKWARD)
    before: list[TrialRecord | None] = []

    def breakdown_of(outcome: Outcome, *trial: object, **how: object) -> Outcome:
        before.append(RecordStore(tmp_path).find(own.trial_id))
        return builders.changed(outcome, breakdown=(CategoryShare(category=Category.WEIGHTS, size_bytes=900),))

    monkeypatch.setattr("profiler.worker.cuda.real.run_real", lambda *trial, **how: Measured(outcome=measured))
    monkeypatch.setattr("profiler.worker.cuda.attributed.breakdown_of", breakdown_of)
    folder, stderr = str(tmp_path), str(tmp_path / "stderr")
    for options in (RunOptions(), RunOptions(breakdown=True)):
        run_job(WorkerJob(trial=own, versions=VERSIONS, store_folder=folder, stderr_path=stderr, options=options))
    (stored,) = before
    assert stored is not None
    assert stored.outcome.breakdown.shares == ()
    record = RecordStore(tmp_path).find(own.trial_id)
    assert record is not None
    assert record.outcome.peaks.allocated_bytes == 900
    assert [share.size_bytes for share in record.outcome.breakdown.shares] == [900]


def run_emulated(folder: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[TrialSpec], Outcome]) -> TrialRecord:
    """Run a trial on an emulated card that ends as `ends` says, and return its record."""
    monkeypatch.setattr("profiler.worker.run.marks_of_this_process", Marks)
    monkeypatch.setattr("profiler.worker.cuda.real.run_real", lambda spec, *_, **__: Measured(outcome=ends(spec)))
    own = planned(TrialSpec(backend=Backend.EMULATED, gpu="t4-16gb", model="tiny"))
    run_job(WorkerJob(trial=own, versions=VERSIONS, store_folder=str(folder), stderr_path=str(folder / "stderr")))
    record = RecordStore(folder).find(own.trial_id)
    assert record is not None
    return record


def test_an_emulated_trial_without_memory_runs_again_on_an_unlimited_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oom = OutOfMemory(phase=Phase.FORWARD, requested_bytes=1)
    on_card = builders.outcome_of(Status.OOM, oom=oom, peak_allocated_bytes=10)
    unlimited = builders.outcome_of(peak_allocated_bytes=70, peak_reserved_bytes=80)

    # Without `gpu` nothing caps the unlimited card.
    record = run_emulated(tmp_path, monkeypatch, lambda spec: on_card if spec.gpu else unlimited)
    assert record.outcome.status is Status.OOM
    assert record.outcome.peaks.allocated_bytes == 10
    assert record.outcome.unlimited == UnlimitedCard(required_allocated_bytes=70, required_reserved_bytes=80)


def test_an_emulated_trial_that_fits_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_emulated(tmp_path, monkeypatch, lambda _: builders.outcome_of(peak_allocated_bytes=70))
    assert (record.outcome.status, record.outcome.unlimited) == (Status.OK, None)


def test_what_torch_refuses_on_an_emulated_card_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: TrialSpec) -> Outcome:
        raise RuntimeError("gemm is only supported for CUDA devices with compute capability 8.0 or higher")

    record = run_emulated(tmp_path, monkeypatch, refuses)
    assert record.outcome.status is Status.UNSUPPORTED
    assert record.outcome.card.name == "Tesla T4"


def test_a_trial_whose_decoding_steps_differ_is_decoded_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_real(spec: TrialSpec, *_: object, decoding: object, **__: object) -> Measured:
        if decoding is not None:
            raise StepsDifferError("they differ")
        return Measured(outcome=builders.outcome_of(peak_allocated_bytes=70))

    monkeypatch.setattr("profiler.worker.run.marks_of_this_process", Marks)
    monkeypatch.setattr("profiler.worker.cuda.real.run_real", run_real)
    own = planned(TrialSpec(backend=Backend.EMULATED, gpu="t4-16gb", model="tiny", max_completion_length=257))
    run_job(WorkerJob(trial=own, versions=VERSIONS, store_folder=str(tmp_path), stderr_path=str(tmp_path / "stderr")))
    record = RecordStore(tmp_path).find(own.trial_id)
    assert record is not None
    assert (record.outcome.status, record.outcome.peaks.allocated_bytes) == (Status.OK, 70)


def test_other_errors_of_an_emulated_trial_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: TrialSpec) -> Outcome:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        run_emulated(tmp_path, monkeypatch, fails)
