"""Mixtures of experts: parameters and activations by hand, and phases as the simulation has them."""

from dataclasses import replace

import pytest
from toy_models import CONFIG, EVERYTHING, MIXTRAL, OF_EXPERTS, OLMOE, QWEN2, SOME_EXPERTS, TWO_STEPS

from profiler.analytical.estimate import estimate, has_form, phase_instants, refuse_model, refuse_without_form
from profiler.analytical.formulas.layers.experts import (
    experts_saved_bytes,
    merged_bytes,
)
from profiler.analytical.formulas.models.parameters import (
    layer_parameter_count,
    projections,
)
from profiler.analytical.formulas.models.weights import weights
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.config.models.architecture import read_architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    DistributedType,
    Dtype,
    OffloadDevice,
    Rollout,
    Tuning,
)

NARROW = {**CONFIG, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
SPEC = TWO_STEPS
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA = OF_EXPERTS
ONE_SHORT_BATCH = replace(
    SPEC, max_prompt_length=64, max_completion_length=64, gradient_accumulation_steps=1, steps_per_generation=1
)


GENERATED = replace(EVERYTHING, rollout=Rollout.GENERATE)
SHORT = replace(ONE_SHORT_BATCH, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32)
KEPT = {"gradient_checkpointing": False}
WIDER = {**CONFIG, "num_hidden_layers": 8, "vocab_size": 32_768}
DEEPSEEK = {
    **{key: CONFIG[key] for key in CONFIG if key not in ("head_dim", "num_experts", "num_key_value_heads")},
    "model_type": "deepseek_v3",
    "n_routed_experts": 16,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 16,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
"""Latent attention, and a first layer without experts."""
DELTA = {
    **CONFIG,
    "model_type": "qwen3_next",
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 16_384,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
"""Linear attention in three of four layers."""
ZERO = {
    "num_processes": 2,
    "distributed_type": DistributedType.DEEPSPEED,
    "offload_optimizer_device": OffloadDevice.NONE,
    "offload_param_device": OffloadDevice.NONE,
}
SHARDED = {
    "num_processes": 2,
    "distributed_type": DistributedType.FSDP,
    "fsdp_version": 2,
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_activation_checkpointing": False,
}
STAYING = {**SHARDED, "fsdp_reshard_after_forward": False, "optim": Optimizer.SGD, "num_generations": 2}
AT_ONCE = {
    **SHARDED,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "max_prompt_length": 64,
}
SAVING = {**AT_ONCE, **KEPT, "optim": Optimizer.SGD, "max_prompt_length": 256, "max_completion_length": 64}


def _read(config):
    return read_architecture(config, model="m")


SIMULATED = [
    (SPEC, CONFIG, {"rollout": 885.47, "forward": 1139.16, "backward": 1230.74, "optimizer": 1040.74}),
    (
        replace(SPEC, gradient_checkpointing=False),
        CONFIG,
        {"rollout": 885.47, "forward": 1610.07, "backward": 1660.01, "optimizer": 1040.74},
    ),
    (LORA, CONFIG, {"rollout": 402.04, "forward": 410.03, "backward": 484.52, "optimizer": 314.74}),
    (ONE_SHORT_BATCH, NARROW, {"rollout": 1392.78, "forward": 1412.05, "backward": 1825.66, "optimizer": 1810.23}),
    (SPEC, MIXTRAL, {"rollout": 869.09, "forward": 1138.77, "backward": 1199.01, "optimizer": 1040.46}),
    (
        replace(SPEC, **KEPT),
        MIXTRAL,
        {"rollout": 869.09, "forward": 1484.24, "backward": 1534.18, "optimizer": 1040.46},
    ),
    (
        replace(LORA, rollout=Rollout.GENERATE),
        MIXTRAL,
        {"rollout": 425.8, "forward": 409.84, "backward": 457.86, "optimizer": 314.68},
    ),
    (
        replace(EVERYTHING, **KEPT),
        QWEN2,
        {"rollout": 461.64, "forward": 969.45, "backward": 971.28, "optimizer": 372.8},
    ),
    (
        replace(EVERYTHING, tuning=Tuning.QLORA),
        QWEN2,
        {"rollout": 405.06, "forward": 408.61, "backward": 497.65, "optimizer": 314.16},
    ),
    (LORA, OLMOE, {"rollout": 402.05, "forward": 410.03, "backward": 484.35, "optimizer": 314.75}),
    (
        replace(EVERYTHING, **KEPT),
        CONFIG,
        {"rollout": 519.57, "forward": 1162.05, "backward": 1163.88, "optimizer": 403.78},
    ),
    (GENERATED, CONFIG, {"rollout": 543.38, "forward": 544.18, "backward": 644.03, "optimizer": 403.78}),
    (
        replace(EVERYTHING, tuning=Tuning.QLORA),
        CONFIG,
        {"rollout": 466.19, "forward": 477.93, "backward": 566.48, "optimizer": 341.22},
    ),
    (
        replace(SHORT, lora_target_modules=("q_proj", "gate_proj", "up_proj")),
        NARROW,
        {"rollout": 735.22, "forward": 754.74, "backward": 848.89, "optimizer": 694.55},
    ),
    (
        replace(SPEC, recipe=Recipe.RLOO),
        CONFIG,
        {"rollout": 885.47, "score": 877.19, "forward": 1139.16, "backward": 1230.7, "optimizer": 1040.74},
    ),
    (
        replace(SPEC, recipe=Recipe.SFT, max_length=512),
        CONFIG,
        {"forward": 1205.2, "backward": 1261.11, "optimizer": 1040.77},
    ),
]
"""Peaks in MiB of these trials in the simulation, with transformers 5.23 and trl 1.16."""


@pytest.mark.parametrize(("spec", "config", "simulated"), SIMULATED)
def test_phases_agree_with_the_simulation(spec, config, simulated):
    found = phase_instants(spec, _read(config))
    for phase, mib in simulated.items():
        assert found[Phase(phase)].total_bytes / MIB == pytest.approx(mib, rel=0.008), phase


EMULATED = [
    (replace(SPEC, **ZERO, zero_stage=1), WIDER, {"backward": 4088.17, "optimizer": 3377.73}),
    (replace(SPEC, **ZERO, zero_stage=2), WIDER, {"rollout": 2370.15, "backward": 4055.64, "optimizer": 3377.73}),
    (replace(SPEC, **ZERO, zero_stage=3), WIDER, {"rollout": 3876.44, "backward": 4088.17, "optimizer": 4055.59}),
    (replace(LORA, **ZERO, zero_stage=3), WIDER, {"rollout": 1953.07, "backward": 2028.62, "optimizer": 1311.28}),
    (replace(SPEC, **SHARDED), WIDER, {"load": 808.30, "backward": 2699.95, "optimizer": 2281.12}),
    (replace(SPEC, **STAYING), CONFIG, {"load": 318.22, "rollout": 679.30, "backward": 986.53}),
    (replace(SPEC, **AT_ONCE), CONFIG, {"load": 318.22, "backward": 1182.19, "optimizer": 1044.52}),
    (replace(SPEC, **SAVING), CONFIG, {"load": 318.22, "backward": 714.67}),
    (replace(LORA, **SHARDED), WIDER, {"load": 405.84, "backward": 690.17, "optimizer": 346.78}),
    (replace(SPEC, **SHARDED), DEEPSEEK, {"load": 292.56, "backward": 1284.62, "optimizer": 920.82}),
    (replace(SPEC, **SHARDED), DELTA, {"load": 325.40, "rollout": 875.42, "backward": 1312.75, "optimizer": 854.90}),
]
"""Peaks in MiB of one of two GPUs of these trials with torch's CUDA build on an emulated driver.

That the input of a layer's reduction stays until the next layer's was counted after the last two had shown it, and what
becomes of it in a single micro-batch, where all layers stay gathered, and in inner layers, after three of `CONFIG` had.
"""


@pytest.mark.parametrize(("spec", "config", "emulated"), EMULATED)
def test_one_of_two_gpus_agrees_with_the_emulation(spec, config, emulated):
    refuse_without_form(spec, _read(config))
    found = phase_instants(spec, _read(config))
    for phase, mib in emulated.items():
        assert found[Phase(phase)].total_bytes / MIB == pytest.approx(mib, rel=0.01), phase


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, **KEPT), EVERYTHING, replace(LORA, **KEPT, **SHARDED)])
def test_equal_layers_in_two_kinds_need_what_they_need_in_one(spec):
    """Between its ends a backward frees activations and makes gradients in proportion, so no instant is larger."""
    shape = _read(CONFIG)
    split = replace(shape, first_layers=(replace(shape, num_hidden_layers=1),))
    assert estimate(spec, split) == estimate(spec, shape)
    assert estimate_specs([spec], {"m": split}) == estimate_specs([spec], {"m": shape})


