"""Every number has an upper bound, so that every stored value fits into its column."""

from dataclasses import fields

import pytest

from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.run_options import RUN_KEYS, read_run_options
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.trials.keys import MAX_COUNT, Kind
from profiler.domain.trials.trial import TRIAL_KEYS, key_named

POINT = {"backend": "cpu", "model": "tiny", "tuning": "lora"}
COUNTS = [key.name for key in TRIAL_KEYS if key.kind is Kind.COUNT]
MAX_SEED = key_named("seed").maximum
RUN = {**dict.fromkeys(RUN_KEYS), "results_dir": "r", "dry_run": False, "resume": True, "snapshot": False}
RUN |= {"strict": True, "breakdown": False, "prune": True, "timeout_s": 1.0, "stall_s": 1.0}
RUN |= {"warm_up_s": 1.0, "lease_s": 60.0, "engine": "local", "ray_address": "auto", "slurm_time": 60}
CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "num_experts": 2,
}


def sentence(read):
    with pytest.raises(UsageError) as caught:
        read()
    (fault,) = caught.value.faults
    return fault.sentence()


def test_all_counts_are_tested():
    assert len(COUNTS) == 24
    sizes = {field.name for field in fields(Architecture) if field.type in (int, "int")}
    derived = {"expert_width", "experts_per_token", "norms_per_layer", "scores", "shared_expert_width"}
    assert sizes - derived == set(CONFIG) - {"model_type"}


@pytest.mark.parametrize("value", [MAX_COUNT + 1, 2**63, 10**20, 10**400], ids=["int32", "int64", "1e20", "1e400"])
@pytest.mark.parametrize("key", [key for key in COUNTS if key != "seed"])
def test_a_count_of_a_trial_is_bounded(key, value):
    point = {**POINT, "recipe": min(key_named(key).recipes), key: value}
    said = sentence(lambda: parse_point(point, architecture_of=builtin_architecture))
    assert said == f"{key}={value}: must be a whole number of at most {key_named(key).maximum}."


def test_a_seed_has_the_bound_of_numpy():
    said = sentence(lambda: parse_point({**POINT, "seed": 10**20}, architecture_of=builtin_architecture))
    assert said == "seed=100000000000000000000: must be a whole number of at most 4294967295."
    assert parse_point({**POINT, "seed": MAX_SEED}, architecture_of=builtin_architecture).seed == MAX_SEED


@pytest.mark.parametrize("key", sorted(set(CONFIG) - {"model_type"}))
def test_a_count_in_a_config_json_is_bounded(key):
    said = sentence(lambda: read_architecture({**CONFIG, key: 10**20}, model="mine"))
    most = 10_000 if key in ("num_hidden_layers", "num_experts") else MAX_COUNT
    assert (
        f"its config.json cannot be used, {key}=100000000000000000000: must be a whole number of at most {most}" in said
    )


@pytest.mark.parametrize("value", [1e300, float("inf"), 10**400], ids=str)
@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("timeout_s", "1e+06"),
        ("stall_s", "1e+06"),
        ("warm_up_s", "1e+06"),
        ("lease_s", "1e+06"),
        ("sample_period_s", "1e+06"),
        ("price_per_hour", "1e+15"),
    ],
)
def test_a_number_of_the_run_is_bounded(key, most, value):
    assert f"{key}={value}: must be a number of at most {most}" in sentence(
        lambda: read_run_options({**RUN, key: value})
    )


def test_jobs_are_bounded():
    assert "jobs=4294967296: must be a whole number of at most" in sentence(
        lambda: read_run_options({**RUN, "jobs": 2**32})
    )


def test_beta_is_bounded():
    said = sentence(lambda: parse_point({**POINT, "beta": 10**400}, architecture_of=builtin_architecture))
    assert "must be a number of at most 1e+15" in said
