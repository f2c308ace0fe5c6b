"""`trainer=rloo`: trl's `RLOOTrainer`, with GRPO's keys."""

import json

import pytest
import yaml
from simulating import simulate, small_spec

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.analytical.estimate import estimate, phase_instants
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trl.config import RLOO_DEFAULTS, TRL_DEFAULTS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Rollout
from profiler.estimate.main import answer

MODEL = "model=qwen2.5-1.5b"


def _peaks(*words: str) -> dict[str, int]:
    found = json.loads(answer([*words, "format=json"]))
    return {phase["phase"]: phase["peak_allocated_bytes"] for phase in found["phases"]}


def test_the_policy_always_scores_its_completions():
    grpo, rloo = _peaks(MODEL), _peaks(MODEL, "trainer=rloo")
    assert "score" not in grpo
    assert rloo["score"] > rloo["reward"]
    assert rloo["backward"] < grpo["backward"]  # the loss keeps fewer tensors
    assert (rloo["rollout"], rloo["optimizer"]) == (grpo["rollout"], grpo["optimizer"])
    assert _peaks(MODEL, "recipe=rloo") == rloo


@pytest.mark.parametrize("words", [(), ("trainer=rloo",)])
def test_a_file_of_rloo_has_its_own_defaults(tmp_path, words):
    file = tmp_path / "rloo.yaml"
    own = {} if words else {"normalize_advantages": True}
    file.write_text(yaml.safe_dump({"model_name_or_path": "Qwen/Qwen2.5-1.5B", **own, "reward_funcs": ["x"]}))
    trial = json.loads(answer([f"config={file}", *words, "format=json"]))["trial"]
    assert (trial["recipe"], trial["beta"], trial["num_generations"]) == ("rloo", 0.05, 2)


@pytest.mark.slow
def test_the_defaults_are_those_of_trl():
    trl = pytest.importorskip("trl")
    fields = trl.RLOOConfig.__dataclass_fields__
    own = {key: fields[key].default for key in TRL_DEFAULTS if key in fields and fields[key].default is not None}
    stated = {**TRL_DEFAULTS, **RLOO_DEFAULTS}
    assert {key: value for key, value in own.items() if stated[key] != value} == {}


@pytest.mark.slow
def test_the_simulation_runs_rloo_and_the_estimate_is_near_it():
    keys = {"recipe": Recipe.RLOO, "max_completion_length": 256, "steps": 1, "rollout": Rollout.SYNTHETIC, "beta": 0.05}
    spec, architecture = small_spec(**keys), builtin_architecture("tiny")
    assert architecture is not None
    found = replay_on_card(simulate(**keys).trace, capacity_bytes=None, config=parse_alloc_conf(""))
    assert list(found.phases) == [*phase_instants(spec, architecture)]
    peak = estimate(spec, architecture).peak_allocated_bytes
    assert peak == pytest.approx(found.peak_allocated_bytes, rel=0.05)
