"""The LM head in training: logits, log-probabilities, and their gradients.

The fused head of trl (`trl/kernels/chunked_logprob.py`, `add_fused_lm_head` in `trl/trainer/utils.py`) computes logits
in tiles; N is `scored_tokens`. Up to 1.14 trl computed all logits at once: in 0.14 with a log-softmax of each row
(`logprobs=full`), then by `selective_log_softmax` (`logprobs=selective` and its kin). Its SFT took transformers' loss
of all logits (`logprobs=nll` and its kin), then that of `chunked_loss.py`. All are in `profiler/training/recipes`,
but losses of preferences of other programs than trl (`logprobs=pairs_of_rows` and its kin), which have the form only.
"""

from profiler.analytical.formulas.chunked_loss import chunked_backward, chunked_forward, chunked_saved
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    AllLogits,
    all_logits,
    copy_bytes,
    element_bytes,
    trains_everything,
    waiting_logits,
)
from profiler.analytical.formulas.models.weights import head_copy_bytes
from profiler.analytical.formulas.sizes.quantities import (
    Count,
    HeadBytes,
    Term,
    both,
    larger,
    smaller,
    where,
)
from profiler.analytical.formulas.sizes.rounding import Block, block_of, exact
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.domain.trials.trial import ENTROPY_TOKENS, Selection

TOKEN_CHUNK = 4096
"""Rows of a tile: `TOKEN_CHUNK_SIZE` in trl."""
VOCABULARY_CHUNK = 32_768
"""Columns of a tile: `_CHUNKED_LOGPROB_CHUNK_SIZE` in trl."""

_FORWARD_STATISTICS, _SAVED_STATISTICS = 7, 2
_ENTROPY_TENSORS = 3
"""Tensors of the entropy at once: the log-softmax, its exponential, and their product."""


def tile(scored_tokens: Count, compute: Count, block: Block = exact) -> Term:
    """Return one tile of logits, [min(N, 4096), 32768]: always of full width, in the compute type.

    By hand, N = 1,000 in bfloat16: 1,000 x 32,768 x 2 B = 65,536,000 B.
    """
    return Term(
        block(smaller(scored_tokens, TOKEN_CHUNK) * VOCABULARY_CHUNK * compute),
        lambda: f"a tile, min({scored_tokens}, {TOKEN_CHUNK}) x {VOCABULARY_CHUNK} x {compute} B",
    )


def cast_chunk_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *vocabulary: Count) -> Count:
    """Return the copies that the fused head casts to a narrower type: chunks of its weight, hidden states of a tile.

    0 if nothing is cast. By hand, V = 100 in one chunk, H = 8, N = 10, float32 under autocast: (100 + 10) x 8 x 2 B.

    Source: `_chunked_logprob` in trl's `chunked_logprob.py`, `.to(compute_dtype)`.
    """
    sizes, block, tokens = element_bytes(spec), block_of(spec), smaller(batch.scored_tokens, TOKEN_CHUNK)
    rows = (block(each * architecture.hidden_size * sizes.compute) for each in (*vocabulary, tokens))
    return where(sizes.autocast_casts, sum(rows), 0)


def loss_bytes(batch: Batch, block: Block = exact) -> Count:
    """Return the bytes of the float32 [rows, C] tensors of the loss."""
    return batch.loss_tensors * block(batch.rows * batch.completion_tokens * FLOAT32_BYTES)


