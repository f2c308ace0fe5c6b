"""The instants of one micro-batch's forward and backward."""

from profiler.analytical.batch import Batch, micro_batch, one_row
from profiler.analytical.decoder_layer import (
    down_forward_bytes,
    layer_input_bytes,
    layer_saved_bytes,
    layer_without_gradient_bytes,
    mlp_backward_bytes,
    norm_backward_bytes,
    norm_saved_bytes,
    remaking_bytes,
)
from profiler.analytical.head import head_backward_scratch, head_forward_scratch, head_saved
from profiler.analytical.instants import Bytes, Instant, added, head_categories, standing
from profiler.analytical.trained import element_bytes, gradient_bytes, trains_everything
from profiler.analytical.weights import autocast_cache_bytes, autocast_weight_copy_bytes
from profiler.domain.architecture import Architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Logprobs, TrialSpec


def training_instants(spec: TrialSpec, architecture: Architecture) -> tuple[Instant, ...]:
    """Forward's last layer and its end; backward's beginning at the head, the final norm, the last layer, and its end.

    `sliced` holds the activations of all rows and goes back row by row; from the second row on, the gradients of the
    rows before wait in autograd's buffers until the last row brings its own, because every parameter is used once a
    row. `minibatch` never holds more than one row.
    """
    whole = micro_batch(spec)
    single = one_row(whole)
    if spec.logprobs is Logprobs.MINIBATCH:
        return _pass(spec, architecture, single, rows_before=0, gradients=_accumulated(spec, architecture))
    if spec.logprobs is not Logprobs.SLICED or whole.rows == 1:
        return _pass(spec, architecture, whole, rows_before=0, gradients=_accumulated(spec, architecture))
    accumulated = _accumulated(spec, architecture)
    first = _pass(spec, architecture, single, rows_before=whole.rows - 1, gradients=accumulated)
    waiting = accumulated + gradient_bytes(spec, architecture)
    second = _pass(spec, architecture, single, rows_before=whole.rows - 2, gradients=waiting)
    return first + second


def _accumulated(spec: TrialSpec, architecture: Architecture) -> int:
    """Bytes of gradients that stand when the heaviest backward begins: those of the micro-batches before."""
    backwards = spec.gradient_accumulation_steps
    if spec.logprobs is Logprobs.MINIBATCH:
        backwards *= spec.per_device_train_batch_size
    return gradient_bytes(spec, architecture) if backwards > 1 else 0


