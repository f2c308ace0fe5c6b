"""Bytes of the models that score completions."""

from profiler.analytical.formulas.parameters import base_tensors
from profiler.analytical.formulas.quantities import Count
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.tensor_groups import TensorGroup
from profiler.analytical.formulas.trained import element_bytes
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.weights import rope_buffer_bytes


def reward_model_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of all reward models of the trial, in the type of the policy's weights.

    By hand, qwen2.5-0.5b in bfloat16, whose head is tied: 494,032,768 + 896 values x 2 B + 256 B = 988,067,584 B.
    """
    block, element = block_of(spec), element_bytes(spec).weight
    found: Count = 0
    for model in architecture.reward_models:
        found = found + sum(group.copies * block(group.elements * element) for group in _tensors(model))
        found = found + rope_buffer_bytes(model)
    return found


def _tensors(model: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of a reward model: those of the decoder, with a head of one value."""
    groups = base_tensors(model)
    decoder = groups if model.tie_word_embeddings else groups[:-1]
    return (*decoder, TensorGroup(shape=(1, model.hidden_size), copies=1))
