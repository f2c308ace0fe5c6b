"""What a trial trains, and in which number of bytes each kind of value is kept."""

from dataclasses import dataclass

from profiler.analytical.formulas.parameters import TensorGroup, base_tensors, lora_tensors
from profiler.analytical.formulas.quantities import Count, Truth, both, either, holds, looked_up, where
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.domain.trial import Dtype, Tuning

_DTYPE_BYTES = {Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2, Dtype.FLOAT32: 4}

BFLOAT16_BYTES = 2
FLOAT16_BYTES = 2
FLOAT32_BYTES = 4
INT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ElementBytes:
    """Bytes of one value, by what it is."""

    weight: Count
    """Of the model's weights, and of the residual stream where no autocast is active."""
    stream: Count
    """Of the residual stream under autocast: as the weights, but float32 for float16 weights (`element_bytes`)."""
    compute: Count
    """Of what a matrix product takes and gives: bfloat16 under autocast, else the weights' type."""
    adapter: int
    """Of LoRA matrices."""
    output: Count
    """Of the model's outputs: accelerate's `convert_outputs_to_fp32` makes them float32 under autocast."""
    autocast_casts: Truth
    """Whether autocast copies the weights: their type is not the one that it computes in."""
    adapter_casts: Truth
    """Whether bfloat16 adapters over 4-bit weights cast their inputs: these have another type."""
    autocast_caches: Truth
    """Whether autocast keeps the copies of trained weights to its end: those of float32 only."""


def element_bytes(spec: TrialKeys) -> ElementBytes:
    """Bytes of one value of each kind.

    Float16 weights under autocast: a linear layer returns bfloat16, and added to the float16 stream it makes float32.
    The embedding alone stays float16.

    Adapters: peft's `autocast_adapter_dtype` keeps them in float32 over half-precision weights; over 4-bit weights
    trl's trainer casts them to bfloat16 (`GRPOTrainer.__init__`).

    By hand, float16 under autocast: weight 2, stream 4, compute 2 B.

    Source of what is cached: `cached_cast` in `aten/src/ATen/autocast_mode.cpp` (float32 leaves that require a
    gradient).
    """
    weight = looked_up(spec.dtype, _DTYPE_BYTES.__getitem__)
    widened = both(spec.bf16, holds(spec.dtype, lambda dtype: dtype is Dtype.FLOAT16))
    return ElementBytes(
        weight=weight,
        stream=where(widened, FLOAT32_BYTES, weight),
        autocast_casts=both(spec.bf16, holds(spec.dtype, lambda dtype: dtype is not Dtype.BFLOAT16)),
        adapter_casts=holds(spec.dtype, lambda dtype: dtype is not Dtype.BFLOAT16),
        autocast_caches=both(spec.bf16, holds(spec.dtype, lambda dtype: dtype is Dtype.FLOAT32)),
        compute=where(spec.bf16, BFLOAT16_BYTES, weight),
        adapter=BFLOAT16_BYTES if spec.tuning is Tuning.QLORA else FLOAT32_BYTES,
        output=where(spec.bf16, FLOAT32_BYTES, weight),
    )


def trains_everything(spec: TrialKeys) -> bool:
    """Whether every parameter is trained, and not only adapters."""
    return spec.tuning is Tuning.FULL


def lora_rank(spec: TrialKeys) -> Count:
    """Rank of the adapters; 0 where there are none."""
    return 0 if spec.lora_rank is None else spec.lora_rank


def computed_bytes(spec: TrialKeys, *, autocast: Truth) -> Count:
    """Bytes of one value that a matrix product gives, with autocast around the model or not.

    Of a fully trained model autocast wraps the forward that generation calls too. By hand, LoRA over float32 weights
    with `bf16`: 2 B where autocast is, 4 B in the rollout.
    """
    sizes = element_bytes(spec)
    return sizes.compute if trains_everything(spec) else where(autocast, sizes.compute, sizes.weight)


def computes_in_bfloat16(spec: TrialKeys, *, autocast: Truth) -> Truth:
    """Whether matrix products are in bfloat16, with autocast around the model or not (as `computed_bytes`)."""
    active = spec.bf16 if trains_everything(spec) else both(autocast, spec.bf16)
    return either(active, holds(spec.dtype, lambda dtype: dtype is Dtype.BFLOAT16))


def stream_bytes(spec: TrialKeys, *, autocast: Truth) -> Count:
    """Bytes of one value of the residual stream, with autocast around the model or not (as `computed_bytes`).

    By hand, LoRA over float16 weights with `bf16`: 4 B where autocast is, 2 B in the rollout.
    """
    sizes = element_bytes(spec)
    return sizes.stream if trains_everything(spec) else where(autocast, sizes.stream, sizes.weight)


def trained_tensors(spec: TrialKeys, architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """The parameters that the optimizer updates."""
    if trains_everything(spec):
        return base_tensors(architecture)
    return lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())


def trained_element_bytes(spec: TrialKeys) -> Count:
    """Bytes of one trained parameter, and of its gradient."""
    sizes = element_bytes(spec)
    return sizes.weight if trains_everything(spec) else sizes.adapter


def trainable_parameter_count(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """How many parameters the optimizer updates."""
    return sum(group.total for group in trained_tensors(spec, architecture))


def gradient_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Bytes of all `.grad`: one value a trained parameter, in its type.

    By hand, qwen2.5-0.5b full in bfloat16: 494,032,768 x 2 B = 988,065,536 B.
    """
    block, element = block_of(spec), trained_element_bytes(spec)
    return sum(group.copies * block(group.elements * element) for group in trained_tensors(spec, architecture))