def stack_saved_bytes(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """What all decoder layers keep from forward to backward: everything, or with checkpointing their inputs.

    By hand, with checkpointing: 24 layers x T x 896 x 2 B for qwen2.5-0.5b in bfloat16.
    """
    one = layer_input_bytes if spec.gradient_checkpointing else layer_saved_bytes
    return architecture.num_hidden_layers * one(spec, architecture, batch)


def attention_mask_bytes(batch: Batch) -> int:
    """The boolean mask that all layers share, [rows, 1, L, L], where there is one.

    Checkpointing keeps it until backward; without it backward has one mask too many here, a fraction of a percent. By
    hand, 4 rows of 1,042: 4 x 1,042 x 1,042 = 4,343,056 B.
    """
    return batch.rows * batch.width * batch.width if batch.has_mask else 0


def _pass(
    spec: TrialSpec, architecture: Architecture, batch: Batch, *, rows_before: int, gradients: int
) -> tuple[Instant, ...]:
    """The instants of one forward and backward of `batch`, with `rows_before` equal rows already forwarded."""
    final_norm = norm_saved_bytes(spec, batch.positions, architecture.hidden_size)
    kept = head_categories(head_saved(spec, architecture, batch))
    casts = autocast_weight_copy_bytes(spec, architecture)
    stack = stack_saved_bytes(spec, architecture, batch)
    earlier = added(*([kept, {Category.ACTIVATIONS: stack + final_norm}] * rows_before))
    mask = {Category.INPUTS: attention_mask_bytes(batch)}
    held = added(standing(spec, architecture), earlier, mask, {Category.GRADIENTS: gradients})
    layers: Bytes = {Category.ACTIVATIONS: casts + stack}
    saved = added(held, layers, kept, {Category.ACTIVATIONS: final_norm})
    norm = norm_backward_bytes(architecture, batch)
    more_casts: Bytes = {Category.ACTIVATIONS: autocast_cache_bytes(spec, architecture) - casts}
    in_layer = added(held, layers, more_casts, {Category.ACTIVATIONS: _layer_forward(spec, architecture, batch)})
    forward = added(saved, more_casts, head_categories(head_forward_scratch(spec, architecture, batch)))
    at_head = added(saved, head_categories(head_backward_scratch(spec, architecture, batch)))
    tied = {Category.GRADIENTS: _head_gradient_waiting(spec, architecture)}
    at_norm = added(held, layers, tied, {Category.ACTIVATIONS: norm + final_norm})
    at_layer = added(held, layers, tied, {Category.ACTIVATIONS: _layer_backward(spec, architecture, batch)})
    return (
        Instant(phase=Phase.FORWARD, sizes=in_layer),
        Instant(phase=Phase.FORWARD, sizes=forward),
        Instant(phase=Phase.BACKWARD, sizes=at_head),
        Instant(phase=Phase.BACKWARD, sizes=at_norm),
        Instant(phase=Phase.BACKWARD, sizes=at_layer),
        _first_layer(spec, architecture, batch, added(standing(spec, architecture), earlier, mask), gradients),
        _end_of_backward(spec, architecture, added(standing(spec, architecture), earlier), gradients),
    )


def _layer_forward(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """The last decoder layer's forward above what the stack keeps; checkpointing drops what it saves at once."""
    if spec.gradient_checkpointing:
        return layer_without_gradient_bytes(spec, architecture, batch, adapted=True, autocast=spec.bf16)
    return down_forward_bytes(spec, architecture, batch)


def _layer_backward(spec: TrialSpec, architecture: Architecture, batch: Batch) -> int:
    """The last decoder layer's backward above what the stack keeps; checkpointing makes the layer anew first."""
    backward = mlp_backward_bytes(spec, architecture, batch)
    if not spec.gradient_checkpointing:
        return backward
    remade = layer_saved_bytes(spec, architecture, batch)
    return remade + max(backward, remaking_bytes(spec, architecture, batch))


def _embedding_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    if not trains_everything(spec):
        return 0
    return architecture.vocab_size * architecture.hidden_size * element_bytes(spec).weight


def _head_gradient_waiting(spec: TrialSpec, architecture: Architecture) -> int:
    """The gradient of a tied head: autograd holds it through the whole backward, until the embedding adds its own."""
    return _embedding_bytes(spec, architecture) if architecture.tie_word_embeddings else 0


def _first_layer(spec: TrialSpec, architecture: Architecture, batch: Batch, held: Bytes, gradients: int) -> Instant:
    """The backward of the layer next to the embeddings: nothing is left of the others but their gradients.

    Where no micro-batch came before, gradients grow while activations shrink, so the peak is at one end or the other.
    """
    layers = architecture.num_hidden_layers
    embedding, waiting = _embedding_bytes(spec, architecture), _head_gradient_waiting(spec, architecture)
    made = gradient_bytes(spec, architecture) - embedding
    one_layer = (made - (embedding - waiting)) // layers
    activations = stack_saved_bytes(spec, architecture, batch) // layers + _layer_backward(spec, architecture, batch)
    return Instant(
        phase=Phase.BACKWARD,
        sizes=added(
            held,
            {
                Category.ACTIVATIONS: activations,
                Category.GRADIENTS: max(gradients, made - one_layer) + waiting,
            },
        ),
    )


def _end_of_backward(spec: TrialSpec, architecture: Architecture, held: Bytes, gradients: int) -> Instant:
    """The embedding's backward: all gradients, the embedding's dense one fresh, and a tied head's waiting for it."""
    fresh = _embedding_bytes(spec, architecture) if gradients else 0
    waiting = _head_gradient_waiting(spec, architecture)
    total = max(gradients, gradient_bytes(spec, architecture)) + fresh + waiting
    return Instant(phase=Phase.BACKWARD, sizes=added(held, {Category.GRADIENTS: total}))
