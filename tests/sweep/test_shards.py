"""`shard=k/n`: every trial is in exactly one part, whatever versions the machines have."""

from dataclasses import replace

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_fakes import VERSIONS

from profiler.domain.machines.engines import Shard, shard_of
from profiler.domain.trials.trial import run_key
from profiler.sweep.prepared.plan import of_shard, plan_trials

SPECS = [
    builders.spec(num_generations=count, gpu=gpu, model=model)
    for count in (2, 4, 8)
    for gpu in ("h100-80gb", "rtx-4090-24gb", "rtx-3090-24gb")
    for model in builders.QWEN[:2]
]
PLAN = plan_trials("made_up", SPECS, VERSIONS)


FEW = settings(max_examples=15)


def shards(plan, count):
    return [of_shard(plan, Shard(number=number, count=count)) for number in range(1, count + 1)]


@FEW
@given(st.permutations(range(len(SPECS))), st.integers(1, 20))
def test_each_trial_is_in_exactly_one_shard_in_the_order_of_the_plan(order, count):
    plan = [PLAN[place] for place in order]
    parts = shards(plan, count)
    assert sorted(trial.trial_id for part in parts for trial in part) == sorted(trial.trial_id for trial in plan)
    for part in parts:
        own = {trial.trial_id for trial in part}
        assert part == [trial for trial in plan if trial.trial_id in own]


@FEW
@given(st.permutations(range(len(SPECS))), st.integers(1, 9))
def test_order_and_versions_do_not_decide_the_shard(order, count):
    others = plan_trials("made_up", [SPECS[place] for place in order], replace(VERSIONS, torch="9.9", profiler="9"))
    assert [{trial.spec for trial in part} for part in shards(PLAN, count)] == [
        {trial.spec for trial in part} for part in shards(others, count)
    ]


@FEW
@given(st.integers(1, 20))
def test_shards_are_of_equal_size_and_keep_the_trials_of_one_run_together(count):
    runs = [{run_key(trial.spec) for trial in part} for part in shards(PLAN, count)]
    sizes = [len(each) for each in runs]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len({run_key(spec) for spec in SPECS}) < len(SPECS)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "1/2/3", "-1/2", "1/9999999", "a/b", "1.0/2", " 1/2"])
def test_what_names_no_shard(text):
    assert shard_of(text) is None


def test_two_shards_run_what_one_sweep_runs(sweep, world, tmp_path):
    for number in (1, 2):
        code, out, err = sweep("+grid=lora_vs_full", f"shard={number}/2", results_dir=tmp_path / str(number))
        assert (code, err) == (0, "")
        assert f"Shard {number}/2 has {(13, 12)[number - 1]} of 25 trials." in out
    ids = [trial.trial_id for plan, _ in world.runs for trial in plan]
    assert len(set(ids)) == len(ids) == 25


def test_a_shard_without_trials_ends_well(sweep, world):
    code, out, err = sweep("+grid=lora_vs_full", "shard=30/30")
    assert (code, err) == (0, "")
    assert out.endswith("Shard 30/30 has 0 of 25 trials.\n")
    assert not world.runs
