"""Bytes of models with a head of one value: a critic, which is trained as a whole, and those that score completions."""

from typing import Any, cast

from profiler.analytical.formulas.models.parameters import base_tensors, parameter_count
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.models.weights import rope_buffer_bytes
from profiler.analytical.formulas.sizes.quantities import Count
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.term import NOTHING, Term
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.text.count_text import count_text


class _WithoutHead:
    """A model without a matrix of its own for its LM head."""

    tie_word_embeddings = True

    def __init__(self, architecture: DecoderShape) -> None:
        self._architecture = architecture

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the field holds
        return getattr(self._architecture, name)


def critic_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of a critic: those of the decoder, and weight and bias of a head of one value."""
    decoder = base_tensors(cast("DecoderShape", _WithoutHead(architecture)))
    return (*decoder, TensorGroup(shape=(1, architecture.hidden_size), copies=1), TensorGroup(shape=(1,), copies=1))


def critic_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters of a critic: the decoder, and a head of one value with its bias.

    By hand, toy (V = 100, H = 8, tied): its parameters and 9. Untied: 800 fewer for its head, and 9 more.

    Source: transformers' `GenericForTokenClassification`, whose `score` is an `nn.Linear` with bias; trl's and verl's
    critics are of this class (`load_valuehead_model` in verl).
    """
    return count_of(critic_tensors(architecture))


def critic(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the critic's parameters, in the type of the policy, and its buffers; 0 without a critic.

    By hand, qwen2.5-0.5b in bfloat16, whose head is tied: 494,032,768 + 897 values x 2 B + 256 B = 988,067,586 B.
    """
    if not spec.critic:
        return NOTHING
    size = critic_gradients(spec, architecture).size + rope_buffer_bytes(architecture)
    return Term(size, lambda: f"{_critic_text(architecture)} parameters x {element_bytes(spec).weight} B")


def critic_gradients(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return all gradients of the critic: one value per parameter, in its type; 0 without a critic."""
    if not spec.critic:
        return NOTHING
    block, element = block_of(spec), element_bytes(spec).weight
    size = sum(group.copies * block(group.elements * element) for group in critic_tensors(architecture))
    return Term(size, lambda: f"{_critic_text(architecture)} x {element} B")


def _critic_text(architecture: DecoderShape) -> str:
    return count_text(critic_count(architecture))


def reward_models(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return all reward models of the trial, in the type of the policy's weights.

    By hand, qwen2.5-0.5b in bfloat16, whose head is tied: 494,032,768 + 896 values x 2 B + 256 B = 988,067,584 B.
    """
    models = architecture.reward_models
    if not models:
        return NOTHING
    block, element = block_of(spec), element_bytes(spec).weight
    groups = [group for model in models for group in _reward_tensors(model)]
    size = sum(group.copies * block(group.elements * element) for group in groups)
    buffers = sum(rope_buffer_bytes(model) for model in models)
    return Term(size + buffers, lambda: f"{count_text(sum(map(parameter_count, models)))} parameters x {element} B")


def _reward_tensors(model: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of a reward model: those of the decoder, with a head of one value."""
    groups = base_tensors(model)
    decoder = groups if model.tie_word_embeddings else groups[:-1]
    return (*decoder, TensorGroup(shape=(1, model.hidden_size), copies=1))
