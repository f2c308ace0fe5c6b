"""Weights, gradients and optimizers: properties. Numbers are in `formula_rows_models.py`."""

from dataclasses import replace

import pytest
from formula_rows_models import FULL, LORA, QLORA
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.weights import (
    autocast_cache_bytes,
    autocast_forward_bytes,
    nf4_bytes,
    weights,
)
from profiler.analytical.optimizers import (
    optimizer_scratch,
    optimizer_state,
)
from profiler.analytical.timeline.instants import (
    generated_inputs,
    persistent_at_rollout,
    persistent_memory,
    unfinished_gradients,
)
from profiler.domain.memory import Category
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend, Dtype, TrialSpec


def test_four_bit_weights_need_little_more_than_half_a_byte(half_billion):
    embedding = 151_936 * 896 * 2
    linear = 494_032_768 - 151_936 * 896

    packed = weights(QLORA, half_billion).size - embedding

    assert 0.5 * linear < packed < 0.53 * linear


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
    assert optimizer_state(Optimizer.PAGED_ADAMW_32BIT, [one], 2).size in (0, 2 * rows * columns * 4)


@given(
    optim=st.sampled_from(Optimizer),
    rows=st.integers(1, 500),
    columns=st.integers(1, 500),
    decays=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_only_sgd_needs_memory_for_weight_decay(optim, rows, columns, decays):
    tensors = [TensorGroup(shape=(rows, columns), copies=2), TensorGroup(shape=(columns,), copies=3)]
    sizes = [optimizer_scratch(optim, tensors, 2, weight_decay=decay).size for decay in (0.0, *decays)]

    if optim is Optimizer.SGD:
        assert sizes == [0, *(2 * rows * columns * 2 * (decay > 0) for decay in decays)]
    else:
        assert len(set(sizes)) == 1


@pytest.mark.parametrize("elements", [1, 63, 64, 65, 4_095, 1_000_001])
def test_nf4_grows_with_its_matrix(elements):
    assert nf4_bytes(elements) <= nf4_bytes(elements + 1)
    assert nf4_bytes(elements) >= elements / 2
    scales = 4 * -(-elements // 64)
    assert nf4_bytes(elements, double_quant=False) == -(-elements // 2) + scales + 64


def test_weights_in_float32_need_twice_the_memory(half_billion):
    wide = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy", dtype=Dtype.FLOAT32)
    buffers = 2 * 32 * 4

    assert weights(wide, half_billion).size - buffers == 2 * (weights(FULL, half_billion).size - buffers)


def test_checkpointing_makes_copies_of_frozen_weights_transient(half_billion):
    wide = replace(LORA, dtype=Dtype.FLOAT32)
    without = replace(wide, gradient_checkpointing=False)

    assert autocast_forward_bytes(without, half_billion, in_layer=True) == autocast_cache_bytes(without, half_billion)
    assert autocast_forward_bytes(LORA, half_billion, in_layer=True) == autocast_cache_bytes(LORA, half_billion)


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
    spec = replace(FULL, steps=steps, gradient_accumulation_steps=accumulation, steps_per_generation=generation)
    found = persistent_at_rollout(spec, persistent_memory(spec, half_billion, inputs=generated_inputs(spec)))

    assert bool(found[Category.OPTIMIZER_STATE].size) == has_state
    assert bool(unfinished_gradients(spec, half_billion).size) == has_gradients
