"""FSDP 2 on one of its GPUs: shards of weights, gradients and optimizer states, and what is gathered for a layer.

Each decoder layer is a unit, and everything else (embedding, final norm, LM head) is the unit of the root. accelerate
keeps trained parameters in float32 and computes in bfloat16, so a shard of a trained parameter has 4 bytes per value
and a gathered one 2. By hand, qwen2.5-0.5b full on 4 GPUs: 494,032,768 x 4 B / 4 = 494,032,768 B of shards.

Source: `fsdp2_prepare_model` in accelerate's `utils/fsdp_utils.py`; `_fsdp_param_group.py`, `_fsdp_collectives.py` and
`_fsdp_state.py` in torch's `distributed/fsdp/_fully_shard`.
"""

from dataclasses import dataclass, replace

from profiler.analytical.formulas.parameters import base_tensors, layer_parameter_count
from profiler.analytical.formulas.quantities import Count, whole_units
from profiler.analytical.formulas.tensor_groups import TensorGroup
from profiler.analytical.formulas.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys


@dataclass(frozen=True, kw_only=True)
class Units:
    """Parameters of the root, and of one decoder layer with its adapters."""

    root: Count
    layer: Count


def units(spec: TrialKeys, architecture: DecoderShape) -> Units:
    """Return the parameters of each unit.

    By hand, qwen2.5-0.5b: the root has 151,936 x 896 + 896 = 136,135,552, and a layer 14,912,384.
    """
    layers, layer = architecture.num_hidden_layers, layer_parameter_count(architecture)
    root = _count(base_tensors(architecture)) - layers * layer
    return Units(root=root, layer=layer + _adapters(spec, architecture) // layers)


def shard_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of this GPU's shards of the base model: float32 where it is trained, else as loaded."""
    element = FLOAT32_BYTES if trains_everything(spec) else element_bytes(spec).weight
    return whole_units(_count(base_tensors(architecture)) * element, spec.num_processes)


def reference_shard_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of this GPU's shards of a reference model, as loaded."""
    return whole_units(_count(base_tensors(architecture)) * element_bytes(spec).weight, spec.num_processes)


def gathered_reference_bytes(architecture: DecoderShape) -> Count:
    """Return the bytes of a gathered reference model: trl makes it one unit, so it is there whole, and its buffer too.

    By hand, qwen2.5-0.5b: 2 x 494,032,768 x 2 B = 1,976,131,072 B.

    Source: `prepare_fsdp` in trl's `models/utils.py`, which calls `fully_shard` once.
    """
    return 2 * BFLOAT16_BYTES * _count(base_tensors(architecture))


def adapter_shard_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of this GPU's shards of the adapters."""
    return whole_units(_adapters(spec, architecture) * FLOAT32_BYTES, spec.num_processes)


def whole_model_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the model before it is sharded: on each GPU, with trained parameters in float32."""
    element = FLOAT32_BYTES if trains_everything(spec) else element_bytes(spec).weight
    return _count(base_tensors(architecture)) * element + _adapters(spec, architecture) * FLOAT32_BYTES


def gathered_bytes(spec: TrialKeys, architecture: DecoderShape, *, layers_stay: bool) -> Count:
    """Return the bytes of gathered weights while a layer runs: the root, the layer, and the buffer of the next gather.

    Args:
        spec: The trial.
        architecture: Its model.
        layers_stay: Whether earlier layers are still gathered, as without `fsdp_reshard_after_forward`.
    """
    unit = units(spec, architecture)
    layers = architecture.num_hidden_layers if layers_stay else 1
    return BFLOAT16_BYTES * (unit.root + (layers + 1) * unit.layer)


def shard_tensors(spec: TrialKeys, architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the shards that the optimizer of this GPU updates: each parameter is split along its first dimension."""
    return tuple(
        replace(group, shape=(whole_units(group.shape[0], spec.num_processes), *group.shape[1:]))
        for group in trained_tensors(spec, architecture)
    )


def gradient_shard_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of this GPU's shards of the gradients, in float32."""
    return FLOAT32_BYTES * _count(shard_tensors(spec, architecture))


def whole_gradient_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the gradients that are accumulated before they are reduced: whole, in bfloat16."""
    return BFLOAT16_BYTES * _count(trained_tensors(spec, architecture))


def _adapters(spec: TrialKeys, architecture: DecoderShape) -> Count:
    return 0 if trains_everything(spec) else _count(trained_tensors(spec, architecture))


def _count(tensors: tuple[TensorGroup, ...]) -> Count:
    return sum(group.total for group in tensors)
