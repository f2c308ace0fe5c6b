"""The instants of one micro-batch's forward and backward."""

from profiler.analytical.formulas.batch import Batch, longest_rows, micro_batch, one_row, unpadded
from profiler.analytical.formulas.decoder_layer import (
    attention_backward_bytes,
    down_forward_bytes,
    first_layer_unsaved_bytes,
    layer_input_bytes,
    layer_saved_bytes,
    layer_without_gradient_bytes,
    mlp_backward_bytes,
    norm_backward_bytes,
    norm_saved_bytes,
    remaking_bytes,
)
from profiler.analytical.formulas.head import head_backward_scratch, head_forward_scratch, head_saved
from profiler.analytical.formulas.quantities import Count, Truth, both, either, larger, where
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.trained import element_bytes, gradient_bytes, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.weights import autocast_forward_bytes, autocast_weight_copy_bytes
from profiler.analytical.timeline.instants import Bytes, Instant, Moment, added, head_categories, times
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Attention, Logprobs

_PHASES = {Moment.FORWARD_LAYER: Phase.FORWARD, Moment.FORWARD_HEAD: Phase.FORWARD}
"""Every other moment here is in backward."""


def training_instants(spec: TrialKeys, architecture: DecoderShape, held: Bytes) -> tuple[Instant, ...]:
    """Forward's last layer and its end; backward's beginning at the head, the final norm, the last layer, and its end.

    `minibatch` never holds more than one row. A row that is alone, there or in a micro-batch of one, is padded in one
    micro-batch and the longest in another, where attention needs no mask: either may be the heavier. `held` is what
    stands.
    """
    whole = micro_batch(spec)
    accumulated = _accumulated(spec, architecture)
    if spec.logprobs is Logprobs.SLICED:
        return _row_by_row(spec, architecture, whole, held=held, accumulated=accumulated)
    batch, alone = (one_row(whole), True) if spec.logprobs is Logprobs.MINIBATCH else (whole, whole.rows == 1)
    padded = _pass(spec, architecture, batch, held=held, earlier={}, gradients=accumulated)
    happens = both(alone, whole.has_mask)
    return padded + _pass(
        spec, architecture, unpadded(batch), held=held, earlier={}, gradients=accumulated, happens=happens
    )


def _row_by_row(
    spec: TrialKeys, architecture: DecoderShape, whole: Batch, *, held: Bytes, accumulated: Count
) -> tuple[Instant, ...]:
    """The instants of `sliced`, which holds the activations of all rows and goes back row by row.

    From the second row on, the gradients of the rows before wait in autograd's buffers until the last row brings its
    own, because every parameter is used once a row. Of the rows that are held one is the longest, as some micro-batch
    has it, and the others are average.
    """
    padded = one_row(whole)
    longest = unpadded(padded)
    padded_saved, longest_saved = (_row_saved(spec, architecture, row) for row in (padded, longest))
    found: tuple[Instant, ...] = ()
    for gone in (0, 1):
        left = larger(whole.rows - 1 - gone, 0)
        gradients = accumulated + gone * gradient_bytes(spec, architecture)
        for row, others in ((padded, larger(left - 1, 0)), (longest, left)):
            masked = where(whole.has_mask, others - longest_rows(spec, others), 0)
            earlier = added(times(masked, padded_saved), times(left - masked, longest_saved))
            happens = both(whole.rows > gone, either(row is padded, whole.has_mask))
            moments = _pass(spec, architecture, row, held=held, earlier=earlier, gradients=gradients, happens=happens)
            # All rows go forward before the first goes back.
            found += tuple(instant for instant in moments if not gone or instant.phase is Phase.BACKWARD)
    return found


def _row_saved(spec: TrialKeys, architecture: DecoderShape, row: Batch) -> Bytes:
    """What a row that has gone forward keeps until it goes back."""
    # Autocast begins anew for each row, so rows whose layers are saved have saved their own copies of the weights.
    own_casts = 0 if spec.gradient_checkpointing else autocast_weight_copy_bytes(spec, architecture)
    return added(
        head_categories(head_saved(spec, architecture, row)),
        {Category.ACTIVATIONS: stack_saved_bytes(spec, architecture, row) + own_casts},
        {Category.ACTIVATIONS: norm_saved_bytes(spec, row.positions, architecture.hidden_size)},
    )


