"""What ZeRO keeps for the optimizer, and what its step needs (`formulas/zero.py`)."""

from profiler.analytical.formulas.quantities import Count, larger, smaller
from profiler.analytical.formulas.tensor_groups import TensorGroup
from profiler.analytical.formulas.trained import BFLOAT16_BYTES, FLOAT32_BYTES, trained_tensors, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.zero import (
    SUB_GROUP,
    is_offloaded,
    kept_gradient_bytes,
    largest_tensor,
    master_bytes,
    own,
)
from profiler.analytical.optimizers.optimizer_state import optimizer_scratch_bytes, optimizer_state_bytes

_NORM_BYTES = 8
"""The norm of gradients is computed in float64, tensor by tensor (`get_norm_dtype`)."""


def state_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of master weights and optimizer states of this GPU; 0 where the host has them."""
    if is_offloaded(spec):
        return 0
    flat = _flat(own(spec, architecture))
    return master_bytes(spec, architecture) + optimizer_state_bytes(spec.optim, flat, FLOAT32_BYTES)


def step_gradient_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the largest size of gradients while weights are updated, with the scratch of the optimizer.

    Stage 0 has all of them in both types. Stages 1 and 2: those that were kept, and the float64 copy of one of them, or
    both flattened copies of this GPU's part; then only the float32 copy. Stage 3 flattens a group at a time, next to
    the gradients that it keeps in one buffer.
    """
    if is_offloaded(spec):
        return 0
    count = own(spec, architecture)
    both_copies = (BFLOAT16_BYTES + FLOAT32_BYTES) * count
    if spec.zero_stage == 0:
        return both_copies + optimizer_scratch_bytes(spec.optim, trained_tensors(spec, architecture), FLOAT32_BYTES)
    if spec.zero_stage == 3:
        group = smaller(count, SUB_GROUP)
        scratch = optimizer_scratch_bytes(spec.optim, _flat(group), FLOAT32_BYTES)
        return BFLOAT16_BYTES * count + larger(
            (BFLOAT16_BYTES + FLOAT32_BYTES) * group, FLOAT32_BYTES * group + scratch
        )
    kept = kept_gradient_bytes(spec, architecture)
    largest = smaller(largest_tensor(architecture), count) if trains_everything(spec) else 0
    scratch = optimizer_scratch_bytes(spec.optim, _flat(count), FLOAT32_BYTES)
    in_norm = kept + _NORM_BYTES * largest
    return larger(larger(in_norm, kept + both_copies), FLOAT32_BYTES * count + scratch)


def _flat(count: Count) -> tuple[TensorGroup, ...]:
    """Return the one tensor that the optimizer updates: this GPU's part of all parameters in a row."""
    return (TensorGroup(shape=(count,), copies=1),)
