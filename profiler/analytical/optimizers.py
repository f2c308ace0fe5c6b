"""Bytes that an optimizer keeps between steps, and bytes that it needs only during a step.

The kinds of state and scratch, and the optimizers that have them, are declared in `profiler.domain.trials.optimizers`.
"""

from collections.abc import Sequence

from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.models.trained import FLOAT32_BYTES
from profiler.analytical.formulas.sizes.quantities import (
    Coded,
    Count,
    Flag,
    Number,
    Term,
    larger,
    looked_up,
    one_value,
    where,
    whole_units,
)
from profiler.analytical.formulas.sizes.rounding import Block, exact
from profiler.domain.text import count_text
from profiler.domain.trials.optimizers import Optimizer, OptimizerTraits, Scratch, State

_MIN_8BIT_ELEMENTS, _8BIT_BLOCK, _MIN_PAGED_ELEMENTS = 4096, 256, 100_000
_ADAM = (1, 1)
"""Two moments, a tensor each."""


def optimizer_state(
    optim: Optimizer | Coded[Optimizer], tensors: Sequence[TensorGroup], element: Count, block: Block = exact
) -> Term:
    """Return the optimizer's state in torch's allocator.

    Args:
        optim: The optimizer.
        tensors: The parameters that it updates.
        element: Bytes of one updated value.
        block: Rounding of the size of each tensor.
    """
    size = looked_up(
        optim,
        lambda each: sum(state_of_tensor(each.traits, group, element, block) * group.copies for group in tensors),
    )
    return Term(size, lambda: state_text(optim, count_of(tensors), element))


def state_text(optim: Optimizer | Coded[Optimizer], count: Count, element: Count) -> str:
    """Return the words of the state of `count` parameters."""
    return one_value(optim).traits.state_text.format(n=count_text(count), e=element)


def state_of_tensor(traits: OptimizerTraits, group: TensorGroup, element: Count, block: Block) -> Count:
    """Return the state of one tensor of a group."""
    elements, values = group.elements, traits.values
    match traits.state:
        case State.NONE:
            return 0
        case State.IN_TYPE:
            return states_bytes(elements, element, block, values=values) + traits.step_counter_bytes
        case State.FLOAT32:
            unpaged = states_bytes(elements, FLOAT32_BYTES, block, values=values)
            return where(elements < _MIN_PAGED_ELEMENTS, unpaged, 0) if traits.is_paged else unpaged
        case State.EIGHT_BIT if traits.is_paged:
            return paged_8bit_states_bytes(elements, is_embedding=group.is_embedding, block=block, values=values)
        case State.EIGHT_BIT:
            return eight_bit_states_bytes(elements, is_embedding=group.is_embedding, block=block, values=values)
        case State.ROWS_AND_COLUMNS:
            return rows_and_columns_bytes(group.shape, block)


def states_bytes(elements: Count, element: Count, block: Block = exact, *, values: Sequence[int] = _ADAM) -> Count:
    """Return the bytes of an optimizer's moments for one tensor of parameters, a tensor per entry of `values`.

    By hand, torch's AdamW (`exp_avg` and `exp_avg_sq`), 1,000 values in bfloat16: 2 x 1,000 x 2 B = 4,000 B. The step
    counter is on the host, except in the fused AdamW (`step_counter_bytes`).
    """
    return sum(block(each * elements * element) for each in values)


def eight_bit_states_bytes(
    elements: Count, *, is_embedding: bool, block: Block = exact, values: Sequence[int] = _ADAM
) -> Count:
    """Return the bytes of 8-bit states of bitsandbytes for one tensor: a byte per value, a float32 per 256 values.

    Float32 values instead for tensors below 4,096 values (`min_8bit_size`) and for `nn.Embedding`, which the trainer of
    transformers registers as an exception. By hand, AdamW, 4,096 values: 2 x 4,096 + 2 x 16 x 4 = 8,320 B; 1,024
    values: 2 x 1,024 x 4 = 8,192 B.

    Source: `Optimizer2State.init_state` in bitsandbytes. The two tables that all tensors share (2 KiB) are left out.
    """
    wide = states_bytes(elements, FLOAT32_BYTES, block, values=values)
    narrow = states_bytes(elements, 1, block, values=values) + _scale_bytes(elements, block, values)
    return wide if is_embedding else where(elements < _MIN_8BIT_ELEMENTS, wide, narrow)


def has_wide_states(tensors: Sequence[TensorGroup]) -> bool:
    """Return whether an optimizer of 8 bits keeps float32 states of a tensor.

    By hand, rank 16 on a layer from 896 to 128: A has 14,336 values, and B 2,048, which are below 4,096.
    """
    return any(group.is_embedding or group.elements < _MIN_8BIT_ELEMENTS for group in tensors)


