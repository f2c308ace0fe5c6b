"""Mixtures of experts: parameters and activations by hand, and phases as the simulation has them."""

from dataclasses import replace

import pytest

from profiler.analytical.closed_form import has_form, refuse_model, refuse_without_form
from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.formulas.experts import experts_saved_bytes, experts_without_gradient_bytes
from profiler.analytical.formulas.parameters import parameter_count, projections
from profiler.analytical.many import estimate_specs
from profiler.config.architecture import read_architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import Phase
from profiler.domain.recipe import Recipe
from profiler.domain.trial import ALL_LINEAR, Backend, DistributedType, Dtype, Lengths, Rollout, TrialSpec, Tuning
from profiler.domain.units import MIB

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
NARROW = {**CONFIG, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
SPEC = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="m",
    rollout=Rollout.SYNTHETIC,
    lengths=Lengths.FORCED,
    max_prompt_length=256,
    max_completion_length=256,
    gradient_accumulation_steps=2,
    steps_per_generation=2,
    steps=2,
)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA = replace(SPEC, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=ATTENTION)
ONE_SHORT_BATCH = replace(
    SPEC, max_prompt_length=64, max_completion_length=64, gradient_accumulation_steps=1, steps_per_generation=1
)


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
]
"""Peaks in MiB of these trials in the simulation, with transformers 5.23 and trl 1.16."""


@pytest.mark.parametrize(("spec", "config", "simulated"), SIMULATED)
def test_phases_agree_with_the_simulation(spec, config, simulated):
    found = phase_instants(spec, _read(config))
    for phase, mib in simulated.items():
        assert found[Phase(phase)].total_bytes / MIB == pytest.approx(mib, rel=0.01), phase


def test_parameters_by_hand():
    # attention 1,024 x (1,024 + 256 + 256 + 1,024) and two norms of 64, a router, 16 experts of 3 x 1,024 x 512, norms
    layer = 1024 * 2560 + 128 + 16 * 1024 + 16 * 3 * 1024 * 512 + 2 * 1024
    assert parameter_count(_read(CONFIG)) == 4 * layer + 2 * 8192 * 1024 + 1024 == 128_001_536
    assert [part.name for part in projections(_read(CONFIG))] == list(ATTENTION)


def test_the_published_30b_has_its_number_of_parameters():
    sizes = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "vocab_size": 151_936}
    config = {**CONFIG, **sizes, "moe_intermediate_size": 768, "num_experts": 128, "head_dim": 128}
    # Qwen3-30B-A3B: 30.5 billion
    assert parameter_count(_read(config)) == 30_532_122_624


def test_activations_by_hand():
    shape = replace(_read(CONFIG), hidden_size=4, expert_width=2, experts_per_token=4)
    # 2 tokens: 8 pairs
    assert experts_saved_bytes(SPEC, shape, 2) == 256 + 4 * 64
    assert experts_saved_bytes(LORA, shape, 2) == 8 * (4 + 3 * 2) * 2 + 4 * 64
    assert experts_without_gradient_bytes(SPEC, shape, 2) == 256 + 4 * 64


def test_arrays_of_trials_agree_with_single_ones():
    shape = _read(CONFIG)
    specs = [replace(SPEC, max_completion_length=n, gradient_accumulation_steps=k) for n in (32, 512) for k in (1, 2)]
    table = estimate_specs(specs, {"m": shape})
    for row, spec in enumerate(specs):
        assert table.estimate(row) == replace(estimate(spec, shape), breakdown=())


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (replace(SPEC, dtype=Dtype.FLOAT32), "dtype"),
        (replace(SPEC, bf16=False), "bf16"),
        (replace(SPEC, recipe=Recipe.SFT, max_length=512), "recipe"),
        (replace(SPEC, num_processes=2, distributed_type=DistributedType.FSDP, fsdp_version=2), "distributed_type"),
        (replace(LORA, lora_target_modules=(ALL_LINEAR,)), "lora_target_modules"),
        (replace(LORA, lora_target_modules=("gate_proj",)), "lora_target_modules"),
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
        {**CONFIG, "model_type": "mixtral", "num_local_experts": 16},
        {**CONFIG, "model_type": "qwen2_moe"},
    ],
)
def test_other_mixtures_are_refused(config):
    with pytest.raises(UsageError, match="experts has no closed-form estimate"):
        refuse_model(_read(config))


def test_a_job_of_verl_has_no_mixture():
    with pytest.raises(UsageError, match="has no closed-form estimate in a job of verl"):
        refuse_model(_read(CONFIG), of_verl=True)
