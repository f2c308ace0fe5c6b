"""Measured sweeps with fakes: identity by card and driver, GPUs as slots, pruning, cost."""

from dataclasses import replace

import builders
import pytest
from sweep_fakes import H100, VERSIONS

from profiler.config.trials.identity import trial_id
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_GPU_UNUSABLE
from profiler.domain.runs.outcome import Breakdown, Status, TrialRecord
from profiler.execution import GpuUnusableError
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.sweep.main import main

GRID = "+grid=lora_vs_full"


def gpus(*names, driver="580.65.06"):
    found = tuple(
        VisibleGpu(uuid=f"GPU-{place}", name=name, memory_bytes=150 * 2**30) for place, name in enumerate(names)
    )
    return VisibleGpus(gpus=found, note="", driver_version=driver)


def test_the_sampling_period_is_passed_on(sweep, world):
    world.visible = H100
    sweep(GRID, "model=tiny")
    sweep(GRID, "model=tiny", "resume=false", "sample_period_s=null")
    assert [how["options"].sample_period_s for _, how in world.runs] == [0.01, None]


@pytest.mark.parametrize(
    ("backend", "status", "again"),
    [
        ("cuda", Status.OOM, True),
        ("simulated", Status.OK, True),
        ("cpu", Status.OK, False),
        ("simulated", Status.UNSUPPORTED, False),
    ],
)
def test_only_a_possible_snapshot_causes_a_new_run(sweep, world, backend, status, again):
    world.visible = H100
    world.statuses = {"tiny": status}
    for more in ([], ["snapshot=true"]):
        sweep(GRID, "model=tiny", f"backend={backend}", *more)
    assert len(world.runs) == (2 if again else 1)


@pytest.mark.parametrize(
    ("backend", "outcome", "again"),
    [
        ("cuda", builders.outcome_of(Status.OK), True),
        ("cuda", builders.outcome_of(Status.OOM), False),
        ("cuda", replace(builders.outcome_of(), breakdown=Breakdown(problem="its own run ended")), False),
        ("simulated", builders.outcome_of(Status.OK), False),
    ],
    ids=["measured without", "out of memory", "asked before", "simulated"],
)
def test_only_a_possible_breakdown_causes_a_new_run(sweep, world, backend, outcome, again):
    world.visible = H100
    words = (GRID, "model=tiny", f"backend={backend}")
    sweep(*words)
    for record in world.store.read_all():
        world.store.write(replace(record, outcome=outcome))
    sweep(*words, "breakdown=true")
    assert [how["options"].breakdown for _, how in world.runs] == ([False, True] if again else [False])


def test_all_gpus_of_the_machine_are_slots(sweep, world):
    world.visible = gpus("NVIDIA H200", "NVIDIA H200")
    sweep(GRID, "model=tiny")
    how = world.runs[0][1]
    assert (how["options"].jobs, how["gpu_uuids"]) == (None, ("GPU-0", "GPU-1"))


@pytest.mark.parametrize(
    ("names", "seen"),
    [(("NVIDIA H200",), "only 1 is visible"), (("NVIDIA H200", "NVIDIA L40S", "NVIDIA H200"), "only 2 are visible")],
)
def test_more_processes_than_visible_gpus_are_refused(sweep, world, names, seen):
    world.visible = gpus(*names)
    code, _, err = sweep(GRID, "model=tiny", "optim=adamw_torch", "num_processes=4", "distributed_type=fsdp")
    assert code == 2
    assert f"num_processes=4: needs 4 GPUs of one kind, and {seen}. Use at most num_processes={seen[5]}" in err
    assert not world.runs


def test_as_many_processes_as_visible_gpus_run(sweep, world):
    world.visible = gpus("NVIDIA H200", "NVIDIA H200")
    assert sweep(GRID, "model=tiny", "num_processes=2", "distributed_type=multi_gpu")[0] == 0
    assert {trial.spec.num_processes for trial in world.runs[0][0]} == {2}


