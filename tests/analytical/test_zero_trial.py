"""DeepSpeed's ZeRO in the closed form: shards, master weights, buckets and gathered weights."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_strategies import architecture, assert_a_table_has_each_estimate, assert_each_number_has_a_short_form

from profiler.analytical.estimate import estimate, has_form, phase_instants
from profiler.analytical.formulas.layers.decoder_layer import (
    attention_inputs_saved_bytes,
    frozen_inputs_saved_bytes,
    other_inputs_saved_bytes,
)
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import host_instants, trial_instants
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET_BYTES
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import OffloadDevice, TrialSpec

MODEL = "qwen2.5-0.5b"
PARAMETERS = 494_032_768
EMBEDDING = 151_936 * 896


def _zero(stage: int, num_processes: int = 4, **keys: Any) -> TrialSpec:
    point = {"backend": "emulated", "gpu": "h100-80gb", "model": MODEL, "distributed_type": "deepspeed", **keys}
    point |= {"zero_stage": stage, "num_processes": num_processes}
    return parse_point(point, architecture_of=architecture)


def _instant(spec: TrialSpec, name: InstantName) -> dict[Category, int]:
    found = next(each for each in trial_instants(spec, architecture(spec.model)) if each.name is name)
    return {category: int(size) for category, size in found.sizes.items()}


@pytest.mark.parametrize(("stage", "weights", "updated"), [(0, 2, 4), (1, 2, 1), (2, 2, 1), (3, 0.5, 1)])
def test_shards_by_hand(stage, weights, updated):
    found = _instant(_zero(stage), InstantName.REWARD)
    assert found[Category.WEIGHTS] == weights * PARAMETERS
    # On 4 GPUs, each updates a fourth: the float32 copy and two states, and a step counter of the fused AdamW.
    assert 0 <= found[Category.OPTIMIZER_STATE] - 3 * updated * PARAMETERS <= 4
    assert found[Category.COMMUNICATION] == (BUCKET_BYTES if stage == 3 else 0)


def test_the_end_of_a_backward_by_hand():
    # All gradients fit into one bucket, which is copied; the embedding is more than a fourth of the model. What is kept
    # of this micro-batch comes after the copy, so that only gradients of earlier ones are there.
    found = _instant(_zero(2), InstantName.BACKWARD_END)
    assert found[Category.COMMUNICATION] == 1_000_000_000 + 2 * PARAMETERS
    assert found[Category.GRADIENTS] == 2 * EMBEDDING
    assert not any(each.name is InstantName.REDUCTION and each.happens for each in trial_instants(_zero(2), _shape()))


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_stay_while_matrices_are_updated(stage):
    """On 2 GPUs the bfloat16 of a half, its float32, and as many roots or decayed gradients: 10 B of each value."""
    half = PARAMETERS // 2
    for keys in ({"optim": "adamw_torch"}, {"optim": "sgd", "weight_decay": 0.01}):
        found = _instant(_zero(stage, 2, recipe="sft", **keys), InstantName.STEP)
        assert found[Category.GRADIENTS] == (2 + 4 + 4) * half
    # Adapters are all matrices: one group, whose gradients are gone. The largest is then both of their copies.
    adapted = _zero(stage, 2, recipe="sft", tuning="lora", lora_rank=16, optim="adamw_torch")
    own = 8_798_208 // 2
    assert _instant(adapted, InstantName.STEP)[Category.GRADIENTS] == (2 + 2 + 4) * own


def _shape() -> Architecture:
    return architecture(MODEL)


def test_a_larger_model_fills_buckets_before_the_end():
    spec = _zero(2, model="qwen2.5-3b")
    reduction = _instant(spec, InstantName.REDUCTION)
    assert reduction[Category.COMMUNICATION] == 2 * BUCKET_BYTES
    first, last = (_instant(spec, name) for name in (InstantName.BACKWARD_FIRST_LAYER, InstantName.BACKWARD_LAYER))
    assert first[Category.ACTIVATIONS] < reduction[Category.ACTIVATIONS] < last[Category.ACTIVATIONS]


def test_an_embedding_larger_than_a_bucket_is_reduced_alone():
    end = _instant(_zero(2, model="qwen2.5-7b"), InstantName.BACKWARD_END)
    assert end[Category.COMMUNICATION] == BUCKET_BYTES + 2 * 152_064 * 3584


def test_a_rollout_gathers_all_and_a_pass_at_most_a_billion():
    spec = _zero(3, model="qwen2.5-7b")
    parameters = 7_615_616_512
    assert _instant(spec, InstantName.SAMPLING)[Category.COMMUNICATION] == BUCKET_BYTES + 2 * parameters
    assert _instant(spec, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == BUCKET_BYTES + 2 * 10**9
    # A generation after every pass: DeepSpeed never knows the order, and gathers one matrix at a time.
    short = _zero(3, model="qwen2.5-7b", steps_per_generation=1, gradient_accumulation_steps=1)
    assert _instant(short, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == BUCKET_BYTES + 2 * 3584 * 18_944


def test_an_lm_head_as_a_module_is_gathered_beyond_the_limit():
    """As the history of an emulated trial of qwen3-1.7b shows, whose head is tied to the embedding."""
    model, head = "qwen2.5-7b", 152_064 * 3_584
    full, fused = (_zero(3, model=model, logprobs=logprobs) for logprobs in ("full", "fused"))
    limit = BUCKET_BYTES + 2 * 10**9
    for name in (InstantName.FORWARD_LAYER, InstantName.SCORE_LAYER):
        beyond = _instant(_zero(3, model=model, logprobs="full", beta=0.04), name)
        assert beyond[Category.COMMUNICATION] == limit + 2 * head
    assert _instant(full, InstantName.FORWARD_HEAD)[Category.COMMUNICATION] == limit
    assert _instant(fused, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == limit
    offloaded = _zero(3, model=model, logprobs="full", offload_param_device="cpu")
    assert _instant(offloaded, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == limit + 2 * head + 2 * head // 4


def test_what_is_offloaded_is_not_on_the_card():
    both = {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
    found = _instant(_zero(3, **both), InstantName.REWARD)
    assert (found[Category.WEIGHTS], found[Category.OPTIMIZER_STATE], found[Category.GRADIENTS]) == (0, 0, 0)
    assert _zero(2).offload_optimizer_device is OffloadDevice.NONE
    # Stage 2 offloads a gradient through a tensor of the size of the largest.
    through = _instant(_zero(2, offload_optimizer_device="cpu"), InstantName.REWARD)
    assert through[Category.COMMUNICATION] == 2 * EMBEDDING


def test_an_offloaded_reference_is_on_the_host():
    spec = _zero(3, offload_param_device="cpu", beta=0.04)
    assert _instant(spec, InstantName.REWARD)[Category.REFERENCE] == 0
    on_card = _instant(_zero(3, beta=0.04), InstantName.REWARD)[Category.REFERENCE]
    assert on_card == pytest.approx(2 * PARAMETERS // 4, abs=512)
    step = host_instants(spec, _shape(), processes=4)[1]
    assert step.each[Category.REFERENCE].size == pytest.approx(2 * PARAMETERS // 4, abs=512)
    alone = host_instants(_zero(3, beta=0.04), _shape(), processes=4)[1]
    assert alone.each[Category.REFERENCE].size == 0


@pytest.mark.parametrize(
    ("model", "gpus", "mib"),
    # What stage 3 has while loading, from torch's counters on emulated cards (`+grid=fsdp`).
    [("qwen2.5-0.5b", 8, 1_686), ("qwen2.5-3b", 2, 13_320), ("qwen2.5-7b", 2, 31_045), ("qwen2.5-14b", 8, 16_526)],
)
def test_each_trained_tensor_is_gathered_for_its_hooks(model, gpus, mib):
    load = phase_instants(_zero(3, gpus, model=model), architecture(model))[Phase.LOAD]
    assert load.total_bytes / 2**20 == pytest.approx(mib, rel=0.001)


def test_offloaded_weights_are_copied_before_they_are_gathered():
    spec = _zero(3, offload_param_device="cpu")
    gathered = _instant(spec, InstantName.GATHERING)
    assert gathered[Category.COMMUNICATION] == BUCKET_BYTES + 2 * PARAMETERS + 2 * PARAMETERS // 4
    assert Category.KV_CACHE not in gathered
    sampling = _instant(spec, InstantName.SAMPLING)
    assert gathered[Category.COMMUNICATION] == sampling[Category.COMMUNICATION] + 2 * PARAMETERS // 4
    # Weights on the GPU need no copy.
    assert InstantName.GATHERING not in {each.name for each in trial_instants(_zero(3), architecture(MODEL))}


@pytest.mark.parametrize(
    ("keys", "gathered"),
    [
        # trl hands weights to vLLM one after the other, and gathers all to merge adapters.
        ({"use_vllm": True}, EMBEDDING),
        ({"use_vllm": True, "tuning": "lora", "lora_target_modules": "q_proj"}, PARAMETERS + 24 * 16 * 2 * 896),
        ({}, PARAMETERS),
    ],
)
def test_what_stage_3_gathers_for_a_rollout(keys, gathered):
    name = InstantName.ENGINE if keys else InstantName.DECODING
    assert _instant(_zero(3, **keys), name)[Category.COMMUNICATION] == BUCKET_BYTES + 2 * gathered


@pytest.mark.parametrize(("stage", "weights"), [(0, 0), (2, 0), (3, 2 * PARAMETERS // 4)])
def test_vllm_starts_before_deepspeed_has_the_model(stage, weights):
    started = _instant(_zero(stage, use_vllm=True), InstantName.ENGINE_START)
    assert started.get(Category.WEIGHTS, 0) == pytest.approx(weights, rel=0.001)
    assert set(started) <= {Category.WEIGHTS, Category.ENGINE}


# Compared with torch's counters on emulated cards (torch 2.13, accelerate 1.15, DeepSpeed 0.19.8; beta=0, 2 steps).
EMULATED = {0: 62_001_333_760, 1: 20_805_529_088, 2: 15_233_232_896, 3: 14_166_200_320}


EMULATED_QLORA = 2_079_593_472
"""Stage 2 of qwen2.5-0.5b on 4 GPUs."""

EMULATED_OF_ONE_BUCKET = {2: 6_510_228_992, 4: 4_799_549_952}
"""By GPUs: stage 2 of a model that one bucket holds, and whose peak is at the end of a backward."""


@pytest.mark.parametrize("num_processes", EMULATED_OF_ONE_BUCKET)
def test_what_is_kept_comes_after_the_last_copy(num_processes):
    found = estimate(_zero(2, num_processes, rollout="synthetic", steps=2), _shape()).peak_allocated_bytes
    assert found == pytest.approx(EMULATED_OF_ONE_BUCKET[num_processes], rel=0.003)


def test_weights_in_4_bits_are_not_sharded():
    targets = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]
    keys = {"beta": 0.04, "lora_target_modules": targets, "rollout": "synthetic", "steps": 2}
    spec = _zero(2, tuning="qlora", **keys)
    assert _instant(spec, InstantName.REWARD)[Category.WEIGHTS] < PARAMETERS
    found = estimate(spec, _shape()).peak_allocated_bytes
    assert found == pytest.approx(EMULATED_QLORA, rel=0.005)
    with pytest.raises(UsageError, match="tuning=qlora: has no closed-form estimate together with"):
        estimate(_zero(3, tuning="qlora"), _shape())


@pytest.mark.parametrize("stage", EMULATED)
def test_the_estimate_is_near_the_emulation(stage):
    spec = _zero(stage, 8, model="qwen2.5-3b", rollout="synthetic", steps=2)
    found = estimate(spec, architecture("qwen2.5-3b")).peak_allocated_bytes
    assert found == pytest.approx(EMULATED[stage], rel=0.03)


@pytest.mark.parametrize(
    "keys", [{"optim": "adamw_8bit"}, {"logprobs": "sliced"}, {"optim": "lion_32bit"}, {"bf16": False}]
)
def test_what_has_no_formula_is_refused_by_name(keys):
    spec = _zero(2, **keys)
    assert not has_form(spec, _shape())
    with pytest.raises(UsageError, match=f"{next(iter(keys))}=.*together with distributed_type=deepspeed"):
        estimate(spec, _shape())


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"zero_stage": 4}, "zero_stage=4: must be a whole number of at most 3"),
        (
            {"zero_stage": None, "distributed_type": "fsdp", "num_processes": 1},
            "distributed_type=fsdp: needs several GPUs",
        ),
        ({"zero_stage": 2, "offload_param_device": "cpu"}, "offload_param_device=cpu: needs zero_stage=3, and it is 2"),
        (
            {"zero_stage": 0, "offload_optimizer_device": "cpu"},
            "offload_optimizer_device=cpu: needs zero_stage=1, 2 or 3, and it is 0",
        ),
        ({"zero_stage": 2, "offload_optimizer_device": "nvme"}, "offload_optimizer_device=nvme: must be one of none"),
        (
            {"zero_stage": 2, "offload_optimizer_device": "cpu", "optim": "adamw_8bit"},
            "optim=adamw_8bit: with offload_optimizer_device=cpu accelerate runs DeepSpeed's AdamW",
        ),
        ({"zero_stage": 2, "logprobs": "minibatch"}, "logprobs=minibatch: has a backward per row"),
    ],
)
def test_a_combination_that_does_not_exist_is_refused(keys, problem):
    point = {"num_processes": 4, **keys}
    with pytest.raises(UsageError) as caught:
        _zero(point.pop("zero_stage"), point.pop("num_processes"), **point)
    assert problem in caught.value.faults[0].sentence()


@st.composite
def _jobs(draw: st.DrawFn) -> TrialSpec:
    return _zero(
        draw(st.sampled_from([0, 1, 2, 3])),
        draw(st.sampled_from([2, 8])),
        model=draw(st.sampled_from([MODEL, "qwen2.5-7b", "llama-3.2-1b"])),
        tuning=draw(st.sampled_from(["full", "lora"])),
        optim=draw(st.sampled_from(["adamw_torch_fused", "adamw_torch", "sgd"])),
        beta=draw(st.sampled_from([0.0, 0.04])),
        logprobs=draw(st.sampled_from(["fused", "full"])),
        gradient_accumulation_steps=draw(st.sampled_from([1, 4])),
        steps_per_generation=4,
        gradient_checkpointing=draw(st.booleans()),
    )


@settings(max_examples=15)
@given(_jobs())
def test_a_higher_stage_keeps_less_between_steps(spec):
    shape = architecture(spec.model)
    keys = {key: getattr(spec, key) for key in ("model", "tuning", "optim", "beta")}

    def kept(stage: int) -> int:
        found = _instant(_zero(stage, spec.num_processes, **keys), InstantName.REWARD)
        return sum(found[category] for category in (Category.WEIGHTS, Category.OPTIMIZER_STATE, Category.REFERENCE))

    assert kept(3) <= kept(2) == kept(1) <= kept(0)
    assert estimate(spec, shape).peak_allocated_bytes > 0


@settings(max_examples=8)
@given(st.lists(_jobs(), min_size=1, max_size=4))
def test_arrays_agree_with_single_estimates(specs):
    assert_a_table_has_each_estimate(specs, with_grpo=False)


@settings(max_examples=8)
@given(_jobs())
def test_every_number_has_a_short_form(spec):
    assert_each_number_has_a_short_form(spec)


def test_frozen_layers_keep_their_inputs_under_zero_3_by_hand():
    keys: dict[str, Any] = {
        "tuning": "lora",
        "lora_target_modules": ("q_proj", "v_proj"),
        "gradient_checkpointing": False,
    }
    partly, whole = _zero(2, **keys), _zero(3, **keys)
    shape = architecture(MODEL)
    # q and v save the input of all three. gate and up share one of 896 features, and down has one of 4,864.
    assert attention_inputs_saved_bytes(whole, shape, 10) == attention_inputs_saved_bytes(partly, shape, 10)
    added = other_inputs_saved_bytes(whole, shape, 10) - other_inputs_saved_bytes(partly, shape, 10)
    assert added == 10 * (896 + 4_864) * 2
    adapted = _zero(3, **{**keys, "lora_target_modules": ("down_proj",)})
    assert frozen_inputs_saved_bytes(adapted, shape, 10, ("down_proj",)) == 0
    assert frozen_inputs_saved_bytes(adapted, shape, 10, ("q_proj", "k_proj", "v_proj")) == 10 * 896 * 2


_SMALL: dict[str, Any] = {"tuning": "full", "per_device_train_batch_size": 4, "steps": 2}
_GENERATED = {"max_completion_length": 32, "num_generations": 4}

EMULATED_TYPES: list[tuple[int, int, dict[str, Any], dict[str, int]]] = [
    (
        2,
        1,
        {"recipe": "sft", "max_length": 512},
        {"forward": 8187639808, "backward": 9959901184, "optimizer": 10935603200},
    ),
    (
        3,
        1,
        {"recipe": "sft", "max_length": 512},
        {"forward": 9187640320, "backward": 10010011136, "optimizer": 11935604736},
    ),
    (
        2,
        1,
        {"dtype": "float32", **_GENERATED},
        {"load": 4940328960, "rollout": 7184056832, "backward": 9959778816, "optimizer": 10935480832},
    ),
    (
        3,
        1,
        {"dtype": "float32", **_GENERATED},
        {"load": 5224533504, "rollout": 9172123136, "forward": 9059442176, "optimizer": 11935482368},
    ),
    (3, 2, {"recipe": "sft", "dtype": "float32"}, {"forward": 6446520832, "backward": 7274474496}),
    (2, 2, {"dtype": "float32", **_GENERATED}, {"load": 2964198400, "rollout": 4219860992, "backward": 6510035456}),
    (
        2,
        8,
        {
            "recipe": "sft",
            "tuning": "lora",
            "dtype": "float32",
            "max_length": 128,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
        },
        {"load": 2522112512, "backward": 2114841088},
    ),
]
"""Stage, GPUs and other keys, with emulated peaks per phase, in bytes: trl 1.16, DeepSpeed 0.19.6, torch 2.13."""


@pytest.mark.parametrize(("stage", "gpus", "keys", "phases"), EMULATED_TYPES)
def test_loaded_types_and_one_gpu_are_as_emulated(stage, gpus, keys, phases):
    """No row was emulated when the formulas of stages 2 and 3 were written for bfloat16 on several GPUs."""
    spec = _zero(stage, gpus, **{**_SMALL, **keys})
    found = phase_instants(spec, architecture(spec.model))
    assert {phase: int(found[Phase(phase)].total_bytes) for phase in phases} == pytest.approx(phases, rel=0.005)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_type_of_loaded_weights_counts_at_load_alone(stage):
    """By hand, before DeepSpeed has the model: 494,032,768 x 2 B less in bfloat16, and its tied embedding x 2 B."""
    wide, narrow = (phase_instants(_zero(stage, 2, dtype=each, **_SMALL), _shape()) for each in ("float32", "bfloat16"))
    assert {phase: each.total_bytes for phase, each in wide.items() if phase is not Phase.LOAD} == {
        phase: each.total_bytes for phase, each in narrow.items() if phase is not Phase.LOAD
    }
    first = [trial_instants(_zero(stage, 2, dtype=each, **_SMALL), _shape())[0] for each in ("float32", "bfloat16")]
    more = int(first[0].total_bytes) - int(first[1].total_bytes)
    assert more == (0 if stage == 3 else 2 * (PARAMETERS + EMBEDDING))
