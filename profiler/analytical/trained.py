"""What a trial trains, and in which number of bytes each kind of value is kept."""

from dataclasses import dataclass

from profiler.analytical.parameters import TensorGroup, base_tensors, lora_tensors
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Dtype, TrialSpec, Tuning

_DTYPE_BYTES = {Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2, Dtype.FLOAT32: 4}

FLOAT32_BYTES = 4
INT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ElementBytes:
    """Bytes of one value, by what it is."""

    weight: int
    """Of the model's weights, and of the residual stream, which has their type."""
    compute: int
    """Of what a matrix product takes and gives: bfloat16 under autocast, else the weights' type."""
    adapter: int
    """Of LoRA matrices."""
    output: int
    """Of the model's outputs: accelerate's `convert_outputs_to_fp32` makes them float32 under autocast."""

    @property
    def autocast_casts(self) -> bool:
        """Whether autocast has to copy the weights: they are wider than what it computes in."""
        return self.compute < self.weight


def element_bytes(spec: TrialSpec) -> ElementBytes:
    """Bytes of one value of each kind.

    Adapters: peft's `autocast_adapter_dtype` keeps them in float32 over half-precision weights; over 4-bit weights
    trl's trainer casts them to bfloat16 (`GRPOTrainer.__init__`).
    """
    weight = _DTYPE_BYTES[spec.dtype]
    return ElementBytes(
        weight=weight,
        compute=2 if spec.bf16 else weight,
        adapter=2 if spec.tuning is Tuning.QLORA else FLOAT32_BYTES,
        output=FLOAT32_BYTES if spec.bf16 else weight,
    )


def trains_everything(spec: TrialSpec) -> bool:
    """Whether every parameter is trained, and not only adapters."""
    return spec.tuning is Tuning.FULL


def trained_tensors(spec: TrialSpec, architecture: Architecture) -> tuple[TensorGroup, ...]:
    """The parameters that the optimizer updates."""
    if trains_everything(spec):
        return base_tensors(architecture)
    return lora_tensors(architecture, spec.lora_rank or 0, spec.lora_target_modules or ())


def trained_element_bytes(spec: TrialSpec) -> int:
    """Bytes of one trained parameter, and of its gradient."""
    sizes = element_bytes(spec)
    return sizes.weight if trains_everything(spec) else sizes.adapter


def trainable_parameter_count(spec: TrialSpec, architecture: Architecture) -> int:
    """How many parameters the optimizer updates."""
    return sum(group.total for group in trained_tensors(spec, architecture))


def gradient_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Bytes of all `.grad`: one value a trained parameter, in its type.

    By hand, qwen2.5-0.5b full in bfloat16: 494,032,768 x 2 B = 988,065,536 B.
    """
    return trainable_parameter_count(spec, architecture) * trained_element_bytes(spec)
