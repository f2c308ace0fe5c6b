"""vLLM and DDP in the closed form."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_strategies import architecture

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.explanation.engine_start import server_text
from profiler.analytical.formulas.models.parameters import projections
from profiler.analytical.formulas.vllm_memory import (
    PACKED_BYTES,
    VllmMemory,
    engine,
    lacks_cache,
    requested_bytes,
    resident_engine,
    sent_weights,
    sharded_parameters,
    vllm_memory,
)
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.sharding.sharding import Replicated
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Backend, TrialSpec, VllmMode

MODEL = "qwen2.5-0.5b"


def _spec(**keys: Any) -> TrialSpec:
    point = {"backend": "simulated", "gpu": "h100-80gb", "model": MODEL, **keys}
    return parse_point(point, architecture_of=architecture)


def _peaks(spec: TrialSpec) -> dict[Phase, int]:
    return {
        phase: int(instant.total_bytes) for phase, instant in phase_instants(spec, architecture(spec.model)).items()
    }


def _parts(spec: TrialSpec) -> VllmMemory:
    return vllm_memory(spec, architecture(spec.model))


def test_the_engine_is_the_part_of_the_card_that_it_may_use():
    # 0.3 x 84,944,093,184 B, rounded up as vLLM does; KV blocks are whole.
    spec = _spec(use_vllm=True)
    assert requested_bytes(spec) == 25_483_227_956
    assert 0 <= requested_bytes(spec) - engine(spec, architecture(MODEL)).size < 196_608
    assert requested_bytes(_spec(use_vllm=True, gpu="t4-16gb")) < 16 * 2**30 * 0.3
    for other in (_spec(), _spec(use_vllm=True, vllm_mode="server")):
        assert requested_bytes(other) == engine(other, architecture(MODEL)).size == 0


def test_the_parts_are_those_of_vllms_accounting():
    """By hand: 2 B per parameter, 16 x (151,936 + 4,748) x 4 B, 4,096 x (3 x 4,864 + 4 x 896) x 2 B, whole blocks."""
    parts = _parts(_spec(use_vllm=True))
    assert parts.weights == 494_032_768 * 2
    assert parts.state == 16 * 626_736
    assert parts.activations == 148_897_792
    left = 25_483_227_956 - parts.weights - parts.state - parts.buffers - parts.activations
    assert parts.kv_cache == left // 196_608 * 196_608


@pytest.mark.parametrize(("gpus", "gib"), [(1, 14.957), (2, 7.479)])
def test_weights_are_divided_as_vllm_printed_on_real_cards(gpus, gib):
    """Logs of Llama 3 8B: 14.96 GiB on one card and 7.48 on each of two."""
    assert 2 * sharded_parameters(architecture("llama-3.1-8b"), gpus=gpus) / 2**30 == pytest.approx(gib, abs=0.001)


def test_an_engine_of_two_gpus_runs_the_sequences_of_both():
    shared = {"num_processes": 2, "vllm_tensor_parallel_size": 2}
    one, two = _parts(_spec(use_vllm=True, num_processes=2)), _parts(_spec(use_vllm=True, **shared))
    assert two.state == 2 * one.state
    assert two.weights == 2 * 247_038_336
    assert two.activations == (3 * 4_096 * 2_432 + 4 * 4_096 * 896) * 2
    assert two.kv_cache > one.kv_cache


def test_a_cache_has_to_hold_one_sequence_of_the_accepted_length():
    # 131,072 tokens of Llama 3.1 8B are 16 GiB, and 0.3 of an H100 leaves 8.3.
    shape = architecture("llama-3.1-8b")
    long, short = (_spec(use_vllm=True, model="llama-3.1-8b", vllm_max_model_length=length) for length in (None, 8_192))
    assert lacks_cache(long, shape)
    assert not lacks_cache(short, shape)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"vllm_tensor_parallel_size": 2}, "=2: must divide num_processes=1"),
        ({"vllm_tensor_parallel_size": 3, "num_processes": 4, "num_generations": 4}, "=3: must divide num_processes=4"),
        ({"vllm_tensor_parallel_size": 4, "num_processes": 4}, "=4: must divide the 14 attention heads.*size=2"),
        (
            {"vllm_tensor_parallel_size": 3, "num_processes": 3, "model": "llama-3.2-3b"},
            "=3: must divide the 8 heads of",
        ),
        ({"vllm_max_model_length": 32_769}, "=32769: is more than the context of qwen2.5-0.5b, which has 32768"),
        ({"vllm_max_model_length": 256}, "=256: leaves nothing for completions"),
    ],
)
def test_what_trl_or_vllm_would_refuse_is_refused(keys, says):
    with pytest.raises(UsageError, match=says):
        _spec(use_vllm=True, **keys)
    # Where vLLM has GPUs of its own the keys have no meaning.
    server = _spec(use_vllm=True, vllm_mode="server", **keys)
    assert (server.vllm_tensor_parallel_size, server.vllm_max_model_length) == (1, None)


def test_an_engine_in_too_small_a_part_has_no_cache():
    parts = _parts(_spec(use_vllm=True, gpu="t4-16gb", model="qwen2.5-7b"))
    assert parts.kv_cache == 0
    assert parts.total == parts.weights + parts.state + parts.buffers + parts.activations


def test_an_engine_that_sleeps_leaves_its_buffers():
    awake, asleep = _spec(use_vllm=True), _spec(use_vllm=True, vllm_enable_sleep_mode=True)
    parts = _parts(awake)
    assert (
        resident_engine(awake, architecture(MODEL)).size == parts.weights + parts.state + parts.buffers + parts.kv_cache
    )
    assert resident_engine(asleep, architecture(MODEL)).size == parts.buffers
    one, other = _peaks(awake), _peaks(asleep)
    differs = {phase for phase in one if one[phase] != other[phase]}
    assert differs == {Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert {one[phase] - other[phase] for phase in differs} == {parts.weights + parts.state + parts.kv_cache}


def test_a_server_leaves_the_trainer_alone():
    """Without an engine and without generation, the other phases lack only what an engine leaves when it sleeps."""
    server, asleep = (
        _peaks(_spec(use_vllm=True, **keys)) for keys in ({"vllm_mode": "server"}, {"vllm_enable_sleep_mode": True})
    )
    assert server[Phase.ROLLOUT] < asleep[Phase.ROLLOUT]
    both = set(server) - {Phase.LOAD, Phase.ROLLOUT}
    buffers = _parts(_spec(use_vllm=True)).buffers
    assert {phase: server[phase] + buffers for phase in both} == {phase: asleep[phase] for phase in both}


def test_vllm_has_no_cache_of_transformers():
    rollout = phase_instants(_spec(use_vllm=True), architecture(MODEL))[Phase.ROLLOUT]
    assert Category.KV_CACHE not in rollout.sizes
    assert rollout.sizes[Category.ENGINE] == engine(_spec(use_vllm=True), architecture(MODEL)).size


def test_trl_scores_the_policy_that_vllm_sampled_from():
    assert Phase.SCORE not in _peaks(_spec())
    assert Phase.SCORE in _peaks(_spec(use_vllm=True))


def test_the_buckets_of_ddp_are_as_large_as_the_gradients():
    # 494,032,768 parameters x 2 B
    assert Replicated(_spec(num_processes=2), architecture(MODEL)).buckets.size == 988_065_536
    assert Replicated(_spec(), architecture(MODEL)).buckets.size == 0
    one, two = estimate(_spec(), architecture(MODEL)), estimate(_spec(num_processes=2), architecture(MODEL))
    assert two.peak_allocated_bytes - one.peak_allocated_bytes == 988_065_536


def test_groups_are_whole_over_all_processes():
    with pytest.raises(UsageError, match="num_processes = 4 x 4 x 3 = 48"):
        _spec(num_processes=3, num_generations=7)
    assert _spec(num_processes=7, num_generations=7).num_processes == 7


def test_a_sweep_does_not_run_an_engine_on_several_gpus():
    shared = _spec(use_vllm=True, num_processes=2, vllm_tensor_parallel_size=2, backend="emulated")
    (fault,) = faults_in_a_sweep([shared], builtin_architecture)
    assert fault.key == "vllm_tensor_parallel_size"
    assert faults_in_a_sweep([_spec(use_vllm=True, num_processes=2, backend="emulated")], builtin_architecture) == []


def test_vllm_next_to_fsdp_is_estimated_as_emulated():
    """Rank 0 of 2 with vLLM 0.31 and FSDP 2, allocated GiB by phase; the engine sleeps while the model trains."""
    emulated = {
        Phase.LOAD: 24.370,
        Phase.ROLLOUT: 26.291,
        Phase.SCORE: 3.479,
        Phase.FORWARD: 4.482,
        Phase.BACKWARD: 5.249,
        Phase.OPTIMIZER: 3.825,
    }
    keys = {"distributed_type": "fsdp", "num_processes": 2, "vllm_enable_sleep_mode": True, "steps": 2}
    estimated = _peaks(_spec(use_vllm=True, vllm_max_model_length=2048, **keys))
    for phase, gib in emulated.items():
        assert estimated[phase] / 2**30 == pytest.approx(gib, rel=0.04), phase


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
            vllm_max_model_length=st.sampled_from([None, 2048, 8192]),
            num_processes=st.sampled_from([2, 8]),
            vllm_tensor_parallel_size=st.sampled_from([1, 2]),
            gpu=st.sampled_from(["h100-80gb", "t4-16gb"]),
            tuning=st.sampled_from(["full", "lora"]),
        ).filter(lambda point: (point["vllm_mode"], point["vllm_enable_sleep_mode"]) != ("server", True)),
        min_size=1,
        max_size=8,
    )
)
def test_a_table_of_trials_has_the_estimates_of_each(points):
    specs = [_spec(**point) for point in points]
    table = estimate_specs(specs, {MODEL: architecture(MODEL)})
    one_by_one = [estimate(spec, architecture(MODEL)) for spec in specs]
    assert table.peak_allocated_bytes.tolist() == [found.peak_allocated_bytes for found in one_by_one]
    assert table.peak_reserved_bytes.tolist() == [found.peak_reserved_bytes for found in one_by_one]


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.01))
def test_a_larger_part_never_needs_less(part, more):
    smaller = _spec(use_vllm=True, vllm_gpu_memory_utilization=part)
    larger = replace(smaller, vllm_gpu_memory_utilization=part + more)
    assert requested_bytes(smaller) < requested_bytes(larger)


@pytest.mark.parametrize(
    ("model", "gpu", "said"),
    [
        (
            "qwen2.5-7b",
            "h100-80gb",
            "takes 71.2 GiB of the 79.1 GiB of h100-80gb by trl vllm-serve's defaults: 14.2 GiB of",
        ),
        (
            "llama-3.1-8b",
            "l4-24gb",
            "does not start on a card of its own, with 15.0 GiB of weights in 19.8 GiB of the 22.0",
        ),
        ("llama-3.1-8b", "l4-24gb", "start it with --max_model_len 1042."),
        (
            "qwen2.5-14b",
            "l4-24gb",
            "27.5 GiB of weights in 19.8 GiB of the 22.0 GiB of l4-24gb; start it with --tensor_parallel_size 2.",
        ),
        ("llama-3.1-405b", "l4-24gb", "nor on 8 of them."),
    ],
)
def test_an_engine_has_a_card_of_its_own_in_server_mode(model, gpu, said):
    spec = TrialSpec(backend=Backend.SIMULATED, gpu=gpu, model=model, use_vllm=True, vllm_mode=VllmMode.SERVER)
    assert said in server_text(spec, builtin_architecture(model))
    assert server_text(replace(spec, use_vllm=False, vllm_mode=None), builtin_architecture(model)) == ""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-32b", "llama-3.1-8b", "llama-3.1-70b"])
def test_packed_weights_are_at_most_what_vllm_packs(model, dtype):
    """Each weight in its order, into parts that end when they pass 1 GiB; two exist at once."""
    shape = architecture(model)
    spec = replace(_spec(use_vllm=True, vllm_mode="server", dtype=dtype), model=model)
    size = 2 if dtype == "bfloat16" else 4
    embedding = shape.vocab_size * shape.hidden_size
    layer = [part.in_features * part.out_features for part in projections(shape)]
    heads = [] if shape.tie_word_embeddings else [embedding]
    parts = [0]
    for values in [embedding, *layer * shape.num_hidden_layers, *heads]:
        if parts[-1] > PACKED_BYTES:
            parts.append(0)
        parts[-1] += values * size
    packed = max(map(sum, zip([0, *parts], parts, strict=False)))
    found = int(sent_weights(spec, shape).size)
    assert packed <= found <= packed + PACKED_BYTES + max(layer) * size


def test_a_server_is_sent_weights_before_it_generates():
    """By hand: 494,032,768 x 2 B next to what else there is in a rollout."""
    peaks, others = (
        phase_instants(_spec(use_vllm=True, vllm_mode=mode, tuning="full"), architecture(MODEL))
        for mode in ("server", "colocate")
    )
    engine_bytes = others[Phase.ROLLOUT].sizes[Category.ENGINE]
    more = peaks[Phase.ROLLOUT].total_bytes - others[Phase.ROLLOUT].total_bytes + engine_bytes
    assert more == 494_032_768 * 2
    assert sent_weights(_spec(use_vllm=True), architecture(MODEL)).size == 0


@given(st.integers(1, 40))
def test_copies_of_sent_weights_add_up_over_16_steps(steps):
    one, other = (
        estimate(_spec(use_vllm=True, vllm_mode="server", steps=each), architecture(MODEL)).peak_reserved_bytes
        for each in (steps, steps + 1)
    )
    state = 0 if steps > 1 else other - one - 494_032_768 * 2  # no state before the first update
    assert other - one - state == (494_032_768 * 2 if steps < 16 else 0)