def _in_backward(spec, shape, name):
    return [each.sizes for each in trial_instants(spec, shape) if each.name is name]


def test_a_kind_of_layers_has_the_gradients_of_later_layers():
    """Its first layer needs what it needs as the first of all, and the inputs of the layers before it."""
    spec, shape = ONE_SHORT_BATCH, _read(CONFIG)
    two = replace(shape, num_hidden_layers=6, first_layers=(replace(shape, num_hidden_layers=2, num_experts=1),))
    alone = _in_backward(spec, shape, InstantName.BACKWARD_FIRST_LAYER)[0]
    second = _in_backward(spec, two, InstantName.BACKWARD_FIRST_LAYER)[0]
    inputs = 2 * spec.per_device_train_batch_size * 128 * 1024 * 2
    assert second[Category.ACTIVATIONS] - alone[Category.ACTIVATIONS] == inputs
    end = _in_backward(spec, two, InstantName.BACKWARD_LAYER)[0]
    layer, head_and_norm = layer_parameter_count(shape), 8192 * 1024 + 1024
    assert second[Category.GRADIENTS] == (3 * layer + head_and_norm) * 2
    assert end[Category.GRADIENTS] == (4 * layer + head_and_norm) * 2


def test_the_first_layer_needs_what_its_own_kind_needs():
    shape = _read(CONFIG)
    dense = replace(shape, num_experts=1)
    two = replace(shape, first_layers=(replace(dense, num_hidden_layers=1),))
    first, of_dense, of_experts = (
        _in_backward(ONE_SHORT_BATCH, each, InstantName.BACKWARD_FIRST_LAYER)[-1][Category.ACTIVATIONS]
        for each in (two, dense, shape)
    )
    assert first == of_dense != of_experts


