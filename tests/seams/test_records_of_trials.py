"""What a worker stores where a seam has moved, or where a version was never tested."""

from dataclasses import replace
from pathlib import Path

import pytest
from simulating import small_spec
from trl import GRPOTrainer
from trl.kernels import chunked_logprob

from profiler.config.trials.identity import trial_id
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.runs.outcome import Status, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution import WorkerJob
from profiler.seams import checked
from profiler.seams.checked import note_on_versions
from profiler.storage.stores.record_store import RecordStore
from profiler.worker import run_job

VERSIONS = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")


def records(folder: Path, *specs: TrialSpec) -> list[TrialRecord]:
    """The records of one job: the first specification's, and its siblings'."""
    own, *siblings = (
        PlannedTrial(trial_id=trial_id(spec, VERSIONS), grid="tests", label="full", spec=spec) for spec in specs
    )
    stderr = str(folder / "stderr")
    run_job(
        WorkerJob(trial=own, siblings=tuple(siblings), versions=VERSIONS, store_folder=str(folder), stderr_path=stderr)
    )
    found = [RecordStore(folder).find(trial.trial_id) for trial in (own, *siblings)]
    assert None not in found
    return [record for record in found if record is not None]


def test_a_moved_seam_refuses_a_trial_and_its_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chunked_logprob, "_addmm_fp32")
    spec = small_spec(gpu="h100-80gb")
    for record in records(tmp_path, spec, replace(spec, gpu="h200-141gb")):
        assert record.outcome.status is Status.UNSUPPORTED
        assert "trl.kernels.chunked_logprob._addmm_fp32 of trl 1.16.0 is missing" in record.outcome.message


def test_a_moved_seam_refuses_an_emulated_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has the version of the profiler, so that a later one runs it again."""
    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    (record,) = records(tmp_path, small_spec(backend=Backend.EMULATED))
    assert record.outcome.status is Status.UNSUPPORTED
    assert "GRPOTrainer._calculate_rewards of trl 1.16.0 is missing" in record.outcome.message


def test_a_real_trial_is_refused_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs again as soon as the profiler supports the installed versions: its name does not change then."""
    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    with pytest.raises(UnsupportedTrialError, match=r"GRPOTrainer\._calculate_rewards of trl 1\.16\.0 is missing"):
        records(tmp_path, TrialSpec(backend=Backend.CUDA, gpu=None, model="tiny"))
    assert RecordStore(tmp_path).read_all() == ()


def test_a_version_that_was_never_tested_marks_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "installed", lambda library: "1.17.0" if library == "trl" else None)
    note_on_versions.cache_clear()
    try:
        (record,) = records(tmp_path, small_spec())
    finally:
        note_on_versions.cache_clear()
    assert record.outcome.status is Status.OK
    assert record.outcome.verdict.unavailable.startswith("whether figures hold with trl 1.17.0, which was never tested")


def test_tested_versions_leave_no_mark(tmp_path: Path) -> None:
    (record,) = records(tmp_path, small_spec())
    assert record.outcome.verdict.unavailable == ""
