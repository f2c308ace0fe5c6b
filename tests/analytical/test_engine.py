"""vLLM and DDP in the closed form."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.formulas.engine import bucket_bytes, engine_bytes, resident_engine_bytes
from profiler.analytical.many import estimate_specs
from profiler.config.model_lookup import builtin_architecture
from profiler.config.specification import parse_point
from profiler.domain.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import TrialSpec

MODEL = "qwen2.5-0.5b"


def _architecture(model: str) -> Architecture:
    found = builtin_architecture(model)
    assert found is not None
    return found


def _spec(**keys: Any) -> TrialSpec:
    point = {"backend": "simulated", "gpu": "h100-80gb", "model": MODEL, **keys}
    return parse_point(point, architecture_of=_architecture)


def _peaks(spec: TrialSpec) -> dict[Phase, int]:
    return {
        phase: int(instant.total_bytes) for phase, instant in phase_instants(spec, _architecture(spec.model)).items()
    }


def test_the_engine_is_the_part_of_the_card_that_it_may_use():
    # 0.3 x 84,944,093,184 B
    assert engine_bytes(_spec(use_vllm=True)) == 25_483_227_955
    assert engine_bytes(_spec(use_vllm=True, gpu="t4-16gb")) < 16 * 2**30 * 0.3
    assert engine_bytes(_spec()) == 0
    assert engine_bytes(_spec(use_vllm=True, vllm_mode="server")) == 0


def test_an_engine_that_sleeps_is_there_only_during_the_rollout():
    awake, asleep = _spec(use_vllm=True), _spec(use_vllm=True, vllm_enable_sleep_mode=True)
    assert resident_engine_bytes(awake) == engine_bytes(awake)
    assert resident_engine_bytes(asleep) == 0
    one, other = _peaks(awake), _peaks(asleep)
    differs = {phase for phase in one if one[phase] != other[phase]}
    assert differs == {Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert {one[phase] - other[phase] for phase in differs} == {engine_bytes(awake)}


def test_a_server_leaves_the_trainer_alone():
    """Without an engine and without generation, all phases but the rollout are those of an engine asleep."""
    server, asleep = (
        _peaks(_spec(use_vllm=True, **keys)) for keys in ({"vllm_mode": "server"}, {"vllm_enable_sleep_mode": True})
    )
    assert server[Phase.ROLLOUT] < asleep[Phase.ROLLOUT]
    both = set(server) - {Phase.LOAD, Phase.ROLLOUT}
    assert {phase: server[phase] for phase in both} == {phase: asleep[phase] for phase in both}


def test_vllm_has_no_cache_of_transformers():
    rollout = phase_instants(_spec(use_vllm=True), _architecture(MODEL))[Phase.ROLLOUT]
    assert Category.KV_CACHE not in rollout.sizes
    assert rollout.sizes[Category.ENGINE] == 25_483_227_955


def test_trl_scores_the_policy_that_vllm_sampled_from():
    assert Phase.SCORE not in _peaks(_spec())
    assert Phase.SCORE in _peaks(_spec(use_vllm=True))


def test_the_buckets_of_ddp_are_as_large_as_the_gradients():
    # 494,032,768 parameters x 2 B
    assert bucket_bytes(_spec(num_processes=2), _architecture(MODEL)) == 988_065_536
    assert bucket_bytes(_spec(), _architecture(MODEL)) == 0
    one, two = estimate(_spec(), _architecture(MODEL)), estimate(_spec(num_processes=2), _architecture(MODEL))
    assert two.peak_allocated_bytes - one.peak_allocated_bytes == 988_065_536


def test_groups_are_whole_over_all_processes():
    with pytest.raises(UsageError, match="num_processes = 4 x 4 x 3 = 48"):
        _spec(num_processes=3, num_generations=7)
    assert _spec(num_processes=7, num_generations=7).num_processes == 7


@pytest.mark.parametrize("part", [0, 1.2])
def test_the_part_of_the_card_is_a_part(part):
    with pytest.raises(UsageError, match="must be more than 0 and at most 1"):
        _spec(use_vllm=True, vllm_gpu_memory_utilization=part)


@given(
    st.lists(
        st.builds(
            dict,
            use_vllm=st.booleans(),
            vllm_mode=st.sampled_from([None, "colocate", "server"]),
            vllm_gpu_memory_utilization=st.sampled_from([None, 0.1, 0.55, 1]),
            vllm_enable_sleep_mode=st.sampled_from([None, False, True]),
            num_processes=st.sampled_from([1, 2, 8]),
            gpu=st.sampled_from(["h100-80gb", "t4-16gb"]),
            tuning=st.sampled_from(["full", "lora"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_table_of_trials_has_the_estimates_of_each(points):
    specs = [_spec(**point) for point in points]
    table = estimate_specs(specs, {MODEL: _architecture(MODEL)})
    one_by_one = [estimate(spec, _architecture(MODEL)) for spec in specs]
    assert table.peak_allocated_bytes.tolist() == [found.peak_allocated_bytes for found in one_by_one]
    assert table.peak_reserved_bytes.tolist() == [found.peak_reserved_bytes for found in one_by_one]


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.01))
def test_a_larger_part_never_needs_less(part, more):
    smaller = _spec(use_vllm=True, vllm_gpu_memory_utilization=part)
    larger = replace(smaller, vllm_gpu_memory_utilization=part + more)
    assert engine_bytes(smaller) < engine_bytes(larger)
