"""Which trials are bound to need at least as much memory as others: the axes along which memory can only grow."""

from collections.abc import Callable

from profiler.domain.architecture import Architecture
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.keys import MemoryOrder
from profiler.domain.trial import TRIAL_KEYS, TrialSpec

SAME, GROWING = (
    tuple(key.name for key in TRIAL_KEYS if key.memory is order) for order in (MemoryOrder.SAME, MemoryOrder.GROWS)
)
"""Keys that have to be equal for two trials to be compared, and keys of which more never needs less memory."""


def needs_at_most(smaller: TrialSpec, larger: TrialSpec, *, architecture_of: Callable[[str], Architecture]) -> bool:
    """Whether `smaller` can need no more memory than `larger`, or has no less to have it in.

    True of a trial and itself. What is true here is true of the sum of tensors, instant by instant; the allocator's
    fragments can differ by little, for which `prune=false` is there.

    Args:
        smaller: The trial that, if it runs out of memory, implies that the other does.
        larger: The other.
        architecture_of: A model's shape, by its name.
    """
    return (
        all(getattr(smaller, key) == getattr(larger, key) for key in SAME)
        and all(_at_most(getattr(smaller, key), getattr(larger, key)) for key in GROWING)
        and (smaller.gradient_checkpointing or not larger.gradient_checkpointing)
        and (smaller.beta == 0 or larger.beta != 0)
        and _card_bytes(smaller) >= _card_bytes(larger)
        and _is_no_larger_model(smaller.model, larger.model, architecture_of)
    )


def _at_most(value: int | None, other: int | None) -> bool:
    if value is None or other is None:
        return value is other
    return value <= other


def _card_bytes(spec: TrialSpec) -> float:
    """What the card has, or is capped to; the whole of a real card is more than any cap."""
    return float("inf") if spec.gpu is None else KNOWN_GPUS[spec.gpu].memory_bytes


def _is_no_larger_model(name: str, other: str, architecture_of: Callable[[str], Architecture]) -> bool:
    """Within a family every tensor's size is a product of these; 3B has more layers than 7B but smaller ones."""
    if name == other:
        return True
    one, two = architecture_of(name), architecture_of(other)
    same_kind = (one.model_type, one.qkv_bias, one.qk_norm) == (two.model_type, two.qkv_bias, two.qk_norm)
    return same_kind and all(a <= b for a, b in zip(_sizes(one), _sizes(two), strict=True))


def _sizes(shape: Architecture) -> tuple[int, ...]:
    attention = shape.num_attention_heads * shape.head_dim
    cached = shape.num_key_value_heads * shape.head_dim
    layers = shape.num_hidden_layers
    return (
        shape.vocab_size,
        shape.hidden_size,
        shape.intermediate_size,
        attention,
        cached,
        layers * shape.hidden_size,
        layers * shape.intermediate_size,
        layers * attention,
        layers * cached,
        layers * shape.hidden_size * shape.intermediate_size,
        layers * shape.hidden_size * attention,
        shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2),
    )