def head_saved(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return what the head keeps from forward until backward.

    Fused: the hidden states of the scored positions, [N, H], their targets, and two float32 statistics per position.
    All logits: what `_kept_logits` says; if the head is trained, its input, [rows x (C + 1), H]; and the copy of its
    weight, if autocast makes one. Scores: the input of their head, [T, H], as all positions are scored and one per row
    is picked (`GenericForSequenceClassification.forward` in transformers' `modeling_layers.py`).

    By hand, full, 1 row, C = 10, V = 100, under autocast: 10 x 100 x 4 B = 4,000 B of logits.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    if architecture.scores:
        return HeadBytes(activations=_all_hidden(block(batch.positions * architecture.hidden_size * sizes.compute)))
    if spec.logprobs.chunked_loss is not None:
        return chunked_saved(spec, architecture, batch)
    if spec.logprobs.makes_all_logits:
        kept = block(batch.rows * (batch.completion_tokens + 1) * architecture.hidden_size * sizes.compute)
        return HeadBytes(
            logits=Term(_kept_logits(spec, all_logits(spec, architecture, batch)) + loss_bytes(batch, block)),
            activations=Term((kept if trains_everything(spec) else 0) + head_copy_bytes(spec, architecture)),
        )
    statistics = _SAVED_STATISTICS * block(batch.scored_tokens * FLOAT32_BYTES)
    return HeadBytes(
        logits=Term(statistics + block(batch.scored_tokens * INT64_BYTES) + loss_bytes(batch, block)),
        activations=Term(block(batch.scored_tokens * architecture.hidden_size * sizes.stream)),
    )


def _kept_logits(spec: TrialKeys, logits: AllLogits) -> Count:
    """Return what log-probabilities keep of all logits until backward.

    The log-softmax of each row, [C, V]. Selective, in float32: the logits that the log-sum-exp reads, [rows, C, V]; if
    divided in place, not at all or for a kernel the tensor of which they are a slice, [rows, C + 1, V]. Of labels: one
    in float32; of preferences at once one log-softmax, or the copy for a kernel or flash-attn's loss. And a tangent.
    """
    if spec.logprobs.label_loss is not None:
        return logits.in_float32 + logits.capped
    kept, selection = logits.rows * logits.row, spec.logprobs.selection
    if spec.logprobs.pair_loss is not None and selection is None:
        kept = logits.scored
    elif selection is not None:
        is_kept = True if selection.by_kernel else logits.is_float32
        kept = where(is_kept, logits.whole if selection.keeps_whole else logits.scored, kept)
    return kept + logits.capped


def all_logits_classes_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the bytes of the tensors of all logits that are as wide as the vocabulary, for reserved memory.

    The sum over sizes of the most tensors of each size, because a block of one size does not fit another. Full: the
    logits of all rows, [rows, C + 1, V], twice in the output type (the stacked gradients and the gradient of their
    slice) and once in the compute type if that is another; the log-softmax of each row, [C, V]. Selective: the same and
    the quotient; divided in place, the copies of a slice and its quotient. Of labels: three in float32
    (`_gradients_of_logits`), the logits if they are narrower, and their copies.

    By hand, 2 rows, C = 10, V = 100, under autocast, full: 2 x 2 x 11 x 100 x 4 + 2 x 11 x 100 x 2 + 2 x 10 x 100 x 4 =
    30,000 B. The tangent that caps logits reads one in the compute type, and keeps another: three in backward. Of
    preferences at once three log-softmaxes or gradients, and the logits of policy and reference.
    """
    logits, selection, labels = all_logits(spec, architecture, batch), spec.logprobs.selection, spec.logprobs.label_loss
    if labels is not None:
        copies = larger(labels.copies_in_entropy, labels.copies_in_accuracy) * copy_bytes(logits)
        return (2 if labels.keeps_copy else 3) * logits.in_float32 + logits.narrow + copies + logits.capped
    found = logits.whole + logits.converted + where(logits.converted > 0, 2, 1) * logits.capped
    if spec.logprobs.pair_loss is not None and selection is None:
        own = found + waiting_logits(spec, architecture, batch)
        return own + (3 if spec.logprobs.pairs.at_once else 1 if spec.logprobs.pairs.widens else 2) * logits.scored
    found = found + logits.whole + logits.rows * logits.row
    if selection is None or selection.by_kernel:  # whose gradient is as large as the log-softmaxes
        return found
    return found + (2 if selection.in_place else 1) * logits.scored


def head_forward_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of the head's forward in addition to what it keeps.

    Fused: one tile, seven float32 statistics per token, the last hidden states, [T, H], and if autocast casts, a cast
    chunk of the head and the hidden states of a tile. Scores: the last hidden states, if another type of them is kept.
    Full: the logits of C + 1 positions of all rows until the log-softmax of the last row, and the copy of a row that is
    cast for it; of preferences at once, of all rows.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    hidden = block(batch.positions * architecture.hidden_size * sizes.stream)
    if architecture.scores:
        return HeadBytes(activations=_all_hidden(where(sizes.stream != sizes.compute, hidden, 0)))
    if spec.logprobs.label_loss is not None:
        return _label_loss_scratch(all_logits(spec, architecture, batch), hidden)
    if spec.logprobs.chunked_loss is not None:
        return HeadBytes(logits=chunked_forward(spec, architecture, batch), activations=_all_hidden(hidden))
    if spec.logprobs.makes_all_logits:
        logits, selection = all_logits(spec, architecture, batch), spec.logprobs.selection
        full = logits.whole + (copy_bytes(logits) if spec.logprobs.pairs.at_once else logits.cast_row)
        full = logits.converted if spec.logprobs.pairs.widens else full
        entropy = entropy_bytes(spec, architecture, batch)
        scratch = full if selection is None else _selective_scratch(selection, logits, entropy)
        return HeadBytes(logits=Term(scratch, logits.words), activations=_all_hidden(hidden))
    statistics = _FORWARD_STATISTICS * block(FLOAT32_BYTES * batch.scored_tokens)
    cast = cast_chunk_bytes(spec, architecture, batch, smaller(architecture.vocab_size, VOCABULARY_CHUNK))
    return HeadBytes(logits=_tile_and(statistics + cast, spec, batch), activations=_all_hidden(hidden))


def _tile_and(others: Count, spec: TrialKeys, batch: Batch) -> Term:
    """Return one tile of logits and smaller tensors."""
    one = tile(batch.scored_tokens, element_bytes(spec).compute, block_of(spec))
    return Term(one.size + others, lambda: f"{one.words()}, ...")


def _all_hidden(size: Count) -> Term:
    return Term(size, lambda: "T x H")


def entropy_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the entropy of a part of the tokens needs. By hand, 4 tokens, V = 100: 3 x 4 x 100 x 4 B.

    It is computed outside of autocast, in the type of the outputs; that of labels of all tokens of a row.
    """
    sizes, selection, labels = element_bytes(spec), spec.logprobs.selection, spec.logprobs.label_loss
    row = batch.completion_tokens if labels is None else batch.width
    tokens = smaller(batch.rows * row, ENTROPY_TOKENS)
    if (selection is not None and selection.entropy_by_row) or (labels is not None and labels.entropy_by_row):
        tokens = row
    return _ENTROPY_TENSORS * block_of(spec)(tokens * architecture.vocab_size * sizes.output)


def _selective_scratch(selection: Selection, logits: AllLogits, entropy: Count) -> Count:
    """Return the peak of selective log-probabilities in forward in addition to what they keep.

    The logits before they are divided, until the quotient is there or the end of forward; the log-sum-exp of a row,
    which makes a copy of it; and the entropy, for which a slice of several rows is copied. For a kernel the product.

    By hand, 2 rows, C = 10, V = 100, in float32, an entropy of 3 x 4,000 B: 12,000 B; kept, 8,800 B more.
    """
    row = where(logits.is_float32, logits.row, 0)
    if selection.by_kernel:
        return logits.converted
    if selection.keeps_whole:
        copied = copy_bytes(logits) + entropy if selection.divides else 0
        return where(
            logits.is_float32,
            larger(logits.converted, larger(copied, row)),
            logits.whole + larger(copied, row),
        )
    quotient = where(logits.is_float32, 0, logits.scored)
    if selection.keeps_outputs:
        return quotient + logits.whole + larger(entropy, row)
    return larger(logits.whole, quotient + larger(entropy, row))


def _label_loss_scratch(logits: AllLogits, hidden: Count) -> HeadBytes:
    """Return the peak of a loss of labels in the model's forward in addition to the log-softmax that it keeps.

    The logits with their float32 copy, which becomes that of the outputs under autocast, or one that stays, and hidden
    states (`ForCausalLMLoss` of transformers). By hand, 2 rows of 11 tokens, V = 100: 2 x 11 x 100 x (2 + 4) B.
    """
    size = where(logits.narrow > 0, logits.narrow + logits.in_float32, logits.whole)
    return HeadBytes(logits=Term(size, logits.words), activations=_all_hidden(hidden))


def logging_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term | None:
    """Return what is there, with what the head keeps, while trl logs a loss of labels; None for another loss.

    The outputs, and what `SFTTrainer.compute_loss` makes of them for entropy and accuracy, after autocast. By hand, as
    above, with one copy and no entropy: 8,800 + 8,000 B. Of preferences see `_logged_pairs`.
    """
    labels = spec.logprobs.label_loss
    if spec.logprobs.pairs.by_kernel:
        return _logged_pairs(spec, architecture, batch)
    if labels is None:
        return None
    logits = all_logits(spec, architecture, batch)
    copy, entropy = copy_bytes(logits), entropy_bytes(spec, architecture, batch) if labels.has_entropy else 0
    made = larger(labels.copies_in_entropy * copy + entropy, labels.copies_in_accuracy * copy)
    return Term(logits.whole + made, logits.words)


def _logged_pairs(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return what is there, with what the head keeps, while trl 1.9 logs a loss of preferences.

    The policy's logits and the reference's, unless they were scored before training; of DPO a copy of the chosen
    completions; of KTO a copy of all rows, and of those of their completions that are good, at most of all. The kernel
    of the entropy copies nothing.

    By hand, 2 rows of 11 tokens, V = 100, completions of 6: DPO 2 x 8,800 + 2,400 B; KTO 2 x 8,800 + 8,000 + 4,800 B.
    """
    logits = all_logits(spec, architecture, batch)
    of_reference: Count = 0 if spec.precompute_ref_log_probs else logits.whole
    made = good_completions_bytes(spec, architecture, batch)
    if spec.recipe.facts.has_shifted_rows:
        made = logits.scored + made
    return Term(of_reference + waiting_logits(spec, architecture, batch) + made, logits.words)


def good_completions_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the logits of the completions of good rows, which trl 1.9 selects: a half of pairs, else at most all."""
    completion = batch.width - spec.max_prompt_length
    rows = batch.rows if spec.recipe.facts.rows_are_single else batch.rows // 2
    return block_of(spec)(rows * completion * architecture.vocab_size * element_bytes(spec).output)


def head_backward_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    """Return the peak of the head's backward in addition to what forward kept.

    All logits: `_gradients_of_logits`. Scores: the gradient of its input, also in the type of the stream.
    Fused: one tile; float32 gradients of the hidden states, [N, H], and of a trained head, [V, H], and both also in
    their own types when they are returned, if these are not float32. If autocast casts the weights, two cast chunks of
    the head, because the next chunk is cast before the last is freed; when gradients are returned only the last chunk
    is left, so the peak is at one instant or the other.

    By hand, fused, N = 10, H = 8, V = 100, bfloat16, trained: 480 B, 100 x 8 x 6 = 4,800 B, and the tile.
    """
    sizes, hidden, vocabulary = element_bytes(spec), architecture.hidden_size, architecture.vocab_size
    trained, block = trains_everything(spec), block_of(spec)
    if architecture.scores:
        cast = where(sizes.stream != sizes.compute, block(batch.positions * hidden * sizes.stream), 0)
        return HeadBytes(activations=_all_hidden(block(batch.positions * hidden * sizes.compute) + cast))
    if spec.logprobs.chunked_loss is not None:
        return chunked_backward(spec, architecture, batch)
    if spec.logprobs.makes_all_logits:
        logits = all_logits(spec, architecture, batch)
        return HeadBytes(logits=Term(_gradients_of_logits(spec, logits), logits.words))
    values = batch.scored_tokens * hidden
    weights = vocabulary * hidden if trained else 0
    made = block(values * FLOAT32_BYTES)
    returned = where(sizes.stream < FLOAT32_BYTES, block(values * sizes.stream), 0)
    weights_made = block(weights * FLOAT32_BYTES)
    weights_returned = where(sizes.weight < FLOAT32_BYTES, block(weights * sizes.weight), 0)
    chunk = smaller(vocabulary, VOCABULARY_CHUNK)
    again = both(batch.scored_tokens > TOKEN_CHUNK, vocabulary <= VOCABULARY_CHUNK)
    following = where(again, chunk, smaller(vocabulary - chunk, VOCABULARY_CHUNK))
    in_loop = cast_chunk_bytes(spec, architecture, batch, chunk, following)
    last = cast_chunk_bytes(spec, architecture, batch, (vocabulary - 1) % VOCABULARY_CHUNK + 1)
    at_end = last + returned + weights_returned >= in_loop
    return HeadBytes(
        logits=_tile_and(where(at_end, last, in_loop), spec, batch),
        activations=Term(made + where(at_end, returned, 0), lambda: "N x H gradients"),
        gradients=Term(
            weights_made + where(at_end, weights_returned, 0), lambda: f"head in float32 and {sizes.weight} B"
        ),
    )


def _gradients_of_logits(spec: TrialKeys, logits: AllLogits) -> Count:
    """Return the peak of the gradients of all logits in addition to what forward kept.

    Full: the gradients of the logits of each row replace the log-softmax of that row; then all are stacked, which
    doubles them. For a single row, the gradients of gather and of log-softmax are there at the same time. Then the
    gradient in the compute type, and that of a trained head. Selective, in float32: the gradients of the log-sum-exp of
    the rows, of which each takes three tensors of its row while it is made; then these and their stack; then the stack
    and the gradient of gather. Divided in place: what forward kept is gone, and there are the gradient of the logits, a
    copy of it, a copy of its slice and the quotient of that (`CopySlices` in torch's `autograd/functions/tensor.cpp`).
    By a kernel (`_LogProbEntropyFunction` in `trl/kernels/logprob_entropy.py` of trl 1.14) one gradient of the scored.
    Of labels: the gradients of the negative log-likelihood and of the log-softmax, both in float32; with flash-attn's
    loss one, in float32 and in the type of the outputs. Of preferences at once those of gather and of the log-softmax;
    of a kernel, that of its copy and then of all logits; of flash-attn's loss one as large as its copy.

    By hand, 2 rows, C = 10, V = 100, in float32: 2 x 8,000 B; 1 row: 3 x 4,000 B. In place: 24,800 B over 8,800 B kept.
    """
    if (labels := spec.logprobs.label_loss) is not None:
        return logits.in_float32 + (logits.narrow if labels.keeps_copy else logits.in_float32)
    if spec.logprobs.pairs.at_once:
        return 2 * logits.scored
    if spec.logprobs.pairs.by_kernel:
        return logits.whole
    selection = spec.logprobs.selection
    # Gradients in a narrower type than the log-softmax fit into what it frees, row by row; flash-attn's are of all.
    by_row = where(logits.cast_row > 0, 2, larger(logits.rows, 2)) * logits.row
    if selection is None:
        return by_row
    if selection.by_kernel:
        return logits.scored
    made = where(logits.is_float32, larger(2 * logits.scored, (logits.rows + 2) * logits.row), by_row)
    in_place = 2 * (logits.whole + logits.scored) + logits.capped - _kept_logits(spec, logits)
    return larger(made, in_place) if selection.in_place else made


def score_scratch(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, in_model: bool = False) -> HeadBytes:
    """Return the peak of log-probabilities without gradient; of all logits with `in_model` that of the model alone.

    Fused: as in the forward of training, and the compacted hidden states. All logits: those in the compute type with
    the copy of the head (that of a trained float32 head is in autocast's cache); or, if types differ, in both types; or
    in the output type with what scores them, with `logprobs=full` the log-softmax of one row; of preferences at once
    the copy of their slice and the log-softmax; of labels two in float32 in the model, and after it what trl logs.

    By hand, `nll`, 2 rows of 11 tokens, V = 100, under autocast: 4,400 + 2 x 8,800 B.
    """
    if not spec.logprobs.makes_all_logits:
        scratch = head_forward_scratch(spec, architecture, batch)
        compact = head_saved(spec, architecture, batch).activations
        return HeadBytes(
            logits=scratch.logits,
            activations=Term(scratch.activations.size + compact.size, lambda: "T x H and the scored N x H"),
        )
    sizes, block = element_bytes(spec), block_of(spec)
    logits, selection = all_logits(spec, architecture, batch), spec.logprobs.selection
    values = batch.rows * (batch.completion_tokens + 1) * architecture.vocab_size
    hidden = block(batch.positions * architecture.hidden_size * sizes.stream)
    copied = where(both(trains_everything(spec), sizes.caches_head), 0, head_copy_bytes(spec, architecture))
    product = block(values * sizes.compute) + copied
    made = larger(logits.whole + logits.converted, larger(product, 2 * logits.capped))
    scored = logits.whole + logits.row + logits.cast_row
    pairs = spec.logprobs.pairs
    if pairs.at_once or pairs.by_kernel:
        scored = logits.whole + copy_bytes(logits) + (logits.scored if pairs.at_once else 0)
    elif pairs.widens:  # The model ends with its own type.
        made, scored = larger(product, 2 * logits.capped), made
    elif (logged := logging_scratch(spec, architecture, batch)) is not None:
        made, scored = larger(product, logits.narrow + 2 * logits.in_float32), logged.size
        hidden = hidden if in_model else 0
    elif selection is not None:
        scored = _selected_scratch(selection, logits)
    size = made if in_model else larger(made, scored)
    return HeadBytes(logits=Term(size, logits.words), activations=_all_hidden(hidden))


def _selected_scratch(selection: Selection, logits: AllLogits) -> Count:
    """Return the peak of selective log-probabilities without gradient.

    The logits and their quotient, of which the first may be gone when rows are scored: by a copy of a row in float32,
    else by the log-softmax of a row, which stays until the next row has its own.
    """
    row = where(logits.is_float32, logits.row, smaller(logits.rows, 2) * logits.row)
    if selection.by_kernel:
        return logits.whole
    if selection.keeps_whole:
        return logits.whole + row
    if selection.keeps_outputs:
        return logits.whole + logits.scored + row
    return logits.scored + larger(logits.whole, row)
