"""GPU-seconds used and saved, and their cost."""

from dataclasses import replace

import builders

from profiler.analysis.times.durations import gpu_time, gpu_time_of
from profiler.domain.machines.engines import Money
from profiler.domain.runs.outcome import Status


def record(seed, **outcome):
    return builders.record(builders.spec(seed=seed), outcome=builders.outcome_of(**outcome))


def test_used_time_is_the_sum_and_saved_time_that_of_the_implying_trials():
    fits = record(1, status=Status.OK, gpu_s=1000.0)
    ran_out = record(2, status=Status.OOM, gpu_s=80.0)
    implied = [record(seed, status=Status.IMPLIED, implied_by=ran_out.trial_id) for seed in (3, 4)]
    spent = gpu_time([fits, ran_out, *implied])
    assert (spent.used_s, spent.saved_s, spent.implied) == (1080.0, 160.0, 2)
    assert spent.sentence(price=Money(amount=2.5)) == (
        "GPU time of these trials: 1080 s (0.30 h), about 160 s saved by not running 2 trials; 0.75 at 2.5 an hour."
    )


def test_without_a_price_there_is_no_cost_and_without_a_gpu_no_sentence():
    alone = gpu_time([record(1, status=Status.OK, gpu_s=36.0)])
    assert alone.sentence(price=None) == "GPU time of these trials: 36 s (0.01 h)."
    assert gpu_time([record(1, status=Status.OK)]) is None
    assert gpu_time([]) is None


def test_a_trial_implied_by_another_plan_adds_no_saved_time():
    implied = record(2, status=Status.IMPLIED, implied_by="another")
    spent = gpu_time([record(1, status=Status.OK, gpu_s=36.0), implied])
    assert replace(spent, used_s=0.0).saved_s == 0.0
    assert spent.implied == 1


def test_the_table_has_the_same_gpu_time_as_the_records(tmp_path):
    ran_out = record(2, status=Status.OOM, gpu_s=80.0)
    records = [record(1, status=Status.OK, gpu_s=1000.0), ran_out]
    records += [record(seed, status=Status.IMPLIED, implied_by=ran_out.trial_id) for seed in (3, 4)]
    assert gpu_time_of(builders.tables(tmp_path, records).runs) == gpu_time(records)
    assert gpu_time_of(builders.tables(tmp_path / "none", builders.records([builders.spec()])).runs) is None