def test_deepspeed_is_needed_where_trials_are_measured(sweep, world):
    world.visible = gpus("NVIDIA H200", "NVIDIA H200")
    code, _, err = sweep(GRID, "model=tiny", "num_processes=2", "distributed_type=deepspeed", "optim=adamw_torch")
    assert code == 2
    assert "distributed_type=deepspeed: DeepSpeed is not installed in the Python of the trials" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backend=cpu", "distributed_type=fsdp"], "distributed_type=fsdp: shards on GPUs only"),
        (["backend=simulated", "distributed_type=multi_gpu"], "num_processes=2: a sweep runs several GPUs with"),
        (
            ["backend=cuda", "distributed_type=deepspeed", "zero_stage=3", "tuning=qlora"],
            "tuning=qlora: a sweep does not make weights in 4 bits with zero_stage=3",
        ),
    ],
)
def test_several_processes_that_no_sweep_runs_are_refused(sweep, world, words, sentence):
    code, _, err = sweep(GRID, "model=tiny", "optim=adamw_torch", "num_processes=2", *words)
    assert (code, sentence in err, world.runs) == (2, True, []), err


def test_one_table_is_about_one_kind_of_card(sweep, world):
    world.visible = gpus("NVIDIA H200", "NVIDIA L40S", "NVIDIA H200")
    _, out, _ = sweep(GRID, "model=tiny")
    assert world.runs[0][1]["gpu_uuids"] == ("GPU-0", "GPU-2")
    assert "Only NVIDIA H200 is used, not NVIDIA L40S. Set CUDA_VISIBLE_DEVICES to choose." in out


def test_simulated_trials_use_no_gpu_and_do_not_depend_on_it(sweep, world):
    world.visible = gpus("NVIDIA H200")
    sweep(GRID, "model=tiny", "backend=simulated")
    plan, how = world.runs[0]
    assert how["gpu_uuids"] == ()
    assert {trial.trial_id for trial in plan} == {trial_id(trial.spec, VERSIONS) for trial in plan}


@pytest.mark.parametrize(
    "other",
    [gpus("NVIDIA H200", driver="590.1"), gpus("NVIDIA H100 80GB HBM3")],
    ids=["another driver", "another card"],
)
def test_another_card_or_driver_is_another_trial(sweep, world, other):
    """Row 18: never mixed silently."""
    world.visible = gpus("NVIDIA H200")
    sweep(GRID, "model=tiny")
    world.visible = other
    sweep(GRID, "model=tiny")
    first, second = ({trial.trial_id for trial in plan} for plan, _ in world.runs)
    assert len(first) == len(second) == 5
    assert not first & second
    assert [trial.spec for trial in world.runs[0][0]] == [trial.spec for trial in world.runs[1][0]]


def test_other_versions_are_other_trials(world, tmp_path, capsys):
    world.visible = gpus("NVIDIA H200")
    for torch in ("2.13.0", "2.14.0"):
        parts = world.parts(installed_versions=lambda torch=torch: replace(VERSIONS, torch=torch))
        main([GRID, "model=tiny", f"results_dir={tmp_path}"], parts=parts)
    first, second = ({trial.trial_id for trial in plan} for plan, _ in world.runs)
    assert not first & second


def test_measured_trials_run_in_order_of_memory(sweep, world):
    world.visible = H100
    sweep("+grid=completion_length", "model=qwen2.5-0.5b", "max_completion_length=1024,256,512")
    plan, how = world.runs[0]
    assert [trial.spec.max_completion_length for trial in plan] == sorted(
        trial.spec.max_completion_length for trial in plan
    )
    alike = [trial.spec for trial in plan if trial.spec.tuning is plan[0].spec.tuning]
    assert how["pruning"].needs_at_most(alike[0], alike[-1])


def test_prune_false_keeps_the_order_and_implies_nothing(sweep, world):
    world.visible = H100
    sweep("+grid=completion_length", "model=qwen2.5-0.5b", "max_completion_length=1024,256", "prune=false")
    plan, how = world.runs[0]
    assert how["pruning"] is None
    assert plan[0].spec.max_completion_length == 1024


