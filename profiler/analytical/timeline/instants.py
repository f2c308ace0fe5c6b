"""Instants of a trial at which memory can peak, as bytes by category.

The memory of an instant is the persistent memory plus what this instant adds. The peak is the largest instant: memory
that does not exist at the same time is never added up.
"""

from dataclasses import dataclass
from enum import StrEnum

from profiler.analytical.formulas.head import HeadBytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, where
from profiler.analytical.formulas.sizes.term import Terms
from profiler.domain.memory import Category, Phase


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
    terms: Terms
    """Bytes by category, with their words."""
    happens: Flag = True
    """False where a trial has no such instant."""

    @property
    def sizes(self) -> dict[Category, Count]:
        """The bytes by category."""
        return {category: term.size for category, term in self.terms.items()}

    @property
    def total_bytes(self) -> Count:
        """Sum of all categories; 0 where the instant does not happen."""
        return where(self.happens, sum([term.size for term in self.terms.values()]), 0)

    def words(self) -> dict[Category, str]:
        """Return the short form of each category that has bytes: its factors, in at most 50 characters.

        T is the number of tokens of a micro-batch, N of those that are scored, H the hidden size.
        """
        return {category: term.text for category, term in self.terms.items() if term.size}

    def with_terms(self, terms: Terms) -> "Instant":
        """Return the instant with `terms` in place of the same categories."""
        return Instant(phase=self.phase, name=self.name, terms={**self.terms, **terms}, happens=self.happens)


def head_categories(head: HeadBytes) -> Terms:
    """Return the bytes of the LM head by category."""
    return {
        Category.LOGITS: head.logits,
        Category.ACTIVATIONS: head.activations,
        Category.GRADIENTS: head.gradients,
    }
