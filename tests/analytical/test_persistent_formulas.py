"""Weights, gradients and optimizers: numbers by hand, and properties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.models.weights import (
    adapters,
    autocast_cache_bytes,
    autocast_forward_bytes,
    autocast_scoring_bytes,
    autocast_weight_copy_bytes,
    nf4_bytes,
    reference,
    weights,
)
from profiler.analytical.optimizers.optimizer_state import (
    eight_bit_states_bytes,
    optimizer_scratch,
    optimizer_state,
    paged_8bit_states_bytes,
    rows_and_columns_bytes,
    two_states_bytes,
)
from profiler.analytical.timeline.persistent import (
    generated_inputs,
    persistent_at_rollout,
    persistent_memory,
    unfinished_gradients,
    untied_head,
    workspace,
)
from profiler.domain.memory import Category
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Dtype, TrialSpec, Tuning

_FULL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy")
_LORA = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="toy",
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=(ALL_LINEAR,),
)
_QLORA = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="toy",
    tuning=Tuning.QLORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=(ALL_LINEAR,),
)


def test_by_hand():
    assert nf4_bytes(16_384) == 8_192 + 256 + 4 + 64 + 1_024 + 4
    assert nf4_bytes(16_384, double_quant=False) == 8_192 + 1_024 + 64
    assert two_states_bytes(1_000, 2) == 4_000
    assert eight_bit_states_bytes(4_096, is_embedding=False) == 8_320
    assert eight_bit_states_bytes(1_024, is_embedding=False) == 8_192
    assert eight_bit_states_bytes(4_096, is_embedding=True) == 32_768
    assert paged_8bit_states_bytes(102_400, is_embedding=False) == 3_200
    assert paged_8bit_states_bytes(102_400, is_embedding=True) == 0
    assert rows_and_columns_bytes((100, 50)) == 600
    assert rows_and_columns_bytes((50,)) == 200


@pytest.mark.parametrize(
    ("optim", "state", "scratch"),
    [
        # [100, 1,024] in bfloat16, and a vector of 50
        (Optimizer.ADAMW_TORCH_FUSED, 2 * 102_400 * 2 + 4 + 2 * 50 * 2 + 4, 0),
        (Optimizer.ADAMW_TORCH, 2 * 102_400 * 2 + 2 * 50 * 2, 102_400 * 2),
        (Optimizer.ADAMW_8BIT, 2 * 102_400 + 3_200 + 2 * 50 * 4, 0),
        (Optimizer.PAGED_ADAMW_8BIT, 3_200 + 2 * 50 * 4, 0),
        (Optimizer.ADAFACTOR, (100 + 1_024 + 50) * 4, 4 * 102_400 * 4),
        (Optimizer.SGD, 0, 0),
    ],
)
def test_each_optimizer_by_hand(optim, state, scratch):
    tensors = [TensorGroup(shape=(100, 1_024), copies=1), TensorGroup(shape=(50,), copies=1)]

    assert optimizer_state(optim, tensors, 2).size == state
    assert optimizer_scratch(optim, tensors, 2).size == scratch


def test_models_by_hand(half_billion):
    assert weights(_FULL, half_billion).size == 494_032_768 * 2 + 2 * 32 * 4
    assert all_gradients(_FULL, half_billion).size == 988_065_536
    assert reference(_FULL, half_billion).size == 0
    assert adapters(_LORA, half_billion).size == 8_798_208 * 4
    assert adapters(_QLORA, half_billion).size == 8_798_208 * 2


def test_four_bit_weights_need_little_more_than_half_a_byte(half_billion):
    embedding = 151_936 * 896 * 2
    linear = 494_032_768 - 151_936 * 896

    packed = weights(_QLORA, half_billion).size - embedding

    assert 0.5 * linear < packed < 0.53 * linear


def test_scratch_by_hand():
    tensors = [TensorGroup(shape=(100, 50), copies=1), TensorGroup(shape=(50,), copies=3)]

    assert optimizer_scratch(Optimizer.ADAMW_TORCH, tensors, 2).size == 10_000
    assert optimizer_scratch(Optimizer.ADAFACTOR, tensors, 2).size == 80_000
    assert optimizer_scratch(Optimizer.ADAMW_TORCH_FUSED, tensors, 2).size == 0


@given(
    optim=st.sampled_from(Optimizer),
    rows=st.integers(1, 500),
    columns=st.integers(1, 500),
    copies=st.integers(1, 9),
    is_embedding=st.booleans(),
)
def test_state_is_the_sum_over_tensors_and_paged_is_never_more(optim, rows, columns, copies, is_embedding):
    one = TensorGroup(shape=(rows, columns), copies=1, is_embedding=is_embedding)
    many = TensorGroup(shape=(rows, columns), copies=copies, is_embedding=is_embedding)

    assert optimizer_state(optim, [many], 2).size == copies * optimizer_state(optim, [one], 2).size
    assert (
        optimizer_state(Optimizer.PAGED_ADAMW_8BIT, [one], 2).size
        <= optimizer_state(Optimizer.ADAMW_8BIT, [one], 2).size
    )


@pytest.mark.parametrize("elements", [1, 63, 64, 65, 4_095, 1_000_001])
def test_nf4_grows_with_its_matrix(elements):
    assert nf4_bytes(elements) <= nf4_bytes(elements + 1)
    assert nf4_bytes(elements) >= elements / 2
    scales = 4 * -(-elements // 64)
    assert nf4_bytes(elements, double_quant=False) == -(-elements // 2) + scales + 64


def test_weights_in_float32_need_twice_the_memory(half_billion):
    wide = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy", dtype=Dtype.FLOAT32)
    buffers = 2 * 32 * 4

    assert weights(wide, half_billion).size - buffers == 2 * (weights(_FULL, half_billion).size - buffers)


def test_autocast_copies_by_hand(half_billion):
    assert autocast_cache_bytes(_LORA, half_billion) == 17_596_416
    assert autocast_weight_copy_bytes(_LORA, half_billion) == 733_184
    assert autocast_scoring_bytes(_LORA, half_billion) == 17_596_416
    assert autocast_scoring_bytes(replace(_LORA, bf16=False), half_billion) == 0
    assert autocast_cache_bytes(_FULL, half_billion) == 0


def test_under_checkpointing_the_copy_of_a_frozen_weight_is_transient(half_billion):
    wide = replace(_LORA, dtype=Dtype.FLOAT32)
    without = replace(wide, gradient_checkpointing=False)

    assert autocast_forward_bytes(wide, half_billion) == 8_798_208 * 2 + 896 * 4_864 * 2
    assert autocast_forward_bytes(without, half_billion) == autocast_cache_bytes(without, half_billion)
    assert autocast_forward_bytes(_LORA, half_billion) == autocast_cache_bytes(_LORA, half_billion)


def test_copies_of_float16_weights_are_not_cached(half_billion):
    linear = 494_032_768 - 151_936 * 896 - 24 * (1_152 + 2 * 896) - 896
    half = replace(_FULL, dtype=Dtype.FLOAT16)
    wide = replace(_FULL, dtype=Dtype.FLOAT32)

    # without checkpointing each product saves its copy; with it one copy at a time, the largest
    assert autocast_forward_bytes(replace(half, gradient_checkpointing=False), half_billion) == 2 * linear
    assert autocast_forward_bytes(half, half_billion) == 896 * 4_864 * 2
    assert autocast_scoring_bytes(half, half_billion) == 0
    assert autocast_forward_bytes(wide, half_billion) == autocast_scoring_bytes(wide, half_billion) == 2 * linear


def test_workspaces_by_card():
    assert workspace("h100-80gb").size == workspace(None).size == 67_108_864
    assert workspace("a100-80gb").size == 2 * 8_519_680


def test_a_head_is_allocated_before_it_is_tied(half_billion):
    assert untied_head(_FULL, half_billion).size == 272_269_312
    assert untied_head(_FULL, replace(half_billion, tie_word_embeddings=False)).size == 0


@pytest.mark.parametrize(
    ("steps", "accumulation", "generation", "has_state", "has_gradients"),
    [
        (3, 4, 4, True, False),
        (1, 4, 4, False, False),
        (2, 1, 2, False, False),
        (3, 1, 2, True, False),
        (2, 4, 1, True, True),
        (1, 4, 1, False, True),
        (2, 2, 3, True, True),
        (1, 2, 3, False, False),
    ],
)
def test_optimizer_state_and_gradients_during_a_rollout(
    half_billion, steps, accumulation, generation, has_state, has_gradients
):
    spec = replace(_FULL, steps=steps, gradient_accumulation_steps=accumulation, steps_per_generation=generation)
    found = persistent_at_rollout(spec, persistent_memory(spec, half_billion, inputs=generated_inputs(spec)))

    assert bool(found[Category.OPTIMIZER_STATE].size) == has_state
    assert bool(unfinished_gradients(spec, half_billion).size) == has_gradients
