"""Dropout of attention and of adapters: numbers by hand, properties, and the simulation as judge."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import with_further
from simulating import simulate, small_spec
from trial_strategies import architecture, specs

from profiler.analytical.estimate import estimate, phase_instants, refuse_without_form
from profiler.analytical.formulas.layers.decoder_layer import (
    attention_inputs_saved_bytes,
    first_layer_unsaved_bytes,
    frozen_inputs_saved_bytes,
    other_inputs_saved_bytes,
)
from profiler.analytical.formulas.layers.eager_attention import drops_scores, saved_scores_bytes, scores_forward_bytes
from profiler.analytical.formulas.layers.layer_backward import _dropout_backward_bytes
from profiler.analytical.formulas.layers.layer_without_gradient import _dropping_bytes, down_input_bytes
from profiler.analytical.formulas.sizes.trial_keys import Batch
from profiler.analytical.many import estimate_specs
from profiler.config.models.architecture import read_architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Attention, DistributedType, Dtype, Logprobs, Rollout, Tuning

LORA = {"lora_rank": 2, "lora_alpha": 4, "lora_target_modules": ("all-linear",)}
ONE_ROW = Batch(rows=1, prompt_tokens=4, completion_tokens=4, scored_tokens=4, has_mask=False)


def spec(**keys):
    return small_spec(**{"tuning": Tuning.LORA, **LORA, **keys})


def grown(function, shape, *args, **keys):
    """Return by how much a formula grows with dropout of adapters."""
    with_dropout, without = (function(spec(lora_dropout=part, **keys), shape, *args) for part in (0.05, 0.0))
    return with_dropout - without


def test_each_adapter_keeps_a_mask_by_hand(toy):
    """T = 10: q, k and v read [T, 8], as do o, gate and up; down reads [T, 16]."""
    assert grown(attention_inputs_saved_bytes, toy, 10) == 3 * 80
    assert grown(other_inputs_saved_bytes, toy, 10) == 3 * 80 + 160


def test_adapters_of_4_bit_layers_share_no_input_by_hand(toy):
    """In bfloat16 q, k and v shared 160 B, gate and up as many; that of o was attention's output."""
    qlora = {"tuning": Tuning.QLORA}
    assert grown(attention_inputs_saved_bytes, toy, 10, **qlora) == 2 * 160 + 3 * 80
    assert grown(other_inputs_saved_bytes, toy, 10, **qlora) == 2 * 160 + 3 * 80 + 160


def test_the_first_layer_keeps_no_masks_by_hand(toy):
    assert grown(first_layer_unsaved_bytes, toy, ONE_ROW) == 3 * 8 * 8


def test_a_frozen_layer_saves_a_dropped_input_by_hand(toy):
    zero = {"distributed_type": DistributedType.DEEPSPEED, "zero_stage": 3, "num_processes": 2}
    assert grown(frozen_inputs_saved_bytes, toy, 10, ("down_proj",), **zero) == 10 * 16 * 2


def test_transients_of_an_adapter_by_hand(toy):
    """T = 8, [T, 16] is 128 values: float32 twice in forward; 2 x 4 B of gradients less a saved 2 B in backward."""
    assert grown(down_input_bytes, toy, ONE_ROW) == 128 * 4
    assert grown(_dropout_backward_bytes, toy, 8) == 128 * (2 * 4 - 2)
    assert _dropping_bytes(spec(lora_dropout=0.05), 128, 2, autocast=True) == 128 * (4 + 2)
    assert _dropping_bytes(spec(lora_dropout=0.05), 128, 2, autocast=False) == 128 * (4 + 1)


def test_scores_keep_a_mask_by_hand(toy):
    """128 scores; in float32 eager attention keeps the weights before dropout, those after it, and the mask."""
    dropping = replace(toy, attention_dropout=0.1)
    eager, sdpa = (spec(attn_implementation=name, bf16=False) for name in (Attention.EAGER, Attention.SDPA))
    assert saved_scores_bytes(eager, dropping, ONE_ROW) == 128 * 7
    assert saved_scores_bytes(replace(eager, dtype=Dtype.FLOAT32), dropping, ONE_ROW) == 128 * 9
    assert saved_scores_bytes(sdpa, dropping, ONE_ROW) == 128 * 9
    in_float32 = replace(eager, dtype=Dtype.FLOAT32)
    assert scores_forward_bytes(in_float32, dropping, ONE_ROW, autocast=False) == 128 * 9
    assert scores_forward_bytes(in_float32, toy, ONE_ROW, autocast=False) == 128 * 8


