"""vLLM and DDP in the closed form."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.formulas.engine import (
    EngineParts,
    bucket_bytes,
    engine_bytes,
    engine_parts,
    requested_bytes,
    resident_engine_bytes,
)
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


def _parts(spec: TrialSpec) -> EngineParts:
    return engine_parts(spec, _architecture(spec.model))


def test_the_engine_is_the_part_of_the_card_that_it_may_use():
    # 0.3 x 84,944,093,184 B, rounded up as vLLM does; KV blocks are whole.
    spec = _spec(use_vllm=True)
    assert requested_bytes(spec) == 25_483_227_956
    assert 0 <= requested_bytes(spec) - engine_bytes(spec, _architecture(MODEL)) < 196_608
    assert requested_bytes(_spec(use_vllm=True, gpu="t4-16gb")) < 16 * 2**30 * 0.3
    for other in (_spec(), _spec(use_vllm=True, vllm_mode="server")):
        assert requested_bytes(other) == engine_bytes(other, _architecture(MODEL)) == 0


def test_the_parts_are_those_of_vllms_accounting():
    """By hand: 2 B per parameter, 16 x (151,936 + 4,748) x 4 B, 4,096 x (3 x 4,864 + 4 x 896) x 2 B, whole blocks."""
    parts = _parts(_spec(use_vllm=True))
    assert parts.weights == 494_032_768 * 2
    assert parts.state == 16 * 626_736
    assert parts.activations == 148_897_792
    assert parts.kv_cache == (25_483_227_956 - parts.weights - parts.state - parts.activations) // 196_608 * 196_608


def test_logits_of_many_sequences_exceed_an_mlp():
    """As seen with 512 sequences on an emulated card, where vLLM 0.31 has 166,482,432 B."""
    many = _parts(_spec(use_vllm=True, per_device_train_batch_size=128, num_generations=128))
    assert many.activations == (512 * 151_936 + 4_096 * 896) * 2 == 162_922_496


def test_an_engine_in_too_small_a_part_has_no_cache():
    parts = _parts(_spec(use_vllm=True, gpu="t4-16gb", model="qwen2.5-7b"))
    assert parts.kv_cache == 0
    assert parts.total == parts.weights + parts.state + parts.activations


def test_an_engine_that_sleeps_leaves_the_state_of_its_sampler():
    awake, asleep = _spec(use_vllm=True), _spec(use_vllm=True, vllm_enable_sleep_mode=True)
    parts = _parts(awake)
    assert resident_engine_bytes(awake, _architecture(MODEL)) == parts.weights + parts.state + parts.kv_cache
    assert resident_engine_bytes(asleep, _architecture(MODEL)) == parts.state
    one, other = _peaks(awake), _peaks(asleep)
    differs = {phase for phase in one if one[phase] != other[phase]}
    assert differs == {Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert {one[phase] - other[phase] for phase in differs} == {parts.weights + parts.kv_cache}


def test_a_server_leaves_the_trainer_alone():
    """Without an engine and without generation, the other phases lack only what an engine leaves when it sleeps."""
    server, asleep = (
        _peaks(_spec(use_vllm=True, **keys)) for keys in ({"vllm_mode": "server"}, {"vllm_enable_sleep_mode": True})
    )
    assert server[Phase.ROLLOUT] < asleep[Phase.ROLLOUT]
    both = set(server) - {Phase.LOAD, Phase.ROLLOUT}
    state = _parts(_spec(use_vllm=True)).state
    assert {phase: server[phase] + state for phase in both} == {phase: asleep[phase] for phase in both}


def test_vllm_has_no_cache_of_transformers():
    rollout = phase_instants(_spec(use_vllm=True), _architecture(MODEL))[Phase.ROLLOUT]
    assert Category.KV_CACHE not in rollout.sizes
    assert rollout.sizes[Category.ENGINE] == engine_bytes(_spec(use_vllm=True), _architecture(MODEL))


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


@settings(deadline=None)
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
        ).filter(lambda point: (point["vllm_mode"], point["vllm_enable_sleep_mode"]) != ("server", True)),
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
    assert requested_bytes(smaller) < requested_bytes(larger)
