"""One run answers trials that differ only in the card."""

from dataclasses import replace

from witness import planned

from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend, PlannedTrial, run_key


def on(gpu: str, label: str = "answers_siblings", **changes: object) -> PlannedTrial:
    trial = planned(f"{gpu}-{len(changes)}", label)
    return replace(trial, spec=replace(trial.spec, backend=Backend.SIMULATED, gpu=gpu, **changes))


def ran(tmp_path) -> list[str]:
    return [line.split()[1] for line in (tmp_path / "notes.txt").read_text().splitlines()]


def test_cards_that_run_the_same_kernels_share_a_run(run, tmp_path):
    plan = [on("l40s-48gb"), on("h100-80gb"), on("a100-80gb"), on("h200-141gb"), on("l40s-48gb", alloc_conf="x:1")]
    witness = run(plan)
    assert ran(tmp_path) == ["l40s-48gb-0", "h100-80gb-0"]
    assert set(witness.records) == {trial.trial_id for trial in plan}
    assert all(record.outcome.status is Status.OK for record in witness.records.values())
    assert [what for what, _ in witness.calls].count("started") == 2


def test_a_sibling_without_a_record_runs_by_itself(run, tmp_path):
    witness = run([on("h100-80gb"), on("h200-141gb", "forgotten")])
    assert ran(tmp_path) == ["h100-80gb-0", "h200-141gb-0"]
    assert len(witness.records) == 2


def test_a_sibling_that_another_sweep_answered_meanwhile_does_not_run_again(run, store, tmp_path):
    plan = [on("h100-80gb"), on("h200-141gb"), on("a100-80gb")]

    first = run([plan[1]]).records[plan[1].trial_id]  # another sweep, after the plan was made
    witness = run(plan)
    assert witness.records[plan[1].trial_id] == first
    assert store.find(plan[1].trial_id) == first
    assert ran(tmp_path) == ["h200-141gb-0", "h100-80gb-0", "a100-80gb-0"]


def test_another_seed_or_real_hardware_is_another_run():
    trial = on("h100-80gb").spec
    assert run_key(trial) == run_key(replace(trial, gpu="h200-141gb", alloc_conf="expandable_segments:True"))
    assert run_key(trial) != run_key(replace(trial, seed=1))
    assert run_key(trial) != run_key(replace(trial, gpu="a100-80gb"))
    assert run_key(replace(trial, backend=Backend.CUDA)) is None
