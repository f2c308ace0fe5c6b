"""Bytes that each optimizer keeps between steps, and those it needs only during one."""

from collections.abc import Sequence

from profiler.analytical.formulas.parameters import TensorGroup
from profiler.analytical.formulas.quantities import Coded, Count, larger, looked_up, where, whole_units
from profiler.analytical.formulas.rounding import Block, exact
from profiler.analytical.formulas.trained import FLOAT32_BYTES
from profiler.domain.optimizers import Optimizer

_MIN_8BIT_ELEMENTS = 4096
_8BIT_BLOCK = 256
_MIN_PAGED_ELEMENTS = 100_000


def optimizer_state_bytes(
    optim: Optimizer | Coded[Optimizer], tensors: Sequence[TensorGroup], element: Count, block: Block = exact
) -> Count:
    """Bytes of the optimizer's state in torch's allocator.

    Args:
        optim: The optimizer.
        tensors: What it updates.
        element: Bytes of one updated value.
        block: Rounding of each tensor's size.
    """
    return looked_up(
        optim, lambda each: sum(_state_bytes(each, group, element, block) * group.copies for group in tensors)
    )


def _state_bytes(optim: Optimizer, group: TensorGroup, element: Count, block: Block) -> Count:
    match optim:
        case Optimizer.ADAMW_TORCH_FUSED:
            return fused_adamw_state_bytes(group.elements, element, block)
        case Optimizer.ADAMW_TORCH:
            return adamw_state_bytes(group.elements, element, block)
        case Optimizer.ADAMW_8BIT:
            return adamw_8bit_state_bytes(group.elements, is_embedding=group.is_embedding, block=block)
        case Optimizer.PAGED_ADAMW_8BIT:
            return paged_adamw_8bit_state_bytes(group.elements, is_embedding=group.is_embedding, block=block)
        case Optimizer.ADAFACTOR:
            return adafactor_state_bytes(group.shape, block)
        case Optimizer.SGD:
            return 0  # transformers asks for no momentum


def adamw_state_bytes(elements: Count, element: Count, block: Block = exact) -> Count:
    """Torch's AdamW on one tensor: `exp_avg` and `exp_avg_sq`, in the parameter's type.

    By hand, 1,000 values in bfloat16: 2 x 1,000 x 2 B = 4,000 B. The step count stays on the host.
    """
    return 2 * block(elements * element)


def fused_adamw_state_bytes(elements: Count, element: Count, block: Block = exact) -> Count:
    """Torch's fused AdamW on one tensor: as AdamW, and its float32 step count on the device."""
    return adamw_state_bytes(elements, element, block) + FLOAT32_BYTES


def adamw_8bit_state_bytes(elements: Count, *, is_embedding: bool, block: Block = exact) -> Count:
    """Bitsandbytes' 8-bit AdamW on one tensor: two states of a byte, and a float32 scale for each 256 of each.

    Two float32 states instead for tensors below 4,096 values (`min_8bit_size`) and for `nn.Embedding`, which
    transformers' trainer registers as an exception. By hand, 4,096 values: 2 x 4,096 + 2 x 16 x 4 = 8,320 B; 1,024
    values: 2 x 1,024 x 4 = 8,192 B.

    Source: `Optimizer2State.init_state` in bitsandbytes. The two tables shared by all tensors (2 KiB) are left out.
    """
    wide = 2 * block(elements * FLOAT32_BYTES)
    narrow = 2 * block(elements) + _scale_bytes(elements, block)
    return wide if is_embedding else where(elements < _MIN_8BIT_ELEMENTS, wide, narrow)


def _scale_bytes(elements: Count, block: Block) -> Count:
    return 2 * block(FLOAT32_BYTES * whole_units(elements, _8BIT_BLOCK))


def paged_adamw_8bit_state_bytes(elements: Count, *, is_embedding: bool, block: Block = exact) -> Count:
    """As `adamw_8bit_state_bytes`, less what is in managed memory, which torch's allocator does not see.

    The states of tensors of 100,000 values or more are paged; the scales never are. By hand, 102,400 values:
    2 x 400 x 4 = 3,200 B.

    Source: `get_state_buffer` in bitsandbytes.
    """
    unpaged = adamw_8bit_state_bytes(elements, is_embedding=is_embedding, block=block)
    return where(elements < _MIN_PAGED_ELEMENTS, unpaged, 0 if is_embedding else _scale_bytes(elements, block))


def adafactor_state_bytes(shape: Sequence[Count], block: Block = exact) -> Count:
    """Transformers' Adafactor without first moment on one tensor: float32 means of rows and of columns.

    A vector keeps a float32 value each. By hand, [100, 50]: (100 + 50) x 4 = 600 B.
    """
    if len(shape) < 2:
        return block(shape[0] * FLOAT32_BYTES)
    return block(shape[-2] * FLOAT32_BYTES) + block(shape[-1] * FLOAT32_BYTES)


def optimizer_scratch_bytes(
    optim: Optimizer | Coded[Optimizer], tensors: Sequence[TensorGroup], element: Count, block: Block = exact
) -> Count:
    """Bytes that exist only during `step()`, at their highest.

    `adamw_torch` takes the foreach path: the square roots of all second moments of a parameter group at once, in the
    parameter's type; transformers makes two groups, matrices (with weight decay) and vectors. Adafactor goes tensor by
    tensor: float32 copies of gradient and parameter where these are narrower, the squared gradient and its sum with
    epsilon. The fused, 8-bit and plain SGD updates are in place.

    By hand, a [100, 50] matrix in bfloat16: adamw_torch 10,000 B, adafactor 4 x 5,000 x 4 = 80,000 B.

    Source: `_multi_tensor_adam` in torch, `Adafactor.step` in transformers.
    """
    return looked_up(optim, lambda each: _scratch_bytes(each, tensors, element, block))


def _scratch_bytes(optim: Optimizer, tensors: Sequence[TensorGroup], element: Count, block: Block) -> Count:
    if optim is Optimizer.ADAMW_TORCH:
        roots = [(len(group.shape) > 1, group.copies * block(group.elements * element)) for group in tensors]
        return larger(
            sum(size for is_matrix, size in roots if is_matrix), sum(size for is_matrix, size in roots if not is_matrix)
        )
    if optim is Optimizer.ADAFACTOR:
        copies = where(element < FLOAT32_BYTES, 4, 2)
        largest = larger(0, *(where(group.copies > 0, group.elements, 0) for group in tensors))
        return copies * block(FLOAT32_BYTES * largest)
    return 0
