"""Instants of a trial at which memory can peak, as bytes by category.

The memory of an instant is the persistent memory plus what this instant adds. The peak is the largest instant: memory
that does not exist at the same time is never added up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from profiler.analytical.formulas.head import HeadBytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, where
from profiler.domain.memory import Category, Phase

Bytes = Mapping[Category, Count]
"""Bytes by category. A category that is absent has 0 bytes."""

Words = Callable[[], str]
"""The factors of a number, in at most 50 characters; made when they are read, because arrays have none."""


@dataclass(frozen=True)
class Term:
    """A number of bytes with its words. One formula returns both, so that they cannot disagree."""

    size: Count
    words: Words


Terms = Mapping[Category, Term]


def chosen(flag: Flag, if_true: Term, if_false: Term) -> Term:
    """Return the number and the words of one of two terms."""
    return Term(where(flag, if_true.size, if_false.size), lambda: if_true.words() if bool(flag) else if_false.words())


class InstantName(StrEnum):
    """The instants that are considered, in the order of a step."""

    LOADED = "models and adapters are made"
    SHARDING = "the model is sharded"
    REWARD_LOADED = "reward models are on the GPU"
    ENGINE_START = "vLLM starts"
    GATHERING = "weights are gathered to generate"
    ENGINE = "vLLM generates"
    POOL = "the rollout engine generates"
    PREFILL_TOWER = "prefill, in a block of the vision tower"
    PREFILL = "prefill, in a layer's MLP"
    GROWTH = "the cache's last growth"
    DECODING = "the last token's attention"
    LAST_LOGITS = "the last token's logits"
    SAMPLING = "the last token is sampled"
    SCORE_TOWER = "scoring, in a block of the vision tower"
    SCORE_LAYER = "scoring, in a layer's MLP"
    SCORE_HEAD = "scoring, at the LM head"
    REWARD = "rewards on the host"
    REWARD_MODEL = "a reward model scores, in a layer's MLP"
    FORWARD_TOWER = "the forward of the vision tower's last block"
    VALUES = "the critic's values, in a layer's MLP"
    FORWARD_LAYER = "the last layer's forward"
    FORWARD_HEAD = "the head's forward and loss"
    BACKWARD_HEAD = "the head's backward"
    BACKWARD_NORM = "the final norm's backward"
    BACKWARD_LAYER = "the last layer's backward"
    REDUCTION = "a full bucket of gradients is reduced"
    BACKWARD_FIRST_LAYER = "the first layer's backward"
    BACKWARD_TOWER = "the backward of the vision tower's last block"
    BACKWARD_FIRST_BLOCK = "the backward of the vision tower's first block"
    BACKWARD_END = "the embedding's backward"
    STEP = "the optimizer's step"
    EVALUATION_ROLLOUT = "an evaluation generates"
    EVALUATION_REWARD = "an evaluation is rewarded"
    EVALUATION_LOSS = "the loss of an evaluation"


@dataclass(frozen=True, kw_only=True)
class Instant:
    """Memory at one instant."""

    phase: Phase
    name: InstantName
    sizes: Bytes
    happens: Flag = True
    """False where a trial has no such instant."""
    words: Mapping[Category, Words] = field(default_factory=dict)
    """The words of those categories whose formula returns them."""

    @property
    def total_bytes(self) -> Count:
        """Sum of all categories; 0 where the instant does not happen."""
        return where(self.happens, total(self.sizes), 0)

    def with_terms(self, terms: Terms) -> Self:
        """Return the instant with `terms` in place of the same categories."""
        sizes = {category: term.size for category, term in terms.items()}
        words = {category: term.words for category, term in terms.items()}
        return replace(self, sizes={**self.sizes, **sizes}, words={**self.words, **words})


def total(sizes: Bytes) -> Count:
    """Return the sum of all categories."""
    found: Count = 0
    for size in sizes.values():
        found = found + size
    return found


def added(*parts: Bytes) -> Bytes:
    """Return the sum of `parts`, by category."""
    sums: dict[Category, Count] = {}
    for part in parts:
        for category, size in part.items():
            sums[category] = sums[category] + size if category in sums else size
    return sums


def times(factor: Count, sizes: Bytes) -> Bytes:
    """Return `sizes` with every category multiplied by `factor`."""
    return {category: factor * size for category, size in sizes.items()}


def head_categories(head: HeadBytes) -> Bytes:
    """Return the bytes of the LM head by category."""
    return {
        Category.LOGITS: head.logits,
        Category.ACTIVATIONS: head.activations,
        Category.GRADIENTS: head.gradients,
    }
