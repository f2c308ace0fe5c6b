"""Parameters of a decoder, tensor by tensor: how many, of what shape, and which of them a LoRA adapter gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from profiler.domain.architecture import Architecture
from profiler.domain.trial import ALL_LINEAR

_FUSED_PROJECTIONS = ("phi3",)
"""Model types whose q, k, v and whose gate, up are one matrix each."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A linear layer inside every decoder layer."""

    name: str
    in_features: int
    out_features: int
    has_bias: bool = False

    @property
    def weights(self) -> int:
        """Elements of the weight matrix."""
        return self.in_features * self.out_features


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Parameters of the same shape."""

    shape: tuple[int, ...]
    copies: int
    is_embedding: bool = False
    """An `nn.Embedding`'s weight (a tied LM head is the same parameter)."""

    @property
    def elements(self) -> int:
        """Elements of one of them."""
        return prod(self.shape)

    @property
    def total(self) -> int:
        """Elements of all of them."""
        return self.elements * self.copies


def query_width(architecture: Architecture) -> int:
    """Width of all query heads together: heads x head_dim."""
    return architecture.num_attention_heads * architecture.head_dim


def key_width(architecture: Architecture) -> int:
    """Width of all key heads together, as of all value heads: key-value heads x head_dim."""
    return architecture.num_key_value_heads * architecture.head_dim


def projections(architecture: Architecture) -> tuple[Projection, ...]:
    """The linear layers of one decoder layer.

    Source: `Qwen2Attention` and `Qwen2MLP` in transformers; Llama and Qwen3 have the same without biases.
    """
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    query, key, bias = query_width(architecture), key_width(architecture), architecture.qkv_bias
    output = Projection(name="o_proj", in_features=query, out_features=hidden)
    down = Projection(name="down_proj", in_features=inner, out_features=hidden)
    if architecture.model_type in _FUSED_PROJECTIONS:
        return (
            Projection(name="qkv_proj", in_features=hidden, out_features=query + 2 * key, has_bias=bias),
            output,
            Projection(name="gate_up_proj", in_features=hidden, out_features=2 * inner),
            down,
        )
    return (
        Projection(name="q_proj", in_features=hidden, out_features=query, has_bias=bias),
        Projection(name="k_proj", in_features=hidden, out_features=key, has_bias=bias),
        Projection(name="v_proj", in_features=hidden, out_features=key, has_bias=bias),
        output,
        Projection(name="gate_proj", in_features=hidden, out_features=inner),
        Projection(name="up_proj", in_features=hidden, out_features=inner),
        down,
    )


def base_tensors(architecture: Architecture) -> tuple[TensorGroup, ...]:
    """Every parameter of the model, a tied LM head counted once.

    Does not hold for models with more than two norms a layer (Gemma 2 and 3) or norms over all heads at once (OLMo 2):
    a few thousand elements a layer are missing.
    """
    layers, hidden = architecture.num_hidden_layers, architecture.hidden_size
    groups = [TensorGroup(shape=(architecture.vocab_size, hidden), copies=1, is_embedding=True)]
    for projection in projections(architecture):
        groups.append(TensorGroup(shape=(projection.out_features, projection.in_features), copies=layers))
        if projection.has_bias:
            groups.append(TensorGroup(shape=(projection.out_features,), copies=layers))
    groups.append(TensorGroup(shape=(hidden,), copies=2 * layers + 1))
    if architecture.qk_norm:
        groups.append(TensorGroup(shape=(architecture.head_dim,), copies=2 * layers))
    if not architecture.tie_word_embeddings:
        groups.append(TensorGroup(shape=(architecture.vocab_size, hidden), copies=1))
    return tuple(groups)


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the model, tied ones once: the sum over `base_tensors`.

    By hand, qwen2.5-0.5b: 151,936 x 896 + 24 x (896 x (896 + 128 + 128 + 896) + 1,152 + 3 x 896 x 4,864 + 2 x 896)
    + 896 = 494,032,768.
    """
    return sum(group.total for group in base_tensors(architecture))


def adapted_projections(architecture: Architecture, targets: Sequence[str]) -> tuple[Projection, ...]:
    """The linear layers of one decoder layer that get an adapter: all of them for peft's word all-linear."""
    everything = tuple(targets) == (ALL_LINEAR,)
    return tuple(part for part in projections(architecture) if everything or part.name in targets)


def lora_tensors(architecture: Architecture, rank: int, targets: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Every LoRA matrix: for a layer of shape [out, in], A is [rank, in] and B is [out, rank].

    Source: peft's `LoraLayer.update_layer`; for `embed_tokens` and `lm_head` the same counts with vocabulary and width.
    """
    layers = architecture.num_hidden_layers
    groups = [
        TensorGroup(shape=shape, copies=layers)
        for part in adapted_projections(architecture, targets)
        for shape in ((rank, part.in_features), (part.out_features, rank))
    ]
    outside = sum(name in targets for name in ("embed_tokens", "lm_head"))
    if outside:
        groups.append(TensorGroup(shape=(rank, architecture.vocab_size), copies=outside))
        groups.append(TensorGroup(shape=(architecture.hidden_size, rank), copies=outside))
    return tuple(groups)


def lora_parameter_count(architecture: Architecture, rank: int, targets: Sequence[str]) -> int:
    """Parameters of the adapters: rank x (in + out) for each adapted layer."""
    return sum(group.total for group in lora_tensors(architecture, rank, targets))
