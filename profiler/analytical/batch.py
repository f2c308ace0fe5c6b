"""The shape of what goes through the model at once."""

from dataclasses import dataclass

from profiler.domain.trial import Logprobs, TrialSpec, completion_lengths


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of one length, padded; a micro-batch of training unless said otherwise."""

    rows: int
    prompt_tokens: int
    completion_tokens: int
    scored_tokens: int
    """Completion tokens that are not padding, over all rows."""
    has_mask: bool
    """Whether attention gets an explicit mask: transformers drops one that masks nothing."""

    @property
    def width(self) -> int:
        """Tokens of one row, padding included."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def positions(self) -> int:
        """Tokens of all rows, padding included."""
        return self.rows * self.width


def micro_batch(spec: TrialSpec) -> Batch:
    """The completions of one backward pass.

    trl shuffles a generation batch before it cuts it into micro-batches, so which rows meet is chance: the scored
    tokens are those of one longest row, which some micro-batch has, and of average rows beside it, rounded up. Every
    micro-batch is as wide as the longest row of its generation batch. `logprobs=full` passes no mask.
    """
    lengths = completion_lengths(
        lengths=spec.lengths, rows=spec.generation_batch_size, max_completion_length=spec.max_completion_length
    )
    rows = spec.per_device_train_batch_size
    return Batch(
        rows=rows,
        prompt_tokens=spec.max_prompt_length,
        completion_tokens=spec.max_completion_length,
        scored_tokens=max(lengths) - (-sum(lengths) * (rows - 1) // len(lengths)),
        has_mask=len(set(lengths)) > 1 and spec.logprobs is not Logprobs.FULL,
    )


def one_row(batch: Batch) -> Batch:
    """The longest row of `batch` alone, as `logprobs=sliced` and `minibatch` run it.

    It is padding-free, but rows beside it are not: the mask is kept as the heavier case.
    """
    return Batch(
        rows=1,
        prompt_tokens=batch.prompt_tokens,
        completion_tokens=batch.completion_tokens,
        scored_tokens=batch.completion_tokens,
        has_mask=batch.has_mask,
    )
