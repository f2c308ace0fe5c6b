"""Phases of trials with adapters, as the simulation has them, and the tensors behind them by hand."""

from dataclasses import replace
from typing import Any

import pytest

from profiler.analytical.estimate import phase_instants
from profiler.analytical.formulas.layers.decoder_layer import layer_saved_bytes
from profiler.analytical.formulas.layers.layer_backward import (
    head_norm_backward_bytes,
    mlp_backward_bytes,
    norm_backward,
    recomputation_bytes,
)
from profiler.analytical.formulas.models.weights import widened_bytes
from profiler.analytical.formulas.sizes.trial_keys import Batch
from profiler.config.models.architecture import read_architecture
from profiler.domain.memory import MIB, Phase
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Dtype, Lengths, Rollout, TrialSpec, Tuning

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
LORA = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="m",
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=(ALL_LINEAR,),
    rollout=Rollout.SYNTHETIC,
    lengths=Lengths.FORCED,
    max_prompt_length=1024,
    max_completion_length=64,
    gradient_accumulation_steps=2,
    steps_per_generation=3,
    steps=2,
)
QLORA = replace(LORA, tuning=Tuning.QLORA)
COMPARED: dict[str, Any] = {"beta": 0.04, "steps_per_generation": 2}
"""Only the reference scores: without adapters, or with a copy of them."""

SIMULATED = [
    (LORA, (835.13, 362.7, 379.31, 570.96)),
    (replace(LORA, bf16=False), (835.13, 411.51, 428.12, 629.67)),
    (replace(LORA, dtype=Dtype.FLOAT16), (835.13, 379.93, 413.54, 620.58)),
    (replace(LORA, dtype=Dtype.FLOAT32), (2501.33, 512.71, 546.32, 753.37)),
    (replace(LORA, lora_target_modules=("gate_proj",)), (748.6, 320.99, 337.6, 452.31)),
    (replace(LORA, lora_target_modules=("up_proj",)), (820.6, 346.49, 363.1, 460.81)),
    (replace(LORA, lora_target_modules=("down_proj",)), (676.6, 338.09, 354.7, 503.31)),
    (replace(LORA, lora_target_modules=("q_proj", "v_proj")), (555.86, 303.15, 319.76, 461.05)),
    (QLORA, (565.17, 266.56, 283.17, 399.54)),
    (replace(QLORA, dtype=Dtype.FLOAT16), (589.17, 369.56, 403.17, 597.67)),
    (replace(QLORA, dtype=Dtype.FLOAT32), (2332.38, 409.34, 442.95, 636.2)),
    (replace(QLORA, lora_target_modules=("q_proj", "v_proj")), (485.53, 233.41, 250.02, 382.24)),
    (replace(LORA, **COMPARED), (620.31, 313.17, 379.24, 570.02)),
    (replace(LORA, **COMPARED, ref_adapter=True), (624.94, 362.48, 383.87, 574.64)),
    (replace(QLORA, **COMPARED, ref_adapter=True), (421.79, 270.34, 287.23, 402.97)),
]
"""Peaks in MiB of rollout, scores, forward and backward in the simulation, with peft 0.21 and bitsandbytes 0.50."""

PHASES = (Phase.ROLLOUT, Phase.SCORE, Phase.FORWARD, Phase.BACKWARD)


@pytest.mark.parametrize(("spec", "simulated"), SIMULATED)
def test_phases_agree_with_the_simulation(spec, simulated):
    found = phase_instants(spec, read_architecture(CONFIG, model="m"))
    for phase, mib in zip(PHASES, simulated, strict=True):
        assert found[phase].total_bytes / MIB == pytest.approx(mib, rel=0.015), phase


def _toy(**changes):
    small = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    return read_architecture({**CONFIG, **small, "head_dim": 4, **changes}, model="m")


TOKENS = Batch(rows=1, prompt_tokens=5, completion_tokens=5, scored_tokens=5, has_mask=False)


def test_the_gradient_of_an_mlp_is_that_of_the_stream():
    # three gradients of 16 values and one of 8; the adapter of down frees its input, which has the size of one of them
    frozen = replace(LORA, lora_target_modules=("q_proj",))
    assert mlp_backward_bytes(frozen, _toy(), TOKENS) == 10 * (3 * 16 + 8) * 2
    assert mlp_backward_bytes(LORA, _toy(), TOKENS) == 10 * (2 * 16 + 8) * 2
    # the adapter saves bfloat16, and the gradients are float32
    wide = replace(QLORA, dtype=Dtype.FLOAT32)
    assert mlp_backward_bytes(wide, _toy(), TOKENS) == 10 * ((3 * 16 + 8) * 4 - 16 * 2)


