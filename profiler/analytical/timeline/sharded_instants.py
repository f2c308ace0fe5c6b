"""Instants of a trial under FSDP 2: those of one GPU, with shards and gathered layers in place of the model.

What a GPU computes is the same as alone: the same rows through the same layers. What differs is where weights,
gradients and optimizer states are. Gradients of all micro-batches but the last are accumulated whole, because
accelerate does not reduce them before (`no_sync`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from profiler.analytical.formulas.quantities import Count, where
from profiler.analytical.formulas.shards import (
    adapter_shard_bytes,
    gathered_bytes,
    gathered_reference_bytes,
    gradient_shard_bytes,
    reference_shard_bytes,
    shard_bytes,
    shard_tensors,
    units,
    whole_gradient_bytes,
    whole_model_bytes,
)
from profiler.analytical.formulas.trained import BFLOAT16_BYTES, FLOAT32_BYTES, gradient_bytes, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers.optimizer_state import optimizer_scratch_bytes, optimizer_state_bytes
from profiler.analytical.timeline.instants import Bytes, Instant, InstantName
from profiler.analytical.timeline.step_instants import step_scratch_bytes
from profiler.domain.memory import Category, Phase

_BEFORE_SHARDING = (InstantName.LOADED,)


def sharded(spec: TrialKeys, architecture: DecoderShape, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """Return the instants of one of the GPUs.

    Args:
        spec: The trial.
        architecture: Its model.
        instants: Those of one GPU alone.
    """
    before = tuple(instant for instant in instants if instant.name in _BEFORE_SHARDING)
    after = tuple(instant for instant in instants if instant.name not in _BEFORE_SHARDING)
    return (
        *before,
        _sharding(spec, architecture),
        *(replace(each, sizes={**each.sizes, **_replaced(spec, architecture, each)}) for each in after),
    )


def _sharding(spec: TrialKeys, architecture: DecoderShape) -> Instant:
    """Return the instant at which the model is sharded: all shards exist, and the whole model still does."""
    sizes: Bytes = {
        Category.WEIGHTS: shard_bytes(spec, architecture),
        Category.ADAPTERS: adapter_shard_bytes(spec, architecture),
        Category.REFERENCE: _reference(spec, architecture),
        Category.COMMUNICATION: whole_model_bytes(spec, architecture),
    }
    return Instant(phase=Phase.LOAD, name=InstantName.SHARDING, sizes=sizes)


def _replaced(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Bytes:
    """Return the categories that sharding changes."""
    alone = instant.sizes
    found: dict[Category, Count] = {
        Category.WEIGHTS: shard_bytes(spec, architecture),
        Category.ADAPTERS: adapter_shard_bytes(spec, architecture),
        Category.REFERENCE: _reference(spec, architecture),
        Category.OPTIMIZER_STATE: where(alone.get(Category.OPTIMIZER_STATE, 0) != 0, _states(spec, architecture), 0),
        Category.GRADIENTS: _gradients(spec, architecture, instant),
        Category.COMMUNICATION: _gathered(spec, architecture, instant.name),
    }
    if instant.name is InstantName.STEP:
        scratch = optimizer_scratch_bytes(spec.optim, shard_tensors(spec, architecture), FLOAT32_BYTES)
        found[Category.WORKSPACE] = alone[Category.WORKSPACE] - step_scratch_bytes(spec, architecture) + scratch
    return found


def _reference(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the shards of a reference model; 0 without one, as with adapters."""
    return where(spec.beta != 0.0, reference_shard_bytes(spec, architecture), 0) if trains_everything(spec) else 0


def _states(spec: TrialKeys, architecture: DecoderShape) -> Count:
    return optimizer_state_bytes(spec.optim, shard_tensors(spec, architecture), FLOAT32_BYTES)


def _gathered(spec: TrialKeys, architecture: DecoderShape, name: InstantName) -> Count:
    """Return the bytes of gathered weights. Those of the root stay from the first forward until the next backward."""
    if name is InstantName.STEP:
        return 0
    unit, stay = units(spec, architecture), not spec.fsdp_reshard_after_forward
    if name in (InstantName.SCORE_LAYER, InstantName.SCORE_HEAD) and trains_everything(spec):
        reference = BFLOAT16_BYTES * unit.root + gathered_reference_bytes(architecture)
        return where(spec.beta != 0.0, reference, gathered_bytes(spec, architecture, layers_stay=stay))
    if name in (InstantName.REWARD, InstantName.FORWARD_HEAD):
        # After the forward of the last layer there is no next one to gather.
        layers = unit.layer * architecture.num_hidden_layers if stay else 0
        return BFLOAT16_BYTES * (unit.root + layers)
    # In the backward of the first layer the others have been freed.
    at_the_end = name in (InstantName.BACKWARD_FIRST_LAYER, InstantName.BACKWARD_END)
    return gathered_bytes(spec, architecture, layers_stay=stay and not at_the_end)


def _gradients(spec: TrialKeys, architecture: DecoderShape, instant: Instant) -> Count:
    """Return the bytes of gradients: shards where they have been reduced, whole ones before."""
    if instant.name is InstantName.STEP:
        return gradient_shard_bytes(spec, architecture)
    alone, all_alone = instant.sizes.get(Category.GRADIENTS, 0), gradient_bytes(spec, architecture)
    whole = whole_gradient_bytes(spec, architecture)
    accumulated = where(alone >= all_alone, alone - all_alone + whole, alone)
    at_once = _REDUCED.get(instant.name)
    if at_once is None:
        return accumulated
    return where(spec.gradient_accumulation_steps > 1, accumulated, at_once(spec, architecture))


def _waiting(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the gradient of the LM head, tied or not, until the backward of the root ends."""
    embedding = BFLOAT16_BYTES * architecture.vocab_size * architecture.hidden_size
    return embedding if trains_everything(spec) else 0


def _first_layer(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return shards of the other layers, and the whole gradient of the first with the input of its reduction."""
    layer = _layer_gradient(spec, architecture)
    return _shards_of_layers(spec, architecture) + 2 * layer + _waiting(spec, architecture)


def _end(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return shards of all layers, the whole gradient of the root, the input of its reduction, and the last one."""
    root = BFLOAT16_BYTES * units(spec, architecture).root if trains_everything(spec) else 0
    return _shards_of_layers(spec, architecture) + 2 * root + _layer_gradient(spec, architecture)


def _layer_gradient(spec: TrialKeys, architecture: DecoderShape) -> Count:
    whole = whole_gradient_bytes(spec, architecture)
    root = BFLOAT16_BYTES * units(spec, architecture).root if trains_everything(spec) else 0
    return (whole - root) // architecture.num_hidden_layers


def _shards_of_layers(spec: TrialKeys, architecture: DecoderShape) -> Count:
    layers = _layer_gradient(spec, architecture) * architecture.num_hidden_layers
    return layers * (FLOAT32_BYTES // BFLOAT16_BYTES) // spec.num_processes


_REDUCED: Mapping[InstantName, Callable[[TrialKeys, DecoderShape], Count]] = {
    InstantName.BACKWARD_NORM: _waiting,
    InstantName.BACKWARD_LAYER: _waiting,
    InstantName.BACKWARD_FIRST_LAYER: _first_layer,
    InstantName.BACKWARD_END: _end,
}
"""Gradients where the only backward of a step reduces them unit by unit."""
