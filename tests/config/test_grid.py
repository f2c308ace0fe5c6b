"""The form of a grid, the order of its points, references between keys, and the keys of a run."""

import pytest

from profiler.config.options.run_options import RUN_KEYS, read_run_options
from profiler.config.trials.grid import expand, read_grid
from profiler.domain.errors import UsageError

CASES = [{"tuning": "full", "optim": "a"}, {"tuning": "full", "optim": "b"}, {"tuning": "lora", "optim": "a"}]
VALUES = {"question": "Why?", "axes": {"model": ["x", "y"]}, "cases": CASES, "seed": 0, "results_dir": "r"}
RUN = {
    "results_dir": "r",
    "dry_run": False,
    "resume": True,
    "snapshot": False,
    "python": None,
    "strict": True,
    "breakdown": False,
    "timeout_s": 10,
    "jobs": None,
    "stall_s": 900,
    "warm_up_s": 300,
    "sample_period_s": 0.01,
    "prune": True,
    "price_per_hour": None,
    "prices": None,
    "shard": None,
    "lease_s": 60,
    "engine": "local",
    "ray_address": "auto",
    "slurm_partition": None,
    "slurm_account": None,
    "slurm_time": 60,
    "slurm_gpus_per_node": None,
}


def points(overrides=(), **values):
    grid = read_grid("g", {**VALUES, **values})
    return [tuple(point.values()) for point in expand(grid, dict(overrides))]


def test_axes_change_slowest_and_cases_fastest():
    expected = [(0, model, *case.values()) for model in "xy" for case in CASES]
    assert points() == expected


def test_an_override_replaces_an_axis():
    assert [point[1] for point in points({"model": ("z",)})] == ["z"] * 3


def test_points_that_an_override_makes_equal_are_joined():
    grid = read_grid("g", VALUES)
    found = [(point["tuning"], point["optim"]) for point in expand(grid, {"tuning": ("qlora",), "model": ("x",)})]
    assert found == [("qlora", "a"), ("qlora", "b")]


def test_an_override_of_the_base_is_an_axis():
    grid = read_grid("g", VALUES)
    assert [point["seed"] for point in expand(grid, {"seed": (1, 2), "model": ("x",)})] == [1] * 3 + [2] * 3


def test_true_and_one_are_different_points():
    grid = read_grid("g", {})
    assert len(expand(grid, {"bf16": (True, 1, True)})) == 2


def test_a_value_of_a_grid_is_left_out_where_the_recipe_has_no_such_key():
    values = {"axes": {"num_generations": [4, 8]}, "beta": 0.04, "per_device_train_batch_size": "${num_generations}"}
    grid = read_grid("g", {**values, "recipe": "grpo", "max_length": None})
    batches = [{"recipe": "sft", "max_length": None, "per_device_train_batch_size": rows} for rows in (4, 8)]
    assert expand(grid, {"recipe": ("sft",)}) == batches
    assert expand(grid, {"recipe": ("sft",), "beta": (0.5,)}) == [{**batch, "beta": 0.5} for batch in batches]


def test_a_reference_is_the_value_at_the_same_point():
    values = {"axes": {"num_generations": [4, 8]}, "per_device_train_batch_size": "${num_generations}"}
    grid = read_grid("g", values)
    assert [point["per_device_train_batch_size"] for point in expand(grid, {})] == [4, 8]
    assert [point["per_device_train_batch_size"] for point in expand(grid, {"num_generations": (16,)})] == [16]


@pytest.mark.parametrize(("value", "reason"), [("${nothing}", "no key"), ("${steps}", "itself")])
def test_a_reference_to_no_key_is_a_fault(value, reason):
    with pytest.raises(UsageError, match=reason):
        expand(read_grid("g", {"steps": value}), {})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"axes": ["model"]}, "axes=[model]: must be a mapping"),
        ({"axes": {"model": "x"}}, "axes.model=x: must be a list"),
        ({"axes": {"model": []}}, "axes.model=[]: must be a list of at least one"),
        ({"axes": {"modle": ["x"]}}, "Did you mean 'model'?"),
        ({"cases": {"tuning": "full"}}, "cases={tuning:full}: must be a list"),
        ({"cases": [{"tunning": "full"}]}, "Did you mean 'tuning'?"),
        ({"axes": {"tuning": ["full"]}}, "axes.tuning=[full]: is an axis and in a case"),
    ],
)
def test_a_wrong_form_of_a_grid_is_a_fault(values, sentence):
    with pytest.raises(UsageError) as caught:
        read_grid("g", {**VALUES, **values})
    assert sentence in str(caught.value)


def test_run_settings():
    assert set(RUN) == set(RUN_KEYS)
    settings = read_run_options({**RUN, "timeout_s": 2.5, "jobs": 3})
    assert (settings.timeout_s, settings.jobs, settings.resume) == (2.5, 3, True)
    assert (settings.sample_period_s, settings.prune, settings.price_per_hour) == (0.01, True, None)
    never = read_run_options({**RUN, "sample_period_s": None, "price_per_hour": 2})
    assert (never.sample_period_s, never.price_per_hour) == (None, 2.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("results_dir", ""),
        ("dry_run", "no"),
        ("resume", None),
        ("timeout_s", 0),
        ("timeout_s", None),
        ("jobs", 0),
        ("stall_s", 0),
        ("stall_s", None),
        ("warm_up_s", 0),
        ("sample_period_s", 0),
        ("prune", None),
        ("price_per_hour", -1),
    ],
)
def test_wrong_run_settings(key, value):
    with pytest.raises(UsageError) as caught:
        read_run_options({**RUN, key: value})
    assert [fault.key for fault in caught.value.faults] == [key]


def test_points_are_counted_before_they_are_made():
    many = tuple(range(1000))
    with pytest.raises(UsageError, match=r"points=2,000,000: 2 model x 1000 seed x 1000 steps are more points"):
        points({"seed": many, "steps": many}, cases=None)


def test_an_axis_without_values_is_a_fault():
    with pytest.raises(UsageError, match=r"seed=\(no values\): has no values, so that there would be no trial"):
        points({"seed": ()})


def test_a_question_is_a_text():
    with pytest.raises(UsageError, match=r"question=\[1\]: must be a text"):
        read_grid("g", {**VALUES, "question": [1]})