@pytest.mark.parametrize(("part", "drops"), [(0.0, False), (0.1, True), (1.0, False)])
def test_all_or_nothing_needs_no_mask(toy, part, drops):
    assert drops_scores(replace(toy, attention_dropout=part)) == drops


@given(trial=specs(), part=st.sampled_from([0.0, 0.1]))
def test_dropout_never_needs_less_and_a_table_agrees(trial, part):
    shape = replace(architecture(trial.model), attention_dropout=part)
    with_dropout = estimate(trial, shape).peak_allocated_bytes
    plain = estimate(replace(trial, lora_dropout=0.0), replace(shape, attention_dropout=0.0)).peak_allocated_bytes
    assert with_dropout >= plain
    if part == 0.0 and trial.lora_dropout == 0.0:
        assert with_dropout == plain
    trials = [trial, replace(trial, lora_dropout=0.0), replace(trial, max_completion_length=77)]
    table = estimate_specs(trials, {trial.model: shape})
    assert list(table.peak_allocated_bytes) == [estimate(each, shape).peak_allocated_bytes for each in trials]


def test_a_fused_kernel_keeps_no_mask(half_billion):
    trial = replace(spec(), model="qwen2.5-0.5b", max_completion_length=500)
    assert estimate(trial, replace(half_billion, attention_dropout=0.1)) == estimate(trial, half_billion)


def test_adapters_of_experts_take_no_dropout():
    """peft refuses it: `ParamWrapper.__init__`."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import ParamWrapper

    config = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "vocab_size": 96}
    mixture = read_architecture({**config, **experts}, model="m")
    with pytest.raises(UsageError, match="peft refuses to drop a part of their inputs"):
        refuse_without_form(spec(lora_dropout=0.05), mixture)
    refuse_without_form(spec(lora_dropout=0.0), mixture)
    refuse_without_form(spec(lora_dropout=0.05, lora_target_modules=("q_proj", "v_proj")), mixture)
    import torch

    with pytest.raises(ValueError, match="does not work with lora_dropout != 0"):
        ParamWrapper(
            torch.nn.Linear(4, 4), "default", "weight", r=2, lora_alpha=2, config=LoraConfig(r=2, lora_dropout=0.05)
        )


SHAPE = {
    **BUILTIN_MODELS["tiny"].config,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
}
ROWS = {
    "max_prompt_length": 64,
    "max_completion_length": 320,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "rollout": Rollout.SYNTHETIC,
}
OLD_CARD = {"gpu": "t4-16gb", "dtype": Dtype.FLOAT16, "bf16": False, "logprobs": Logprobs.FULL}


DROPPED = {
    "lora": ({"tuning": Tuning.LORA, "lora_dropout": 0.05}, 0.0),
    "qlora": ({"tuning": Tuning.QLORA, "lora_dropout": 0.05}, 0.0),
    "eager": ({"tuning": Tuning.FULL, "attn_implementation": Attention.EAGER}, 0.1),
    "sdpa without a kernel": ({"tuning": Tuning.FULL, **OLD_CARD}, 0.1),
}
CASES = [(name, checkpointing) for name in DROPPED for checkpointing in (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize("case", with_further(CASES, CASES[:2] + CASES[5::2]), ids=str)
def test_the_simulation_keeps_what_the_formulas_count(case):
    name, checkpointing = case
    keys, part = DROPPED[name]
    adapters = {} if keys["tuning"] is Tuning.FULL else {**LORA, "lora_rank": 8}
    keys = {**ROWS, **adapters, **keys, "gradient_checkpointing": checkpointing}
    config = {**SHAPE, "attention_dropout": part}
    simulated = simulate(model_config=config, **keys)
    peaks = dict.fromkeys(Phase, 0)
    for phase, level in simulated.levels():
        peaks[phase] = max(peaks[phase], sum(level.values()))
    found = phase_instants(small_spec(**keys), read_architecture(config, model="m"))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert found[phase].total_bytes == pytest.approx(peaks[phase], rel=0.03), phase
