"""The LM head in training: logits, log-probabilities, and their gradients.

Two implementations: the fused head of trl (`trl/kernels/chunked_logprob.py`, `add_fused_lm_head` in
`trl/trainer/utils.py`), which computes logits in tiles, and that of trl 0.14.0, which computes all logits at once. N is
`scored_tokens`.
"""

from dataclasses import dataclass

from profiler.analytical.formulas.batch import Batch
from profiler.analytical.formulas.quantities import Count, both, larger, smaller, where
from profiler.analytical.formulas.rounding import Block, block_of, exact
from profiler.analytical.formulas.trained import FLOAT32_BYTES, INT64_BYTES, element_bytes, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.weights import head_copy_bytes
from profiler.domain.trial import Logprobs

TOKEN_CHUNK = 4096
"""Rows of a tile: `TOKEN_CHUNK_SIZE` in trl."""
VOCABULARY_CHUNK = 32_768
"""Columns of a tile: `_CHUNKED_LOGPROB_CHUNK_SIZE` in trl."""

_FORWARD_STATISTICS = 7
_SAVED_STATISTICS = 2


@dataclass(frozen=True, kw_only=True)
class HeadBytes:
    """Bytes of one stage of the head, by category."""

    logits: Count = 0
    """Tensors as wide as the vocabulary, and log-probabilities."""
    activations: Count = 0
    """Hidden states and their gradients."""
    gradients: Count = 0
    """Gradients of the weight of the head."""


def tile_bytes(scored_tokens: Count, compute: Count) -> Count:
    """Return the bytes of one tile of logits, [min(N, 4096), 32768]: always of full width, in the compute type.

    By hand, N = 1,000 in bfloat16: 1,000 x 32,768 x 2 B = 65,536,000 B.
    """
    return smaller(scored_tokens, TOKEN_CHUNK) * VOCABULARY_CHUNK * compute


def cast_chunk_bytes(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, chunks: int, columns: Count = VOCABULARY_CHUNK
) -> Count:
    """Return the copies that the fused head casts to a narrower type: chunks of its weight, hidden states of a tile.

    0 if nothing is cast. By hand, one chunk, H = 8, N = 10, V = 100, float32 under autocast: (100 + 10) x 8 x 2 =
    1,760 B.

    Source: `_chunked_logprob` in trl's `chunked_logprob.py`, `.to(compute_dtype)`.
    """
    sizes = element_bytes(spec)
    block, row = block_of(spec), architecture.hidden_size * sizes.compute
    weight = chunks * block(smaller(architecture.vocab_size, columns) * row)
    return where(sizes.autocast_casts, weight + block(smaller(batch.scored_tokens, TOKEN_CHUNK) * row), 0)


def loss_bytes(batch: Batch, block: Block = exact) -> Count:
    """Return the bytes of the float32 [rows, C] tensors of the loss."""
    return batch.loss_tensors * block(batch.rows * batch.completion_tokens * FLOAT32_BYTES)


