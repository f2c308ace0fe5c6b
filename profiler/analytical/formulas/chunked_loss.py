"""The loss of SFT in chunks of tokens, `chunked_nll` of trl 1.4 to 1.14, whose logits exist chunk by chunk.

Each chunk of 256 tokens is checkpointed: forward keeps its hidden states, and backward makes its logits again. So
nothing as wide as the vocabulary is kept, but backward has the copy of the head and up to three float32 tensors of a
chunk. A trained head has a gradient per chunk, and autograd adds them up.

Source: `_chunk` and `_chunked_cross_entropy_loss` in `trl/trainer/sft_trainer.py` of trl 1.7.1 to 1.14.2; `checkpoint`
in torch's `utils/checkpoint.py`, whose recomputation stops at the last tensor that autograd had saved;
`InputBuffer::accumulate` in torch's `autograd/input_buffer.cpp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    INT64_BYTES,
    element_bytes,
    is_unwrapped,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import (
    Count,
    Flag,
    HeadBytes,
    Term,
    Words,
    both,
    chosen,
    larger,
    negated,
    smaller,
    where,
)
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.domain.trials.trial import CHUNK_TOKENS, ChunkedLoss


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Bytes of the tensors of one chunk of t tokens, and of the head, [V, H]."""

    product: Count
    """What the product of hidden states and head returns, [t, V]: in the compute type under autocast."""
    logits: Count
    """The logits that stay until the end of the chunk: the product, or its copy in float32."""
    in_float32: Count
    """The log-softmax, its exponential, the product of both, or a gradient of them, [t, V]."""
    wide_head: Count
    """The copy of the head in the type of its other factor; 0 if it has that type."""
    cast_head: Count
    """The copy of the head that autocast makes for the product; 0 without one."""
    gradient: Count
    """The gradient of the head as the product's backward makes it, in the type of the product's factors."""
    wide_gradient: Count
    """The same in the type of `wide_head`."""
    own_gradient: Count
    """The same in the type of the head."""
    is_view: Flag
    """Whether the last is a view of another tensor: transposing the head is the first that is done with it."""
    rows: Count
    """The hidden states of all chunks, or their gradient, in the type of the stream."""
    several: Flag
    """Whether there are several chunks."""
    words: Words

    @property
    def kept_head(self) -> Count:
        """The copy of the head that the product saves for its backward."""
        return where(self.cast_head > 0, self.cast_head, self.wide_head)


def _loss_of(spec: TrialKeys) -> ChunkedLoss:
    found = spec.logprobs.chunked_loss
    if found is None:
        raise ValueError(f"logprobs={spec.logprobs} has no chunks")
    return found


def _kept_positions(spec: TrialKeys, batch: Batch) -> Count:
    """Return the positions whose hidden states are kept: those with a label, or all but the last of a row."""
    return batch.rows * batch.completion_tokens if _loss_of(spec).keeps_padding else batch.scored_tokens


def chunk_of(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, tokens: Count = CHUNK_TOKENS) -> Chunk:
    """Return the sizes of a chunk of at most `tokens` tokens.

    By hand, 2 rows of 11 tokens, of which 20 have a label, V = 100, H = 8, a float32 head under autocast: t = 20, a
    product of 20 x 100 x 2 = 4,000 B, 8,000 B in float32, and a cast head of 100 x 8 x 2 = 1,600 B. FSDP and
    DeepSpeed compute without autocast.
    """
    sizes, block, loss = element_bytes(spec), block_of(spec), _loss_of(spec)
    positions = _kept_positions(spec, batch)
    values = smaller(positions, tokens) * architecture.vocab_size
    head = architecture.vocab_size * architecture.hidden_size
    factor = FLOAT32_BYTES if loss.widens_inputs else sizes.stream
    is_cast = both(both(spec.mixed_precision, not is_unwrapped(spec.distributed_type)), factor != BFLOAT16_BYTES)
    computed = where(is_cast, BFLOAT16_BYTES, factor)
    in_float32 = block(values * FLOAT32_BYTES)
    product = block(values * computed)
    return Chunk(
        product=product,
        logits=product if loss.widens_inputs else in_float32,
        in_float32=in_float32,
        wide_head=where(factor != sizes.weight, block(head * factor), 0),
        cast_head=where(is_cast, block(head * BFLOAT16_BYTES), 0),
        gradient=block(head * computed),
        wide_gradient=block(head * factor),
        own_gradient=block(head * sizes.weight),
        is_view=factor == sizes.weight,
        rows=block(positions * architecture.hidden_size * sizes.stream),
        several=batch.scored_tokens > CHUNK_TOKENS,
        words=lambda: f"min({positions}, {CHUNK_TOKENS}) x {architecture.vocab_size} x {FLOAT32_BYTES} B, ...",
    )


