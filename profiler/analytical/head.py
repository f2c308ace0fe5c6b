"""The LM head in training: logits, log-probabilities, and the gradients that begin there.

Two ways: trl's fused head (`trl/kernels/chunked_logprob.py`, `add_fused_lm_head` in `trl/trainer/utils.py`), which
makes logits a tile at a time, and trl 0.14.0's, which makes them all. N is `scored_tokens`.
"""

from dataclasses import dataclass

from profiler.analytical.batch import Batch
from profiler.analytical.trained import FLOAT32_BYTES, INT64_BYTES, element_bytes, trains_everything
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Logprobs, TrialSpec

TOKEN_CHUNK = 4096
"""Rows of a tile: `TOKEN_CHUNK_SIZE` in trl."""
VOCABULARY_CHUNK = 32_768
"""Columns of a tile: `_CHUNKED_LOGPROB_CHUNK_SIZE` in trl."""

_FORWARD_STATISTICS = 7
_SAVED_STATISTICS = 2
_LOSS_TENSORS = 12
"""[rows, C] float32 tensors of the loss that live until its backward: ratios, their clipped twins, masks, entropy."""


@dataclass(frozen=True, kw_only=True)
class HeadBytes:
    """Bytes of one stage of the head, by what they are."""

    logits: int = 0
    """As wide as the vocabulary, or log-probabilities."""
    activations: int = 0
    """Hidden states and their gradients."""
    gradients: int = 0
    """Of the head's weight."""


def tile_bytes(scored_tokens: int, compute: int) -> int:
    """The buffer of one tile of logits, [min(N, 4096), 32768]: always the full width, in the compute type.

    By hand, N = 1,000 in bfloat16: 1,000 x 32,768 x 2 B = 65,536,000 B.
    """
    return min(scored_tokens, TOKEN_CHUNK) * VOCABULARY_CHUNK * compute


def loss_bytes(batch: Batch) -> int:
    """Float32 [rows, C] tensors of the loss. An estimate of their number (`GRPOTrainer._compute_loss`)."""
    return _LOSS_TENSORS * batch.rows * batch.completion_tokens * FLOAT32_BYTES


def head_saved(spec: TrialSpec, architecture: Architecture, batch: Batch) -> HeadBytes:
    """What the head keeps from forward until its backward.

    Fused: the hidden states of the scored positions, [N, H], their targets and two float32 statistics each.
    Full: each row's log-softmax, [C, V] in the output type, and where the head is trained its input,
    [rows x (C + 1), H].

    By hand, full, 1 row, C = 10, V = 100, under autocast: 10 x 100 x 4 B = 4,000 B of logits.
    """
    sizes = element_bytes(spec)
    if spec.logprobs is Logprobs.FULL:
        kept = batch.rows * (batch.completion_tokens + 1) * architecture.hidden_size * sizes.compute
        return HeadBytes(
            logits=batch.rows * batch.completion_tokens * architecture.vocab_size * sizes.output + loss_bytes(batch),
            activations=kept if trains_everything(spec) else 0,
        )
    statistics = batch.scored_tokens * (_SAVED_STATISTICS * FLOAT32_BYTES + INT64_BYTES)
    return HeadBytes(
        logits=statistics + loss_bytes(batch),
        activations=batch.scored_tokens * architecture.hidden_size * sizes.weight,
    )


def head_forward_scratch(spec: TrialSpec, architecture: Architecture, batch: Batch) -> HeadBytes:
    """What the head's forward needs above what it keeps, at its highest.

    Fused: one tile, seven float32 statistics a token, and the last hidden states, [T, H].
    Full: the logits of C + 1 positions of all rows, in the output type, until the last row's log-softmax is taken.
    """
    sizes = element_bytes(spec)
    hidden = batch.positions * architecture.hidden_size * sizes.weight
    if spec.logprobs is Logprobs.FULL:
        logits = batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size * sizes.output
        return HeadBytes(logits=logits, activations=hidden)
    statistics = _FORWARD_STATISTICS * FLOAT32_BYTES * batch.scored_tokens
    return HeadBytes(logits=tile_bytes(batch.scored_tokens, sizes.compute) + statistics, activations=hidden)


def head_backward_scratch(spec: TrialSpec, architecture: Architecture, batch: Batch) -> HeadBytes:
    """What the head's backward needs above what it kept, at its highest.

    Fused: one tile; float32 gradients of the hidden states, [N, H], and of a trained head, [V, H], and both once more
    in their own types as they are returned.
    Full: the gradients of the rows' logits replace their log-softmax one for one, then all are stacked, doubling; for a
    single row the gradients of gather and of log-softmax stand beside it. Then the gradient in the compute type, and
    that of a trained head.

    By hand, fused, N = 10, H = 8, V = 100, bfloat16, trained: 10 x 8 x 6 = 480 B and 100 x 8 x 6 = 4,800 B, and the
    tile of 655,360 B.
    """
    sizes, hidden, vocabulary = element_bytes(spec), architecture.hidden_size, architecture.vocab_size
    trained = trains_everything(spec)
    if spec.logprobs is Logprobs.FULL:
        one_row = batch.completion_tokens * vocabulary * sizes.output
        return HeadBytes(logits=max(batch.rows, 2) * one_row)
    return HeadBytes(
        logits=tile_bytes(batch.scored_tokens, sizes.compute),
        activations=batch.scored_tokens * hidden * (FLOAT32_BYTES + sizes.weight),
        gradients=vocabulary * hidden * (FLOAT32_BYTES + sizes.weight) if trained else 0,
    )


def score_scratch(spec: TrialSpec, architecture: Architecture, batch: Batch) -> HeadBytes:
    """What log-probabilities without gradient need at their highest.

    Fused: as in training's forward, and the compacted hidden states. Full: the logits in the compute type and, where
    they differ, once more in the output type; or the latter with one row's log-softmax.
    """
    if spec.logprobs is not Logprobs.FULL:
        scratch = head_forward_scratch(spec, architecture, batch)
        compact = head_saved(spec, architecture, batch).activations
        return HeadBytes(logits=scratch.logits, activations=scratch.activations + compact)
    sizes = element_bytes(spec)
    values = batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size
    converted = values * (sizes.compute if spec.bf16 else 0)
    row = batch.completion_tokens * architecture.vocab_size * sizes.output
    hidden = batch.positions * architecture.hidden_size * sizes.weight
    return HeadBytes(logits=values * sizes.output + max(converted, row), activations=hidden)