def head_saved(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return what the head keeps from forward until backward.

    Fused: the hidden states of the scored positions, [N, H], their targets, and two float32 statistics per position.
    Full: the log-softmax of each row, [C, V] in its own type; if the head is trained, its input,
    [rows x (C + 1), H]; and the copy of its weight, if autocast makes one.

    By hand, full, 1 row, C = 10, V = 100, under autocast: 10 x 100 x 4 B = 4,000 B of logits.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    if spec.logprobs is Logprobs.FULL:
        kept = block(batch.rows * (batch.completion_tokens + 1) * architecture.hidden_size * sizes.compute)
        row = block(batch.completion_tokens * architecture.vocab_size * sizes.log_softmax)
        return HeadBytes(
            logits=batch.rows * row + loss_bytes(batch, block),
            activations=(kept if trains_everything(spec) else 0) + head_copy_bytes(spec, architecture),
        )
    statistics = _SAVED_STATISTICS * block(batch.scored_tokens * FLOAT32_BYTES)
    return HeadBytes(
        logits=statistics + block(batch.scored_tokens * INT64_BYTES) + loss_bytes(batch, block),
        activations=block(batch.scored_tokens * architecture.hidden_size * sizes.stream),
    )


def full_logits_classes_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the bytes of the tensors of `logprobs=full` that are as wide as the vocabulary, for reserved memory.

    The sum over sizes of the most tensors of each size, because a block of one size does not fit another
    (`timeline.reserved`): the logits of all rows, [rows, C + 1, V], twice in the output type (the stacked gradients and
    the gradient of their slice) and once in the compute type if that is another; the log-softmax of each row, [C, V].

    By hand, 2 rows, C = 10, V = 100, under autocast: 2 x 2 x 11 x 100 x 4 + 2 x 11 x 100 x 2 + 2 x 10 x 100 x 4 =
    30,000 B.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    whole = batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size
    rows = batch.rows * block(batch.completion_tokens * architecture.vocab_size * sizes.log_softmax)
    converted = where(sizes.output != sizes.compute, block(whole * sizes.compute), 0)
    return 2 * block(whole * sizes.output) + converted + rows


def head_forward_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of the head's forward in addition to what it keeps.

    Fused: one tile, seven float32 statistics per token, the last hidden states, [T, H], and if autocast casts, a cast
    chunk of the head and the hidden states of a tile.
    Full: the logits of C + 1 positions of all rows, in the output type, until the log-softmax of the last row, and the
    copy of a row that autocast casts for it.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    hidden = block(batch.positions * architecture.hidden_size * sizes.stream)
    if spec.logprobs is Logprobs.FULL:
        logits = block(batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size * sizes.output)
        return HeadBytes(logits=logits + _cast_row_bytes(spec, architecture, batch), activations=hidden)
    statistics = _FORWARD_STATISTICS * block(FLOAT32_BYTES * batch.scored_tokens)
    tile = block(tile_bytes(batch.scored_tokens, sizes.compute))
    return HeadBytes(
        logits=tile + statistics + cast_chunk_bytes(spec, architecture, batch, chunks=1), activations=hidden
    )


def head_backward_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of the head's backward in addition to what forward kept.

    Fused: one tile; float32 gradients of the hidden states, [N, H], and of a trained head, [V, H], and both also in
    their own types when they are returned, if these are not float32. If autocast casts the weights, two cast chunks of
    the head, because the next chunk is cast before the last is freed; when gradients are returned only the last chunk
    is left, so the peak is at one instant or the other. Full: the gradients of the logits of each row replace the
    log-softmax of that row; then all are stacked, which doubles them. For a single row, the gradients of gather and of
    log-softmax are there at the same time. Then the gradient in the compute type, and that of a trained head.

    By hand, fused, N = 10, H = 8, V = 100, bfloat16, trained: 10 x 8 x 6 = 480 B and 100 x 8 x 6 = 4,800 B, and the
    tile of 655,360 B.
    """
    sizes, hidden, vocabulary = element_bytes(spec), architecture.hidden_size, architecture.vocab_size
    trained, block = trains_everything(spec), block_of(spec)
    if spec.logprobs is Logprobs.FULL:
        one_row = block(batch.completion_tokens * vocabulary * sizes.log_softmax)
        # Gradients in a narrower type than the log-softmax fit into what it frees, row by row.
        return HeadBytes(logits=where(sizes.output < sizes.log_softmax, 2, larger(batch.rows, 2)) * one_row)

    values = batch.scored_tokens * hidden
    weights = vocabulary * hidden if trained else 0
    made = block(values * FLOAT32_BYTES)
    returned = where(sizes.stream < FLOAT32_BYTES, block(values * sizes.stream), 0)
    weights_made = block(weights * FLOAT32_BYTES)
    weights_returned = where(sizes.weight < FLOAT32_BYTES, block(weights * sizes.weight), 0)
    in_loop = cast_chunk_bytes(spec, architecture, batch, chunks=2)
    last = cast_chunk_bytes(spec, architecture, batch, chunks=1, columns=(vocabulary - 1) % VOCABULARY_CHUNK + 1)
    at_end = last + returned + weights_returned >= in_loop
    return HeadBytes(
        logits=block(tile_bytes(batch.scored_tokens, sizes.compute)) + where(at_end, last, in_loop),
        activations=made + where(at_end, returned, 0),
        gradients=weights_made + where(at_end, weights_returned, 0),
    )


def score_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of log-probabilities without gradient.

    Fused: as in the forward of training, and the compacted hidden states. Full: the logits in the compute type with the
    copy of the head (that of a trained float32 head is in autocast's cache); or, if the types differ, the logits in
    both types; or the logits in the output type with the log-softmax of one row.
    """
    if spec.logprobs is not Logprobs.FULL:
        scratch = head_forward_scratch(spec, architecture, batch)
        compact = head_saved(spec, architecture, batch).activations
        return HeadBytes(logits=scratch.logits, activations=scratch.activations + compact)
    sizes, block = element_bytes(spec), block_of(spec)
    values = batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size
    converted = where(sizes.output != sizes.compute, block(values * sizes.compute), 0)
    row = block(batch.completion_tokens * architecture.vocab_size * sizes.log_softmax)
    row = row + _cast_row_bytes(spec, architecture, batch)
    hidden = block(batch.positions * architecture.hidden_size * sizes.stream)
    copied = where(both(trains_everything(spec), sizes.autocast_caches), 0, head_copy_bytes(spec, architecture))
    product = block(values * sizes.compute) + copied
    return HeadBytes(logits=larger(block(values * sizes.output) + larger(converted, row), product), activations=hidden)


def _cast_row_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the logits of a row that are cast to the type of the log-softmax; 0 if it is their own."""
    sizes = element_bytes(spec)
    row = block_of(spec)(batch.completion_tokens * architecture.vocab_size * sizes.log_softmax)
    return where(sizes.output < sizes.log_softmax, row, 0)
