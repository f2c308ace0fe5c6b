"""Lengths of the rows of a run: laws, growth, truncation, draws; and lengths and trends of logs."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import fmean, median, pstdev
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.trainer_pt_utils import get_length_grouped_indices

from profiler.analysis.forecast.lengths import (
    Distribution,
    Law,
    Recorded,
    RowCounts,
    RunLengths,
    SamplingStrategy,
    distribution_of,
    grouped_by_length,
    sampled,
    step_widths,
)
from profiler.analysis.forecast.training_log import (
    LogError,
    LoggedLengths,
    LoggedStep,
    Trainer,
    logged_lengths,
    logged_prompts,
    read_log,
    trend,
)
from profiler.config.trials.specification import parse_point
from profiler.domain.memory import GIB, Phase

COUNTS = RowCounts(
    steps=100, rows_per_step=8, rows_at_once=16, rows_per_prompt=4, longest_prompt=300, longest_completion=1000
)
MANY = 20_000
PAIRS = {
    "rows_per_step": 4,
    "rows_at_once": 4,
    "rows_per_prompt": 2,
    "longest_prompt": 9,
    "longest_row": 20,
    "pads_apart": False,
}


def spec_of(**keys):
    from profiler.config.models.lookup import builtin_architecture

    return parse_point({"backend": "simulated", "model": "tiny", **keys}, architecture_of=builtin_architecture)


@pytest.mark.parametrize(
    ("text", "mean", "middle", "spread"),
    [
        ("420", 420, 420, 0),
        ("uniform(100,300)", 200, 200, 200 / math.sqrt(12)),
        ("normal(200, 30)", 200, 200, 30),
        # The median is 420 exp(-0.9^2 / 2) = 280.1; the variance mean^2 (exp(0.81) - 1).
        ("lognormal(420,0.9)", 420, 280.1, 420 * math.sqrt(math.exp(0.81) - 1)),
    ],
)
def test_a_law_has_its_mean_median_and_spread(text, mean, middle, spread):
    law = distribution_of(text, least=1)
    found = law.lengths(Random(1), MANY, 1)
    assert law.mean == mean
    assert fmean(found) == pytest.approx(mean, rel=0.03)
    assert median(found) == pytest.approx(middle, rel=0.03)
    assert pstdev(found) == pytest.approx(spread, rel=0.15, abs=1e-9)
    assert distribution_of(str(law), least=1) == law


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0", "at least 1"), ("many", "must be a number, uniform"), ("normal(5)", "must be a number"),
        ("lognormal(400,0.9,1)", "must be a number"), ("uniform(9,3)", "lower number first"),
        ("normal(400,-1)", "sigma of at least 0"), ("lognormal(400,11)", "at most 10"), ("nan", "at most 100,000,000"),
        ("1e9", "at most 100,000,000"), ("", "must be a number"),
    ],
)  # fmt: skip
def test_what_names_no_law_is_a_sentence(text, problem):
    with pytest.raises(ValueError, match=problem):
        distribution_of(text, least=1)


def test_draws_are_cut_counted_and_the_same_for_a_seed():
    lengths = RunLengths(prompts=Distribution(Law.UNIFORM, 200, 400), completions=Distribution(Law.LOGNORMAL, 600, 0.9))
    found = sampled(lengths, COUNTS, 3)
    assert found == sampled(lengths, COUNTS, 3) != sampled(lengths, COUNTS, 4)
    assert (len(found.draw.prompts), len(found.draw.completions)) == (200, 800)
    assert max(found.draw.prompts) == 300 and max(found.draw.completions) == 1000
    assert min((*found.draw.prompts, *found.draw.completions)) >= 1
    assert found.cut_completions == pytest.approx(found.draw.completions.count(1000), abs=1)
    assert found.cut_prompts == pytest.approx(100, abs=25)


@pytest.mark.parametrize(
    ("growth", "step", "expected"), [("1", 50, 100), ("2", 1, 100), ("2", 100, 200), ("3", 50, 100 * (1 + 2 * 49 / 99))]
)
def test_completions_grow_evenly_to_the_multiple(growth, step, expected):
    lengths = RunLengths(
        prompts=None, completions=Distribution(Law.FIXED, 100), growth=distribution_of(growth, least=0.01)
    )
    rows = sampled(lengths, COUNTS, 0).draw.completions
    own = rows[(step - 1) * 8 : step * 8]
    assert set(own) == {round(expected)}
    means = [fmean(rows[place : place + 8]) for place in range(0, 800, 8)]
    assert all(after >= before for before, after in pairwise(means))


def test_each_row_of_a_data_set_comes_once_per_epoch():
    values = tuple(range(1, 101))
    counts = RowCounts(
        steps=30, rows_per_step=10, rows_at_once=10, rows_per_prompt=0, longest_prompt=0, longest_completion=90
    )
    rows = sampled(RunLengths(prompts=None, completions=Recorded(values, is_data_set=True)), counts, 0).draw.completions
    expected = sorted(min(90, each) for each in values)
    assert [sorted(rows[place : place + 100]) for place in (0, 100, 200)] == [expected] * 3
    assert rows[:100] != rows[100:200]


@pytest.mark.parametrize(
    ("keys", "rows_per_step", "rows", "longest"),
    [
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "steps_per_generation": 16,
          "num_generations": 8}, 32, 320, 786),
        ({"steps_per_generation": 16, "num_generations": 4}, 16, 192, 786),
        ({"recipe": "sft", "max_length": 2048}, 16, 160, 2048),
        ({"recipe": "dpo", "max_length": 1024}, 32, 320, 1024),
    ],
    ids=["grpo", "generated beyond the last step", "sft", "pairs"],
)  # fmt: skip
def test_rows_of_a_run_by_hand(keys, rows_per_step, rows, longest):
    counts = RowCounts.of(spec_of(**keys), 10)
    assert (counts.rows_per_step, counts.rows, counts.longest_completion) == (rows_per_step, rows, longest)


# ---- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "lengths", "typical", "rare"),
    [
        # One row per step, each once.
        ({}, RunLengths(prompts=None, completions=Recorded((10, 20, 30), is_data_set=True)), (0, 20), (0, 30)),
        # A generation of two prompts by two completions has the longest of each: 7 and 50, then 4 and 50.
        (
            {"rows_per_step": 4, "rows_at_once": 4, "rows_per_prompt": 2, "longest_prompt": 9},
            RunLengths(prompts=Recorded((3, 7, 4, 4), is_data_set=True), completions=Distribution(Law.FIXED, 50.0)),
            (7, 50),
            (7, 50),
        ),
        # Two pairs: `max_length` cuts completions after 3 and 4 tokens to 17 and 16 of 20. The longest row has 20.
        (
            PAIRS,
            RunLengths(prompts=Recorded((3, 7, 4, 4), is_data_set=True), completions=Distribution(Law.FIXED, 50.0)),
            (3, 17),
            (4, 16),
        ),
    ],
)
def test_widths_of_steps_by_hand(counts, lengths, typical, rare):
    whole = {"steps": 3, "rows_per_step": 1, "rows_at_once": 1, "rows_per_prompt": 0, "longest_prompt": 0}
    found = step_widths(lengths, RowCounts(**(whole | counts), longest_completion=100))
    assert [(each.prompt, each.completion) for each in found.values()] == [typical, rare]
    assert list(found) == [0.5, 0.999]


class InOrder(Random):
    """Shuffles nothing."""

    def sample(self, population, k, **_):
        return list(population)[:k]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 5))
def test_rows_are_grouped_as_transformers_groups_them(lengths, batch):
    with mock.patch("torch.randperm", lambda count, **_: torch.arange(count)):
        theirs = [lengths[row] for row in get_length_grouped_indices(lengths, batch)]
    assert grouped_by_length(lengths, batch, InOrder()) == theirs
    assert sorted(grouped_by_length(lengths, batch, Random(1))) == sorted(lengths)


def test_grouped_rows_by_hand():
    assert grouped_by_length([3, 9, 5, 7], 1, InOrder()) == [9, 3, 5, 7]
    assert grouped_by_length([1, 2, 3, 4, 5, 6, 12, 8, 9, 10, 11, 7], 1, InOrder()) == [
        *(12, 2, 1), *(6, 5, 4), *(3, 9, 8), *(11, 10, 7),
    ]  # fmt: skip


def test_each_epoch_is_grouped_by_itself():
    lengths = RunLengths(
        prompts=None,
        completions=Recorded(tuple(range(1, 41)), is_data_set=True),
        train_sampling_strategy=SamplingStrategy.GROUP_BY_LENGTH,
    )
    counts = RowCounts(
        steps=20, rows_per_step=4, rows_at_once=4, rows_per_prompt=0, longest_prompt=0, longest_completion=100
    )
    rows = sampled(lengths, counts, 1).draw.completions
    assert (rows[0], rows[40]) == (40, 40)
    assert sorted(rows[:40]) == sorted(rows[40:]) == list(range(1, 41))
    assert (
        rows != sampled(replace(lengths, train_sampling_strategy=SamplingStrategy.RANDOM), counts, 1).draw.completions
    )


def entry(step, mean=400.0, shortest=100.0, longest=900.0, **others):
    own = {"completions/mean_length": mean, "completions/min_length": shortest, "completions/max_length": longest}
    return {"step": step, **own, **others}


def state(entries, **others):
    return json.dumps({"max_steps": 700, **others, "log_history": entries}, indent=2)


def test_a_log_of_trl_is_read():
    memory = {"vram/allocated_gib/rollout": 10.5, "vram/reserved_gib": 12.0, "num_tokens": 38_400}
    log = read_log(state([entry(1, **memory, **{"completions/clipped_ratio": 0.25}), {"step": 1000, "eval_loss": 1.0}]))
    (step,) = log.steps
    assert (log.trainer, log.planned_steps, step.step, step.mean, step.shortest, step.longest) == (
        *(Trainer.TRL, 700, 1), *(400, 100, 900),
    )  # fmt: skip
    assert (step.clipped, step.tokens, step.reserved_bytes) == (0.25, 38_400, 12 * GIB)
    assert step.allocated_bytes == {Phase.ROLLOUT: 10.5 * GIB}


VERL = (
    "(TaskRunner pid=7) step:{step} - actor/loss:0.1 - response_length/mean:np.float64(512.5) "
    "- response_length/max:1024.0 - response_length/min:20.0 - response_length/clip_ratio:0.5 "
    "- prompt_length/mean:80.0 - prompt_length/max:99.0 - prompt_length/min:60.0 "
    "- perf/max_memory_allocated_gb:31.5 - perf/max_memory_reserved_gb:36.0"
)


@pytest.mark.parametrize(("kind", "role"), [("console", ""), ("file", ""), ("file", "actor/")])
def test_a_log_of_verl_is_read(kind, role):
    values = {"response_length/mean": 512.5, "response_length/max": 1024.0, "response_length/min": 20.0}
    values |= {"prompt_length/mean": 80.0, "prompt_length/min": 60.0, "prompt_length/max": 99.0}
    values |= {"response_length/clip_ratio": 0.5, f"{role}perf/max_memory_allocated_gb": 31.5}
    lines = [
        VERL.format(step=step) if kind == "console" else json.dumps({"step": step, "data": values}) for step in (1, 2)
    ]
    log = read_log("\n".join(["Starting", *lines, "done"]))
    assert (log.trainer, log.is_running_maximum, [each.step for each in log.steps]) == (Trainer.VERL, True, [1, 2])
    step = log.steps[0]
    assert (step.mean, step.shortest, step.longest, step.clipped) == (512.5, 20, 1024, 0.5)
    assert (step.prompts, step.peak_bytes) == ((80.0, 60.0, 99.0), 31.5 * GIB)
    assert logged_prompts(log, 64).mean == 80


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("epoch 1, loss 0.3", "is no log of trl or verl"),
        ("", "is no log of trl or verl"),
        ("PAR1\x15", "like those of profiler.monitor, which samples memory by time and knows neither steps"),
        (state([]), "is no log of trl or verl"),
        ('{"log_history": 3}', "is no log of trl or verl"),
        (state([{"step": 5, "loss": 0.1}]), "has 1 entries and none with lengths"),
        ("step:5 - train/loss:0.1", "has 1 entries and none with lengths"),
    ],
)
def test_another_file_is_a_sentence(text, problem):
    with pytest.raises(LogError, match=problem):
        read_log(text)
    with pytest.raises(LogError, match="has no lengths"):
        logged_lengths(read_log(state([{"step": 1, "vram/reserved_gib": 3.0}])))


def of_trl(mean, shortest=10, longest=90):
    keys = {"mean_length": mean, "min_length": shortest, "max_length": longest}
    return state([{"step": 7, **{f"completions/{key}": value for key, value in keys.items()}}])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (of_trl(-5), "has completions/mean_length=-5 in step 7, which must be above 0, and between the shortest, 10,"),
        (of_trl(0, shortest=0), "has completions/mean_length=0 in step 7"),
        (of_trl(92), "and the longest, 90"),
        (of_trl(8), "between the shortest, 10,"),
        (of_trl(8, shortest=-1), "between the shortest, -1,"),
        ("step:7 - response_length/mean:0.0", "has response_length/mean=0 in step 7"),
        ("step:7 - prompt_length/mean:4.0 - prompt_length/min:8.0 - prompt_length/max:9.0 - perf/"
         "max_memory_allocated_gb:3.0", "has prompt_length/mean=4 in step 7"),
        (state([{"step": 7, "vram/reserved_gib": -3.0}]), "has -3 GiB of memory in step 7, which is less than none"),
    ],
)  # fmt: skip
def test_an_entry_that_no_training_has_is_a_sentence(text, problem):
    with pytest.raises(LogError, match=problem):
        read_log(text)


def test_a_console_rounds_and_a_completion_may_be_empty():
    assert read_log(of_trl(90.5)).steps[0].longest == 90
    assert read_log(of_trl(9.5)).steps[0].shortest == 10
    assert read_log(of_trl(5, shortest=0)).steps[0].shortest == 0


@pytest.mark.parametrize("clipped", [0.0, 0.25])
@pytest.mark.parametrize("mean", [150.0, 300.0, 700.0])
def test_lengths_of_a_logged_step_have_its_mean_and_ends(mean, clipped):
    step = LoggedStep(step=1, mean=max(mean, 100 + 800 * clipped + 40), shortest=100, longest=900, clipped=clipped)
    source = LoggedLengths(steps=(step,), trend=None)
    found = [source.lengths(Random(seed), 64, 1) for seed in range(40)]
    assert fmean(map(fmean, found)) == pytest.approx(step.mean, rel=0.02)
    assert {(min(each), max(each)) for each in found} == {(100, 900)}
    assert all(each.count(900) >= 64 * clipped for each in found)


def test_prompts_follow_from_the_tokens_of_trl():
    # 64 rows of 400 + 200 tokens are 38,400 per step.
    log = read_log(state([entry(step, num_tokens=38_400 * step) for step in range(1, 6)]))
    assert logged_prompts(log, 64) == Recorded((200,) * 4, is_data_set=False)
    assert logged_prompts(read_log(state([entry(1), entry(2)])), 64) is None


def test_after_a_log_lengths_go_on_with_its_trend():
    steps = range(1, 101)
    log = read_log(state([entry(step, 200.0 + 2 * step, 100.0 + step, 600.0 + 4 * step) for step in steps]))
    source = logged_lengths(log).of_seed(Random(0))
    assert source.trend.slope == pytest.approx(2)
    assert fmean(fmean(source.lengths(Random(seed), 64, 50)) for seed in range(30)) == pytest.approx(300, rel=0.02)
    assert fmean(fmean(source.lengths(Random(seed), 64, 200)) for seed in range(30)) == pytest.approx(600, rel=0.05)
    falling = [entry(step, 500.0 - 4 * step, 50.0, 900.0) for step in steps]
    source = logged_lengths(read_log(state(falling))).of_seed(Random(0))
    assert fmean(fmean(source.lengths(Random(seed), 64, 900)) for seed in range(30)) >= 99


def test_a_trend_by_hand():
    # Slopes of all pairs: 2, 1.5, 7/3, 1, 2.5, 4, of which the median is (2 + 7/3) / 2.
    found = trend([(1, 1), (2, 3), (3, 4), (4, 8)])
    assert found.slope == pytest.approx(13 / 6)
    assert (found.low, found.high) == (1, 4)
    assert trend([(1, 1), (2, 2), (3, 3)]) is None


def test_the_interval_of_a_trend_has_its_ranks_by_hand():
    # Of squares the slope of each pair is its sum. C = 1.96 sqrt(10 * 9 * 25 / 18) = 21.9 of 45: ranks 11 and 34.
    sums = sorted(a + b for a in range(1, 11) for b in range(a + 1, 11))
    found = trend([(step, step**2) for step in range(1, 11)])
    assert (found.low, found.slope, found.high) == (sums[11], median(sums), sums[34])


def test_a_trend_is_hardly_changed_by_outliers():
    random = Random(5)
    points = [(step, 3 * step + random.gauss(0, 20) + (5000 if step % 50 == 0 else 0)) for step in range(1, 1001)]
    found = trend(points)
    assert found.low <= 3 <= found.high
    assert found.slope == pytest.approx(3, rel=0.01)
    level = trend([(step, random.gauss(0, 1)) for step in range(300)])
    assert level.low <= 0 <= level.high
