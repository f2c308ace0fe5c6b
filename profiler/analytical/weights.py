"""Bytes of the models themselves: weights, a separate reference model, adapters."""

from profiler.analytical.parameters import lora_parameter_count, parameter_count, projections
from profiler.analytical.trained import FLOAT32_BYTES, element_bytes
from profiler.domain.architecture import Architecture
from profiler.domain.trial import TrialSpec, Tuning

_NF4_BLOCK = 64
_ABSMAX_BLOCK = 256
_NF4_CODE_VALUES = 16
_ABSMAX_CODE_VALUES = 256


def rope_buffer_bytes(architecture: Architecture) -> int:
    """The rotary embedding's two float32 buffers of head_dim / 2 values: `inv_freq` and its original."""
    return 2 * (architecture.head_dim // 2) * FLOAT32_BYTES


def nf4_bytes(elements: int) -> int:
    """Bytes of one matrix in nf4 with double quantisation, its quantisation state included.

    Two values a byte; a scale in 8 bits for each block of 64; a float32 scale for each 256 of those; the two code
    tables (16 and 256 float32) and the offset. By hand, 64 x 256 = 16,384 values: 8,192 + 256 + 4 + 64 + 1,024 + 4.

    Source: `quantize_4bit` in bitsandbytes' `functional.py`, block size 64, `compress_statistics=True`.
    """
    blocks = -(-elements // _NF4_BLOCK)
    scales_of_scales = -(-blocks // _ABSMAX_BLOCK)
    tables = _NF4_CODE_VALUES + _ABSMAX_CODE_VALUES + 1
    return -(-elements // 2) + blocks + FLOAT32_BYTES * (scales_of_scales + tables)


def weights_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Bytes of the policy's parameters and buffers, adapters apart.

    With `qlora` the linear layers of the decoder are in nf4; embeddings, LM head, norms and biases keep `dtype`.
    """
    element = element_bytes(spec).weight
    buffers = rope_buffer_bytes(architecture)
    if spec.tuning is not Tuning.QLORA:
        return parameter_count(architecture) * element + buffers
    layers = architecture.num_hidden_layers
    quantised = sum(part.weights for part in projections(architecture)) * layers
    packed = sum(nf4_bytes(part.weights) for part in projections(architecture)) * layers
    return (parameter_count(architecture) - quantised) * element + packed + buffers


def reference_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Bytes of a separate reference model, in the policy's type; 0 where there is none.

    trl makes one for `beta` > 0 unless an adapter can be switched off.
    """
    if not spec.keeps_reference_model:
        return 0
    return parameter_count(architecture) * element_bytes(spec).weight + rope_buffer_bytes(architecture)


def adapter_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Bytes of the LoRA matrices."""
    if spec.tuning is Tuning.FULL:
        return 0
    count = lora_parameter_count(architecture, spec.lora_rank or 0, spec.lora_target_modules or ())
    return count * element_bytes(spec).adapter


def autocast_cache_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Copies of weights that autocast makes during one forward and holds until its end.

    Every linear layer's weight wider than bfloat16 is cast once: trained ones are kept in autocast's cache, frozen ones
    by the matrix product that saves them for backward. Adapters in float32 always are. The LM head is cast a tile at a
    time by the fused log-probabilities, so it is not in here.

    Does not hold for frozen float32 weights with checkpointing, which are not cached: an upper bound there.

    By hand, qwen2.5-0.5b with LoRA of rank 16 on all linear layers: 8,798,208 x 2 B = 17,596,416 B.
    """
    if not spec.bf16:
        return 0
    sizes = element_bytes(spec)
    copied = 0
    if sizes.autocast_casts and spec.tuning is not Tuning.QLORA:
        copied += sum(part.weights for part in projections(architecture)) * architecture.num_hidden_layers
    if spec.tuning is Tuning.LORA:
        copied += lora_parameter_count(architecture, spec.lora_rank or 0, spec.lora_target_modules or ())
    return copied * sizes.compute


def autocast_weight_copy_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Those of the copies that backward still has: all of them, or with checkpointing one layer's, made anew.

    By hand, as in `autocast_cache_bytes` with checkpointing: 17,596,416 / 24 = 733,184 B.
    """
    kept = autocast_cache_bytes(spec, architecture)
    return kept // architecture.num_hidden_layers if spec.gradient_checkpointing else kept
