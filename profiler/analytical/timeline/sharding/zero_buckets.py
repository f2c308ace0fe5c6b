"""The buckets of ZeRO: gradients are copied into one as backward makes them, and a full one is reduced.

For its reduction a bucket is copied once more (sources: `zero.py`).
"""

from dataclasses import dataclass, replace
from functools import cached_property

from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    both,
    either,
    larger,
    negated,
    smaller,
    where,
)
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.domain.memory import Category, Phase

BUCKET = 500_000_000
"""Gradients that are reduced at a time (`reduce_bucket_size`)."""
BUCKET_BYTES = BUCKET * BFLOAT16_BYTES

_FROM_THE_LAYERS = (
    InstantName.BACKWARD_NORM,
    InstantName.BACKWARD_LAYER,
    InstantName.REDUCTION,
    InstantName.BACKWARD_FIRST_LAYER,
    InstantName.BACKWARD_END,
)
"""Instants at which the first gradient of a backward has been made, in order."""

_WORDS = {
    InstantName.REDUCTION: "a bucket and its copy",
    InstantName.BACKWARD_FIRST_LAYER: "a bucket and its copy",
    InstantName.BACKWARD_END: "a bucket and a copy of what is left",
}


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The gradients of a backward, on their way through buckets."""

    stage: int
    trained: Count
    """Trained parameters."""
    own: Count
    """Those that this GPU updates."""
    trained_embedding: Count
    """Those of the embedding; 0 where it is not trained."""
    architecture: DecoderShape
    accumulates: Flag
    """Whether a step has several backwards."""
    all_bytes: Count
    """Bytes of all gradients on a GPU that trains alone."""
    kept_bytes: Count
    """Bytes of the gradients that this GPU keeps of a reduction."""
    scores_in_step: bool
    """Whether scores are between a forward and its backward."""

    @property
    def is_tied(self) -> Flag:
        """Whether the LM head is the embedding."""
        return self.architecture.tie_word_embeddings

    @property
    def has_own_head(self) -> Flag:
        """Whether the LM head is another matrix as large as the embedding; a head of scores has one row."""
        return False if self.architecture.scores else negated(self.is_tied)

    @property
    def layers(self) -> Count:
        """Decoder layers."""
        return self.architecture.num_hidden_layers

    def gradient_bytes(self, alone: Instant) -> Count:
        """Return gradients outside of buckets; those of a step are `Zero.step_gradient_bytes`."""
        size = alone.terms.get(Category.GRADIENTS, NOTHING).size
        if self.stage in (0, 1):
            at_the_end = alone.name is InstantName.BACKWARD_END and self.stage == 1
            return larger(size, self.all_bytes + self.kept_bytes) if at_the_end else size
        if alone.phase is not Phase.BACKWARD:
            # Stage 3 has one buffer for what is kept between backwards, from the beginning.
            return self.kept_bytes if self.stage == 3 else where(size > 0, self.kept_bytes, 0)
        more = where(self.accumulates, self.kept_bytes, 0) if self.stage == 2 else self.kept_bytes
        if alone.name is InstantName.BACKWARD_HEAD:
            return size - where(self.accumulates, self.all_bytes, 0) + more
        return more + self._in_backward(alone.name)

    def _in_backward(self, name: InstantName) -> Count:
        """Return gradients outside of the bucket: of a tied head until the end, of one too large, and what is kept."""
        kept = self.kept_bytes if self.stage == 2 else 0
        waiting = where(self.is_tied, self._table_bytes, 0)
        too_large = where(self._table_bytes > BUCKET_BYTES, self._table_bytes, 0)
        match name:
            case InstantName.BACKWARD_NORM:
                return where(self.is_tied, self._table_bytes, where(self.has_own_head, too_large, 0))
            case InstantName.BACKWARD_FIRST_LAYER:
                return waiting + where(self._keeps_before_the_end, kept, 0)
            case InstantName.BACKWARD_END:
                is_kept = either(self._keeps_before_the_end, self._outgrows_the_last_copy)
                return too_large + where(is_kept, kept, 0)
        return waiting

    def communicated(self, alone: Instant) -> Term:
        """Return the bucket and the copy of what is reduced.

        Stage 3 keeps its bucket. Stage 2 has one from the first gradient of a backward until its end, stage 1 from the
        first backward of a step until the end of the last, and stage 0 none: it copies all gradients at the end.
        """
        return Term(self._communicated_bytes(alone), lambda: _WORDS.get(alone.name, "a bucket"))

    def _communicated_bytes(self, alone: Instant) -> Count:
        name = alone.name
        if self.stage == 0:
            return smaller(self.all_bytes, BUCKET_BYTES) if name is InstantName.BACKWARD_END else 0
        if self.stage == 3 or name in _FROM_THE_LAYERS:
            return BUCKET_BYTES + self._copied(name)
        in_pass = alone.phase in (Phase.FORWARD, Phase.BACKWARD) or (self.scores_in_step and alone.phase is Phase.SCORE)
        return where(self.accumulates, BUCKET_BYTES, 0) if self.stage == 1 and in_pass else 0

    def _copied(self, name: InstantName) -> Count:
        """Return the copy of what is reduced. Stage 1 reduces at the end only, out of the gradients themselves."""
        if self.stage == 1:
            return 0
        too_large = where(self._table_bytes > BUCKET_BYTES, self._table_bytes, 0)
        match name:
            case InstantName.BACKWARD_NORM:
                return where(self.has_own_head, too_large, 0)
            case InstantName.REDUCTION:
                return BUCKET_BYTES
            case InstantName.BACKWARD_FIRST_LAYER:
                return where(self._fills_a_bucket, BUCKET_BYTES, 0)
            case InstantName.BACKWARD_END:
                return where(self._outgrows_the_last_copy, 0, self._last_copy)
        return 0

    def reduction(self, last: Instant, first: Instant) -> Instant:
        """Return the first reduction of a full bucket, after the backward of as many layers as fill it.

        Activations are between those of the last layer's backward and of the first's, which comes last.
        """
        high, low = (each.terms.get(Category.ACTIVATIONS, NOTHING) for each in (last, first))
        done = smaller(self._layers_of_a_bucket, self.layers)
        between = Term(
            high.size - (high.size - low.size) * done // self.layers,
            lambda: "between those of the last layer and of the first",
        )
        happens = both(self._fills_a_bucket, last.happens)
        return replace(last, name=InstantName.REDUCTION, happens=happens).with_terms({Category.ACTIVATIONS: between})

    @cached_property
    def _layers_of_a_bucket(self) -> Count:
        outside = self.trained_embedding + where(self.has_own_head, self.trained_embedding, 0)
        layer = (self.trained - outside) // self.layers
        # An own LM head is the first to enter a bucket, unless it is larger than one.
        head = where(self.has_own_head, where(self.trained_embedding <= BUCKET, self.trained_embedding, 0), 0)
        return (BUCKET - head) // larger(layer, 1)

    @cached_property
    def _fills_a_bucket(self) -> Flag:
        return self._layers_of_a_bucket < self.layers

    @property
    def _table_bytes(self) -> Count:
        return BFLOAT16_BYTES * self.trained_embedding

    @cached_property
    def _keeps_before_the_end(self) -> Flag:
        """Whether a bucket before the last one has gradients of the first GPU's part."""
        table = self.trained_embedding
        return both(self.own > table + (self.trained - table) % BUCKET, self._fills_a_bucket)

    @cached_property
    def _outgrows_the_last_copy(self) -> Flag:
        """Whether what stage 2 keeps of a backward is all from the last bucket, and larger than that bucket's copy.

        It is kept after the copy is freed, so the end of a backward is as large as the larger of both.
        """
        if self.stage != 2:
            return False
        return both(negated(self._keeps_before_the_end), self.kept_bytes > self._last_copy)

    @cached_property
    def _last_copy(self) -> Count:
        """What is reduced at the end: what is left of the layers, and the embedding in the same bucket or alone."""
        table = self.trained_embedding
        rest = self.trained - table
        rest = rest - where(self.has_own_head, where(table > BUCKET, table, 0), 0)
        left = rest % BUCKET
        alone = larger(left, table)
        return BFLOAT16_BYTES * where(table > BUCKET, alone, where(left + table > BUCKET, left, left + table))
