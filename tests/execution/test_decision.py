"""Whether a trial must run is decided in one pure function."""

from dataclasses import replace

import pytest
from witness import VERSIONS, on_cuda, planned

from profiler.config.options.run_options import RunOptions
from profiler.domain.memory import Category
from profiler.domain.runs.outcome import Breakdown, Outcome, Status, TrialRecord, Verdict
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.execution.trials import must_run, stored_answer
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot

MEASURED, ON_CPU = on_cuda("a"), planned("b")
SIMULATED = replace(ON_CPU, spec=replace(ON_CPU.spec, backend=Backend.SIMULATED, gpu="h100-80gb"))
WITH_BREAKDOWN = Outcome(
    verdict=Verdict(status=Status.OK),
    breakdown=Breakdown(shares=(CategoryShare(category=Category.WEIGHTS, size_bytes=1),)),
)
WITHOUT_BREAKDOWN = Outcome(verdict=Verdict(status=Status.OK), breakdown=Breakdown(problem="its own run ended"))


def record(trial: PlannedTrial, outcome: Status | Outcome) -> TrialRecord:
    if isinstance(outcome, Status):
        outcome = Outcome(verdict=Verdict(status=outcome))
    return TrialRecord.of(trial, versions=VERSIONS, outcome=outcome)


@pytest.mark.parametrize("status", Status)
def test_a_trial_with_an_answer_need_not_run_and_any_other_must(status):
    assert must_run(record(MEASURED, status), RunOptions(), has_snapshot=False) is not status.answered


def test_without_a_record_or_without_resume_it_must_run():
    assert must_run(None, RunOptions(), has_snapshot=True)
    assert must_run(record(MEASURED, Status.OK), RunOptions(resume=False), has_snapshot=True)


@pytest.mark.parametrize("prune", [True, False])
def test_an_implied_answer_counts_while_pruning_is_on(prune):
    options = RunOptions(prune=prune, snapshot=True, breakdown=True)
    assert must_run(record(MEASURED, Status.IMPLIED), options, has_snapshot=False) is not prune


@pytest.mark.parametrize(
    ("trial", "outcome", "must"),
    [
        (MEASURED, Status.OK, True),
        (MEASURED, Status.OOM, False),
        (MEASURED, WITH_BREAKDOWN, False),
        (MEASURED, WITHOUT_BREAKDOWN, False),
        (SIMULATED, Status.OK, False),
        (ON_CPU, Status.OK, False),
    ],
)
def test_a_missing_breakdown_is_measured_once(trial, outcome, must):
    assert must_run(record(trial, outcome), RunOptions(breakdown=True), has_snapshot=False) is must
    assert not must_run(record(trial, outcome), RunOptions(), has_snapshot=False)


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize(
    ("trial", "status", "can_have_one"),
    [
        (MEASURED, Status.OK, True),
        (MEASURED, Status.OOM, True),
        (SIMULATED, Status.OK, True),
        (SIMULATED, Status.UNSUPPORTED, False),
        (ON_CPU, Status.OK, False),
    ],
)
def test_a_missing_snapshot_is_made_where_there_can_be_one(trial, status, can_have_one, has_snapshot):
    must = must_run(record(trial, status), RunOptions(snapshot=True), has_snapshot=has_snapshot)
    assert must is (can_have_one and not has_snapshot)


def test_a_stored_answer_is_looked_up_with_its_snapshot(store, tmp_path):
    stored = record(SIMULATED, Status.OK)
    store.write(stored)
    assert stored_answer("b", store=store, options=RunOptions()) == stored
    assert stored_answer("b", store=store, options=RunOptions(snapshot=True)) is None
    write_memory_snapshot(snapshot_path(tmp_path, "b"), {})
    assert stored_answer("b", store=store, options=RunOptions(snapshot=True)) == stored
    assert stored_answer("b", store=store, options=RunOptions(resume=False)) is None