def chunked_saved(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return what forward keeps until backward: hidden states, [N, H], in their type, labels, and their order.

    N are the positions with a label; from trl 1.8 on all but the last of each row. By hand, as in `chunk_of`:
    20 x 8 x 4 = 640 B of a float32 stream, and 2 x 20 x 8 = 320 B.
    """
    numbers = 2 * block_of(spec)(_kept_positions(spec, batch) * INT64_BYTES)
    return HeadBytes(logits=Term(numbers), activations=Term(chunk_of(spec, architecture, batch).rows))


def chunked_forward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return the peak of a chunk's forward: while the product is made, or when the entropy is computed.

    Autograd saves nothing of a checkpointed chunk, so the copies of the head are gone after the product. By hand, as in
    `chunk_of`: max(1,600 + 4,000, 4,000 + 3 x 8,000) = 28,000 B.
    """
    one = chunk_of(spec, architecture, batch)
    product = one.wide_head + one.cast_head + one.product
    return Term(larger(product, one.logits + 3 * one.in_float32), one.words)


def chunked_backward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of backward in addition to what forward kept; the largest of its stages.

    A chunk is computed again, with the head that its product saves: to the product of the entropy, or up to trl 1.7 to
    the exponential before it. Then there are the log-softmax, its gradient and that of the logits. A trained head gets
    its gradient in the type of the factors, then in its own. From the second chunk on, the sum of the earlier ones is
    there too. Autograd adds to it in place, unless it is a view, which that of the first chunk is: then the sum is a
    third tensor. The same is done with the hidden states, in place.

    By hand, as in `chunk_of`, to the end of the only chunk: 1,600 + 4,000 + 3 x 8,000 = 29,600 B. 2,000 tokens of
    qwen2.5-0.5b in full: the sum has 3 x 151,936 x 896 x 4 B, and the gradient of the hidden states 2,000 x 896 x 4 B.
    """
    one, loss, trained = chunk_of(spec, architecture, batch), _loss_of(spec), trains_everything(spec)
    made = one.own_gradient if trained else 0
    summed, rows = where(one.several, made, 0), where(one.several, one.rows, 0)
    third = where(one.is_view, summed, 0)

    def stage(logits: Count, head: Count, *, gradients: Count = 0, hidden: Count = 0) -> HeadBytes:
        return HeadBytes(
            logits=Term(logits, lambda: one.words() if logits else "labels"),
            activations=Term(head + rows + hidden, lambda: "the head's copy and N x H" if head else "N x H"),
            gradients=Term(summed + gradients, lambda: "the head's"),
        )

    again = one.logits + (3 if loss.runs_to_the_end else 2) * one.in_float32
    stages = [
        stage(one.product, one.wide_head + one.cast_head),
        stage(again, one.kept_head),
        stage(3 * one.in_float32, one.kept_head),
        stage(0, 0, hidden=one.rows),
    ]
    if trained:
        stages += [
            stage(one.product, one.kept_head, gradients=one.gradient),
            stage(0, 0, gradients=one.gradient + where(one.cast_head > 0, one.wide_gradient, 0)),
            stage(0, 0, gradients=one.wide_gradient + where(one.wide_head > 0, made, 0)),
            stage(0, 0, gradients=made + third),
        ]
    return _largest(stages)


def _largest(stages: Sequence[HeadBytes]) -> HeadBytes:
    """Return the stage with the most bytes, the first of several."""
    found = stages[0]
    for each in stages[1:]:
        is_larger = _total(each) > _total(found)
        found = HeadBytes(
            logits=chosen(is_larger, each.logits, found.logits),
            activations=chosen(is_larger, each.activations, found.activations),
            gradients=chosen(is_larger, each.gradients, found.gradients),
        )
    return found


def _total(stage: HeadBytes) -> Count:
    return stage.logits.size + stage.activations.size + stage.gradients.size


def head_gradient_is_view(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Flag:
    """Return whether the head's gradient is a view, as the transposed product of logits and no cast is.

    The sum of the gradients of several chunks is none.
    """
    if spec.logprobs.chunked_loss is None:
        return both(spec.logprobs.makes_all_logits, negated(element_bytes(spec).casts_inputs))
    one = chunk_of(spec, architecture, batch)
    return both(one.is_view, negated(one.several))