def test_a_weight_gradient_can_exceed_those_of_gate_and_up():
    full = replace(LORA, tuning=Tuning.FULL, lora_rank=None, lora_alpha=None, lora_target_modules=None)
    # of 10 tokens, two gradients of 16 values are larger than one and that of a weight; of 2 tokens they are smaller
    assert mlp_backward_bytes(full, _toy(), TOKENS) == (10 * (2 * 16 + 8)) * 2
    few = replace(TOKENS, prompt_tokens=1, completion_tokens=1)
    assert mlp_backward_bytes(full, _toy(), few) == (2 * (16 + 8) + 8 * 16) * 2


def test_the_backward_of_a_norm_has_five_tensors():
    full = replace(LORA, tuning=Tuning.FULL, lora_rank=None, lora_alpha=None, lora_target_modules=None)
    assert norm_backward(LORA, _toy(), TOKENS).size == 10 * 8 * 5 * 4
    # the normalised input in bfloat16 is freed
    assert norm_backward(full, _toy(), TOKENS).size == 10 * 8 * (5 * 4 - 2)
    assert norm_backward(full, _toy(model_type="gemma2"), TOKENS).size == 10 * 8 * 4 * 4


def test_the_norm_over_queries_is_counted_next_to_what_is_left():
    """T = 10, H = 8, 2 heads of 4 and one of keys, bfloat16, full: 6 x 320 + 80 + 160 + 520 + 2 x 160 B."""
    full = replace(LORA, tuning=Tuning.FULL, lora_rank=None, lora_alpha=None, lora_target_modules=None)
    model = _toy(model_type="qwen3", qk_norm=True)
    made = 6 * 10 * 8 * 4 + 10 * 2 * 4 + 10 * 8 * 2 + 10 * (8 * 4 + 4 + 8 * 2) + 2 * 10 * 8 * 2
    saved = layer_saved_bytes(full, model, TOKENS)
    assert head_norm_backward_bytes(full, model, TOKENS) == made - saved
    # Gemma normalises in float32, after the values: their gradient and that of the keys wait, not that of the input.
    later = _toy(model_type="gemma3_text", qk_norm=True, num_key_value_heads=2)
    waits = made + 10 * 8 * (4 - 2) - 10 * 8 * 2 + 2 * 10 * 8 * 2
    assert head_norm_backward_bytes(full, later, TOKENS) == waits - layer_saved_bytes(full, later, TOKENS)
    assert head_norm_backward_bytes(full, _toy(), TOKENS) == 0
    assert head_norm_backward_bytes(replace(full, use_liger_kernel=True), model, TOKENS) == 0


def test_recomputation_by_hand():
    # gradient, scaled gradient, residual stream, input and result of the MLP; the product in bfloat16 and float32
    down = replace(LORA, lora_target_modules=("down_proj",))
    assert recomputation_bytes(down, _toy(), TOKENS) == 10 * (5 * 8 * 2 + 16 * (2 + 4))
    # gradient, residual stream and input of the MLP; up's input in float32; its result before and after scaling
    up = replace(LORA, lora_target_modules=("up_proj",))
    assert recomputation_bytes(up, _toy(), TOKENS) == 10 * (3 * 8 * 2 + 8 * 4 + 2 * 16 * 2)
    # a residual stream in float32 is what the norm saves
    wide = replace(down, dtype=Dtype.FLOAT32)
    assert recomputation_bytes(wide, _toy(), TOKENS) == 10 * (3 * 8 * 4 + 8 * 2 + 16 * (2 + 4))


def test_many_rows_widen_a_matrix_in_four_bits():
    large, small = 4_096 * 1_024, 1_024 * 1_024
    scales = 2 * 65_536 * 4

    assert widened_bytes(QLORA, large, 256, autocast=False) == 0
    assert widened_bytes(QLORA, large, 257, autocast=False) == 8_388_608 + scales
    assert widened_bytes(replace(QLORA, bnb_4bit_use_double_quant=False), large, 257, autocast=False) == 8_388_608
    assert widened_bytes(QLORA, small, 1_536, autocast=False) == 0
    assert widened_bytes(QLORA, small, 1_537, autocast=False) == 2_097_152 + scales // 4
    # autocast copies a float16 matrix to bfloat16
    half = replace(QLORA, dtype=Dtype.FLOAT16)
    assert widened_bytes(half, large, 257, autocast=True) == 2 * 8_388_608 + scales