def _scale_bytes(elements: Count, block: Block, values: Sequence[int]) -> Count:
    return states_bytes(whole_units(elements, _8BIT_BLOCK), FLOAT32_BYTES, block, values=values)


def paged_8bit_states_bytes(
    elements: Count, *, is_embedding: bool, block: Block = exact, values: Sequence[int] = _ADAM
) -> Count:
    """Return the part of `eight_bit_states_bytes` that is not in managed memory, which torch's allocator does not see.

    The states of tensors of 100,000 values or more are paged, their scales are not. By hand, AdamW, 102,400 values:
    2 x 400 x 4 = 3,200 B.

    Source: `get_state_buffer` in bitsandbytes.
    """
    unpaged = eight_bit_states_bytes(elements, is_embedding=is_embedding, block=block, values=values)
    paged = 0 if is_embedding else _scale_bytes(elements, block, values)
    return where(elements < _MIN_PAGED_ELEMENTS, unpaged, paged)


def rows_and_columns_bytes(shape: Sequence[Count], block: Block = exact) -> Count:
    """Return the bytes of transformers' Adafactor without first moment for one tensor: means of rows and of columns.

    In float32; a vector has one value per element. By hand, [100, 50]: (100 + 50) x 4 = 600 B.
    """
    if len(shape) < 2:
        return block(shape[0] * FLOAT32_BYTES)
    return block(shape[-2] * FLOAT32_BYTES) + block(shape[-1] * FLOAT32_BYTES)


def optimizer_scratch(
    optim: Optimizer | Coded[Optimizer],
    tensors: Sequence[TensorGroup],
    element: Count,
    block: Block = exact,
    *,
    weight_decay: Number = 0.0,
) -> Term:
    """Return the peak of what exists only during `step()`.

    Args:
        optim: The optimizer.
        tensors: The parameters that it updates.
        element: Bytes of one updated value.
        block: Rounding of the size of each tensor.
        weight_decay: That of the matrices; transformers gives vectors none.
    """
    decays = weight_decay > 0
    size = looked_up(optim, lambda each: _scratch_bytes(each.traits.scratch, tensors, element, block, decays=decays))
    return Term(size, lambda: one_value(optim).traits.scratch_text)


def _scratch_bytes(
    scratch: Scratch, tensors: Sequence[TensorGroup], element: Count, block: Block, *, decays: Flag
) -> Count:
    match scratch:
        case Scratch.NONE:
            return 0
        case Scratch.ROOTS_OF_A_GROUP:
            return roots_bytes(tensors, element, block)
        case Scratch.DECAYED_GRADIENTS:
            return where(decays, decayed_gradients_bytes(tensors, element, block), 0)
        case Scratch.COPIES_OF_THE_LARGEST:
            return float32_copies_bytes(tensors, element, block)


def roots_bytes(tensors: Sequence[TensorGroup], element: Count, block: Block = exact) -> Count:
    """Return the bytes of the square roots of all second moments of one parameter group, in the parameter's type.

    torch's foreach path computes them at once. transformers makes two groups, matrices (with weight decay) and vectors;
    the larger one counts. By hand, a [100, 50] matrix in bfloat16: 10,000 B.

    Source: `_multi_tensor_adam` in torch.
    """
    return larger(*(_group_bytes(tensors, element, block, is_matrix=is_matrix) for is_matrix in (True, False)))


def decayed_gradients_bytes(tensors: Sequence[TensorGroup], element: Count, block: Block = exact) -> Count:
    """Return the bytes of the sums of gradient and decayed parameter of all matrices, in the parameter's type.

    torch's foreach path makes them at once, and only where the decay is not 0; AdamW and Lion scale the parameter in
    its place. Vectors are in the other group of transformers, which has no decay. By hand, a [100, 50] matrix and
    three vectors of 50 in bfloat16: 10,000 B.

    Source: `_multi_tensor_sgd` in torch 2.13; `Trainer.get_decay_parameter_names` in transformers.
    """
    return _group_bytes(tensors, element, block, is_matrix=True)


def _group_bytes(tensors: Sequence[TensorGroup], element: Count, block: Block, *, is_matrix: bool) -> Count:
    return sum(
        group.copies * block(group.elements * element) for group in tensors if (len(group.shape) > 1) is is_matrix
    )


def float32_copies_bytes(tensors: Sequence[TensorGroup], element: Count, block: Block = exact) -> Count:
    """Return the bytes of the float32 copies of the largest tensor in Adafactor, which goes tensor by tensor.

    They are gradient and parameter, if these are narrower, the squared gradient, and its sum with epsilon. By hand, a
    [100, 50] matrix in bfloat16: 4 x 5,000 x 4 = 80,000 B.

    Source: `Adafactor.step` in transformers.
    """
    copies = where(element < FLOAT32_BYTES, 4, 2)
    largest = larger(0, *(where(group.copies > 0, group.elements, 0) for group in tensors))
    return copies * block(FLOAT32_BYTES * largest)
