"""Shapes of the batches that the model processes."""

from dataclasses import dataclass, replace

from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, holds, larger, smaller, where, whole_units
from profiler.analytical.formulas.sizes.trial_keys import TrialKeys
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Lengths, Logprobs

_RAGGED_ROWS = 4
_RAGGED_PARTS = 8
"""`completion_lengths`: four lengths that repeat, each an eighth of the longest shorter than the one before."""

_GRPO_LOSS_TENSORS = 12
"""An estimate: ratios, clipped ratios, masks, entropy."""

_RLOO_LOSS_TENSORS = 3
"""The loss is one number per row. Kept are the log-probabilities, their entropy and the mask."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows padded to one length; a micro-batch of training unless stated otherwise."""

    rows: Count
    prompt_tokens: Count
    completion_tokens: Count
    scored_tokens: Count
    """Completion tokens of all rows that are not padding."""
    loss_tensors: int = _GRPO_LOSS_TENSORS
    """Float32 tensors [rows, completion_tokens] that the loss keeps until backward."""
    has_mask: Flag
    """Whether attention gets an explicit mask. transformers drops a mask that masks nothing."""

    @property
    def width(self) -> Count:
        """Tokens of one row, padding included."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def positions(self) -> Count:
        """Tokens of all rows, padding included."""
        return self.rows * self.width


def generated_micro_batch(spec: TrialKeys) -> Batch:
    """Return the batch of one forward and backward pass over prompts and their completions.

    trl shuffles a generation batch before it splits it into micro-batches, so the rows of a micro-batch are random. The
    scored tokens are those of one longest row and otherwise of average rows, rounded up. Each micro-batch is as wide as
    the longest row of its generation batch. `logprobs=full` passes no mask.
    """
    rows, generated = spec.per_device_train_batch_size, spec.generation_batch_size
    longest = spec.max_completion_length
    tokens = tokens_of(spec, rows=generated, longest=longest)
    return Batch(
        rows=rows,
        prompt_tokens=spec.max_prompt_length,
        completion_tokens=longest,
        scored_tokens=longest + whole_units(tokens * (rows - 1), generated),
        loss_tensors=_RLOO_LOSS_TENSORS if spec.recipe is Recipe.RLOO else _GRPO_LOSS_TENSORS,
        has_mask=both(is_padded(spec, rows=generated, longest=longest), spec.logprobs is not Logprobs.FULL),
    )


def is_padded(spec: TrialKeys, *, rows: Count, longest: Count) -> Flag:
    """Return whether one of `rows` rows, the longest of which has `longest` tokens, is shorter than the longest."""
    is_ragged = holds(spec.lengths, lambda lengths: lengths is Lengths.RAGGED)
    return both(is_ragged, (smaller(rows, _RAGGED_ROWS) - 1) * longest // _RAGGED_PARTS > 0)


def tokens_of(spec: TrialKeys, *, rows: Count, longest: Count) -> Count:
    """Return the tokens of `rows` rows, the longest of which has `longest` tokens, without padding."""
    is_ragged = holds(spec.lengths, lambda lengths: lengths is Lengths.RAGGED)
    return where(is_ragged, ragged_tokens(rows, longest), rows * longest)


def ragged_tokens(rows: Count, longest: Count) -> Count:
    """Return the tokens of ragged completions or rows.

    Row i has `longest` tokens minus (i mod 4) eighths of that, at least one (`completion_lengths`). By hand, 6 rows of
    at most 80: 80 + 70 + 60 + 50 + 80 + 70 = 410.
    """
    total: Count = 0
    for cut in range(_RAGGED_ROWS):
        alike = (rows + _RAGGED_ROWS - 1 - cut) // _RAGGED_ROWS
        total = total + alike * larger(1, longest - cut * longest // _RAGGED_PARTS)
    return total


def one_row(batch: Batch) -> Batch:
    """Return one row of `batch` as a batch, as `logprobs=sliced` and `minibatch` process it.

    It is padded if rows of `batch` are. All its completion tokens count as scored, as in the longest row.
    """
    return Batch(
        rows=1,
        prompt_tokens=batch.prompt_tokens,
        completion_tokens=batch.completion_tokens,
        scored_tokens=batch.completion_tokens,
        loss_tensors=batch.loss_tensors,
        has_mask=batch.has_mask,
    )


def unpadded(batch: Batch) -> Batch:
    """Return `batch` with all rows of the longest length: transformers drops a mask that masks nothing."""
    return replace(batch, has_mask=False)


def longest_rows(spec: TrialKeys, rows: Count) -> Count:
    """Return how many of `rows` rows have the longest length, in the proportion of the generation batch; rounded down.

    By hand, 3 of 8 ragged rows, two of which are longest: 3 x 2 // 8 = 0.
    """
    generated = spec.generation_batch_size
    is_ragged = holds(spec.lengths, lambda lengths: lengths is Lengths.RAGGED)
    return where(is_ragged, rows * whole_units(generated, _RAGGED_ROWS) // generated, rows)