def test_an_out_of_memory_of_an_earlier_sweep_implies_others(sweep, world):
    world.visible = H100
    world.statuses = {"qwen2.5-0.5b": Status.OOM}
    sweep("+grid=completion_length", "model=qwen2.5-0.5b", "max_completion_length=256")
    sweep("+grid=completion_length", "model=qwen2.5-0.5b", "max_completion_length=256,512")
    plan, how = world.runs[1]
    assert {trial.spec.max_completion_length for trial in plan} == {512}
    assert all(how["pruning"].implied(trial).status is Status.IMPLIED for trial in plan)


def test_an_out_of_memory_of_the_whole_card_implies_one_of_the_capped_card(sweep, world):
    world.visible = H100
    world.statuses = {"qwen2.5-14b": Status.OOM}
    sweep(GRID, "model=qwen2.5-14b")
    sweep(GRID, "model=qwen2.5-14b", "gpu=rtx-4090-24gb")
    plan, how = world.runs[1]
    assert all(how["pruning"].implied(trial).status is Status.IMPLIED for trial in plan)


@pytest.mark.parametrize(
    "changes",
    [{"driver_version": "590.0"}, {"gpus": (replace(H100.gpus[0], name="NVIDIA L40S"),)}],
    ids=["driver", "card"],
)
def test_an_out_of_memory_of_another_card_or_driver_implies_nothing(sweep, world, changes):
    world.visible = replace(H100, **changes)
    world.statuses = {"qwen2.5-14b": Status.OOM}
    sweep(GRID, "model=qwen2.5-14b")
    world.visible = H100
    sweep(GRID, "model=qwen2.5-14b", "gpu=rtx-4090-24gb")
    plan, how = world.runs[1]
    assert all(how["pruning"].implied(trial) is None for trial in plan)


def test_a_card_may_report_slightly_less_memory_than_the_table_of_cards(sweep, world):
    known = KNOWN_GPUS["h100-80gb"]
    reported = replace(H100.gpus[0], name=known.title, memory_bytes=known.memory_bytes * 99 // 100)
    world.visible = replace(H100, gpus=(reported,))
    code, _, _ = sweep(GRID, "model=tiny", "gpu=h100-80gb")
    assert code == 0


def test_implied_rows_are_answers_until_prune_is_false(sweep, world):
    world.visible = H100
    world.statuses = {"tiny": Status.IMPLIED}
    assert sweep(GRID, "model=tiny")[0] == 0
    sweep(GRID, "model=tiny")
    assert len(world.runs) == 1
    sweep(GRID, "model=tiny", "prune=false")
    assert len(world.runs[1][0]) == 5


def test_gpu_time_and_cost_are_printed_at_the_end(sweep, world):
    world.visible = H100

    def run_trials(plan, **how):
        for trial in plan:
            outcome = builders.outcome_of(gpu_s=72.0, not_measured="power: Not Supported")
            world.store.write(TrialRecord.of(trial, versions=VERSIONS, outcome=outcome))
        return ("GPU GPU-1 is not used any more: it broke.",)

    world.run_trials = run_trials
    code, out, err = sweep(GRID, "model=tiny", "price_per_hour=3")
    assert code == 0
    assert out.count("Not measured: power: Not Supported.") == 1
    assert "GPU time of these trials: 360 s (0.10 h); 0.30 at 3 an hour." in out
    assert err == "GPU GPU-1 is not used any more: it broke.\n"


def test_no_gpu_left_is_exit_code_33_and_keeps_the_records(sweep, world):
    world.visible = H100

    def run_trials(plan, **how):
        raise GpuUnusableError("5 trials were not run: no GPU is left.")

    world.run_trials = run_trials
    code, _, err = sweep(GRID, "model=tiny")
    assert code == EXIT_GPU_UNUSABLE
    assert err == "5 trials were not run: no GPU is left.\n"
    assert world.tables["records"] == []


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("sample_period_s=0", "sample_period_s=0"),
        ("stall_s=0", "stall_s=0"),
        ("warm_up_s=0", "warm_up_s=0"),
        ("price_per_hour=-1", "price_per_hour=-1"),
        ("prune=maybe", "prune=maybe"),
    ],
)
def test_wrong_values_are_reported_before_anything_starts(sweep, world, word, text):
    code, _, err = sweep(GRID, word)
    assert code == 2
    assert text in err
    assert not world.runs
