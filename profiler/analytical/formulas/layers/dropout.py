"""Dropout in training: which values are dropped, and the masks that are saved.

A fused kernel of attention draws its numbers again in backward and saves no mask, only a seed. `nn.Dropout` of an
adapter and the dropout of attention by matrix products save one byte per value, and their result is another tensor.

Source: `native_dropout_cuda` in `aten/src/ATen/native/cuda/Dropout.cu`; `native_dropout` in torch's `derivatives.yaml`
saves its mask alone. trl trains, scores and generates with the model in training mode (`GRPOTrainer` in trl 1.16).
"""

from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys


def drops_scores(architecture: DecoderShape) -> Flag:
    """Return whether attention drops a part of its weights; torch keeps no mask where it drops all."""
    part = architecture.attention_dropout
    return both(part > 0, part < 1)


def drops_inputs(spec: TrialKeys) -> Flag:
    """Return whether adapters drop a part of their inputs."""
    return spec.lora_dropout > 0


def input_mask_bytes(spec: TrialKeys, values: Count) -> Count:
    """Return the mask of an adapter's input: one byte per value; 0 without dropout.

    By hand, T = 10, H = 8: 80 B.
    """
    return where(drops_inputs(spec), block_of(spec)(values), 0)
