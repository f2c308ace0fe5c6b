"""A moment of a trial at which memory can be at its highest, as bytes by category.

An instant is what is always there, plus what that moment adds. The peak is the largest instant: memory that never
exists at the same time is never added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from profiler.analytical.formulas.head import HeadBytes
from profiler.analytical.formulas.quantities import Count, Truth, where
from profiler.domain.memory import Category, Phase

Bytes = Mapping[Category, Count]
"""What is not named is 0."""


class Moment(StrEnum):
    """The moments that are considered, in the order of a step."""

    LOADED = "models and adapters are made"
    PREFILL = "prefill, in a layer's MLP"
    GROWTH = "the cache's last growth"
    DECODING = "the last token's attention"
    LAST_LOGITS = "the last token's logits"
    SAMPLING = "the last token is drawn"
    SCORE_LAYER = "scoring, in a layer's MLP"
    SCORE_HEAD = "scoring, at the LM head"
    REWARD = "rewards on the host"
    FORWARD_LAYER = "the last layer's forward"
    FORWARD_HEAD = "the head's forward and loss"
    BACKWARD_HEAD = "the head's backward"
    BACKWARD_NORM = "the final norm's backward"
    BACKWARD_LAYER = "the last layer's backward"
    BACKWARD_FIRST_LAYER = "the first layer's backward"
    BACKWARD_END = "the embedding's backward"
    STEP = "the optimizer's step"


@dataclass(frozen=True, kw_only=True)
class Instant:
    """One moment."""

    phase: Phase
    moment: Moment
    sizes: Bytes
    happens: Truth = True
    """Whether the trial has such a moment at all."""

    @property
    def total_bytes(self) -> Count:
        """All categories together; 0 where the moment does not happen."""
        return where(self.happens, total(self.sizes), 0)


def total(sizes: Bytes) -> Count:
    """All categories together."""
    found: Count = 0
    for size in sizes.values():
        found = found + size
    return found


def added(*parts: Bytes) -> Bytes:
    """Categories summed over `parts`."""
    sums: dict[Category, Count] = {}
    for part in parts:
        for category, size in part.items():
            sums[category] = sums[category] + size if category in sums else size
    return sums


def times(factor: Count, sizes: Bytes) -> Bytes:
    """Every category `factor` times."""
    return {category: factor * size for category, size in sizes.items()}


def head_categories(head: HeadBytes) -> Bytes:
    """The head's bytes in the project's categories."""
    return {
        Category.LOGITS: head.logits,
        Category.ACTIVATIONS: head.activations,
        Category.GRADIENTS: head.gradients,
    }