def test_only_attention_has_linear_layers():
    assert [part.name for part in projections(_read(CONFIG))] == list(ATTENTION)


def test_experts_stay_in_bfloat16_under_qlora():
    shape, quantised = _read(CONFIG), replace(LORA, tuning=Tuning.QLORA)
    saved = weights(LORA, shape).size - weights(quantised, shape).size
    attention = 4 * 1024 * 2560
    # 2 B become about half a byte and its scales; 4 matrices of 4 layers have tables of 1,092 B
    assert 0 < 2 * attention - attention // 2 - attention // 64 - saved < 4 * 4 * (1092 + 1024)


def test_adapted_experts_save_what_merging_makes():
    shape = SOME_EXPERTS
    assert experts_saved_bytes(EVERYTHING, shape, 2) - merged_bytes(EVERYTHING, shape) == 256 + 4 * 64 + 2 * 4 * 2


def test_decoding_copies_the_experts_of_each_sequence():
    narrow = replace(SPEC, max_prompt_length=8, rollout=Rollout.GENERATE)
    found = phase_instants(narrow, _read(CONFIG))[Phase.ROLLOUT]
    synthetic = phase_instants(replace(narrow, rollout=Rollout.SYNTHETIC), _read(CONFIG))[Phase.ROLLOUT]
    assert found.total_bytes - synthetic.total_bytes > 32 * 3 * 1024 * 512 * 2 * 0.8


def test_arrays_of_trials_agree_with_single_ones():
    shape = _read(CONFIG)
    axes = [(each, n, k) for each in (SPEC, GENERATED) for n in (32, 512) for k in (1, 2)]
    specs = [replace(each, max_completion_length=n, gradient_accumulation_steps=k) for each, n, k in axes]
    table = estimate_specs(specs, {"m": shape})
    for row, spec in enumerate(specs):
        assert table.estimate(row) == replace(estimate(spec, shape), breakdown=())


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (replace(SPEC, dtype=Dtype.FLOAT32), "dtype"),
        (replace(SPEC, bf16=False), "bf16"),
        (replace(SPEC, use_liger_kernel=True), "use_liger_kernel"),
        (replace(SPEC, critic=True), "critic"),
        (replace(LORA, lora_target_modules=("gate_proj",)), "lora_target_modules"),
        (replace(LORA, lora_target_modules=("q_proj", "w1")), "lora_target_modules"),
        (replace(EVERYTHING, **SHARDED), "lora_target_modules"),
    ],
)
def test_what_has_no_formula_is_refused_by_its_key(spec, key):
    shape = _read(CONFIG)
    assert not has_form(spec, shape)
    with pytest.raises(UsageError, match="mixture of 16 experts") as caught:
        refuse_without_form(spec, shape)
    assert [fault.key for fault in caught.value.faults] == [key]


@pytest.mark.parametrize(
    "config",
    [
        {**CONFIG, "mlp_only_layers": [0]},
        {**CONFIG, "decoder_sparse_step": 2},
        {**CONFIG, "model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]},
    ],
)
def test_other_mixtures_are_refused(config):
    with pytest.raises(UsageError, match="experts has no closed-form estimate"):
        refuse_model(_read(config))


def test_a_job_of_verl_has_no_layers_of_several_kinds():
    shape = _read(CONFIG)
    refuse_model(shape, of_verl=True, with_experts=True)
    split = replace(shape, first_layers=(replace(shape, num_hidden_layers=1),))
    with pytest.raises(UsageError, match="layers of several kinds"):
        refuse_model(split, of_verl=True, with_experts=True)


def test_a_job_of_verl_has_no_mixture():
    with pytest.raises(UsageError, match="has no closed-form estimate in a job of verl"):
        refuse_model(_read(CONFIG), of_verl=True)