def _accumulated(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Bytes of gradients that stand when the heaviest backward begins: those of the micro-batches before."""
    backwards = spec.gradient_accumulation_steps
    if spec.logprobs is Logprobs.MINIBATCH:
        backwards = backwards * spec.per_device_train_batch_size
    return where(backwards > 1, gradient_bytes(spec, architecture), 0)


def stack_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """What all decoder layers keep from forward to backward: everything, or with checkpointing their inputs.

    By hand, with checkpointing: 24 layers x T x 896 x 2 B for qwen2.5-0.5b in bfloat16.
    """
    if spec.gradient_checkpointing:
        return architecture.num_hidden_layers * layer_input_bytes(spec, architecture, batch)
    saved = architecture.num_hidden_layers * layer_saved_bytes(spec, architecture, batch)
    return saved - first_layer_unsaved_bytes(spec, architecture, batch)


def attention_mask_bytes(spec: TrialKeys, batch: Batch) -> Count:
    """The mask that all layers share, [rows, 1, L, L]: boolean where there is one; eager always has one to add.

    Eager attention's is in the weights' type, causal even where nothing is padding.

    Checkpointing keeps it until backward; without it backward has one mask too many here, a fraction of a percent. By
    hand, 4 rows of 1,042: 4 x 1,042 x 1,042 = 4,343,056 B.
    """
    block, size = block_of(spec), batch.rows * batch.width * batch.width
    if spec.attn_implementation is Attention.EAGER:
        return block(size * element_bytes(spec).weight)
    return where(batch.has_mask, block(size), 0)


def _pass(
    spec: TrialKeys,
    architecture: DecoderShape,
    batch: Batch,
    *,
    held: Bytes,
    earlier: Bytes,
    gradients: Count,
    happens: Truth = True,
) -> tuple[Instant, ...]:
    """The instants of one forward and backward of `batch`; `earlier` is what rows before it keep."""
    final_norm: Bytes = {Category.ACTIVATIONS: norm_saved_bytes(spec, batch.positions, architecture.hidden_size)}
    kept = head_categories(head_saved(spec, architecture, batch))
    casts = autocast_weight_copy_bytes(spec, architecture)
    stack = stack_saved_bytes(spec, architecture, batch)
    until_the_end = added(held, earlier)
    until_the_first = added(until_the_end, {Category.INPUTS: attention_mask_bytes(spec, batch)})
    layers = added(until_the_first, {Category.GRADIENTS: gradients, Category.ACTIVATIONS: casts + stack})
    saved = added(layers, kept, final_norm)
    more_casts: Bytes = {Category.ACTIVATIONS: autocast_forward_bytes(spec, architecture) - casts}
    layer_forward: Bytes = {Category.ACTIVATIONS: _layer_forward(spec, architecture, batch)}
    layer_backward = _layer_backward(spec, architecture, batch)
    scratch = head_categories(head_forward_scratch(spec, architecture, batch))
    tied: Bytes = {Category.GRADIENTS: _head_gradient_waiting(spec, architecture)}
    norm: Bytes = {Category.ACTIVATIONS: norm_backward_bytes(spec, architecture, batch)}
    in_backward = added(layers, tied)
    found = {
        Moment.FORWARD_LAYER: added(layers, more_casts, layer_forward),
        Moment.FORWARD_HEAD: added(saved, more_casts, scratch),
        Moment.BACKWARD_HEAD: added(saved, head_categories(head_backward_scratch(spec, architecture, batch))),
        Moment.BACKWARD_NORM: added(in_backward, norm, final_norm),
        Moment.BACKWARD_LAYER: added(in_backward, {Category.ACTIVATIONS: layer_backward}),
        Moment.BACKWARD_FIRST_LAYER: added(
            until_the_first, _first_layer(spec, architecture, stack, layer_backward, gradients)
        ),
        Moment.BACKWARD_END: added(
            until_the_end, {Category.GRADIENTS: _gradients_at_the_end(spec, architecture, gradients)}
        ),
    }
    return tuple(
        Instant(phase=_PHASES.get(moment, Phase.BACKWARD), moment=moment, sizes=sizes, happens=happens)
        for moment, sizes in found.items()
    )


def _layer_forward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """The last decoder layer's forward above what the stack keeps; checkpointing drops what it saves at once."""
    if spec.gradient_checkpointing:
        return layer_without_gradient_bytes(spec, architecture, batch, adapted=True, autocast=spec.bf16)
    return down_forward_bytes(spec, architecture, batch)


def _layer_backward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """The last decoder layer's backward above what the stack keeps; checkpointing makes the layer anew first."""
    mlp = mlp_backward_bytes(spec, architecture, batch)
    backward = larger(mlp, attention_backward_bytes(spec, architecture, batch))
    if not spec.gradient_checkpointing:
        return backward
    remade = layer_saved_bytes(spec, architecture, batch)
    return remade + larger(backward, remaking_bytes(spec, architecture, batch))


def _embedding_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    if not trains_everything(spec):
        return 0
    return block_of(spec)(architecture.vocab_size * architecture.hidden_size * element_bytes(spec).weight)


def _head_gradient_waiting(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """The gradient of a tied head: autograd holds it through the whole backward, until the embedding adds its own."""
    return where(architecture.tie_word_embeddings, _embedding_bytes(spec, architecture), 0)


def _first_layer(
    spec: TrialKeys, architecture: DecoderShape, stack: Count, layer_backward: Count, gradients: Count
) -> Bytes:
    """The backward of the layer next to the embeddings: nothing is left of the others but their gradients.

    Where no micro-batch came before, gradients grow while activations shrink, so the peak is at one end or the other.
    """
    layers = architecture.num_hidden_layers
    embedding, waiting = _embedding_bytes(spec, architecture), _head_gradient_waiting(spec, architecture)
    made = gradient_bytes(spec, architecture) - embedding
    one_layer = (made - (embedding - waiting)) // layers
    return {
        Category.ACTIVATIONS: stack // layers + layer_backward,
        Category.GRADIENTS: larger(gradients, made - one_layer) + waiting,
    }


def _gradients_at_the_end(spec: TrialKeys, architecture: DecoderShape, gradients: Count) -> Count:
    """Gradients when the embedding has gone back.

    All of them, the embedding's fresh and dense beside one that stands already, and a tied head's waiting for it.
    Autograd adds the fresh one into the waiting one, in place; but not with `logprobs=full` if no cast stands between:
    then what waits is a transposed view of a product, and the sum is a third.
    """
    fresh = where(gradients > 0, _embedding_bytes(spec, architecture), 0)
    waiting = _head_gradient_waiting(spec, architecture)
    summed: Count = 0
    if spec.logprobs is Logprobs.FULL:
        summed = where(element_bytes(spec).autocast_casts, 0, waiting)
    return larger(gradients, gradient_bytes(spec, architecture)) + fresh + waiting + summed
