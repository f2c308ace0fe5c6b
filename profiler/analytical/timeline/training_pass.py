"""Instants of forward and backward of one micro-batch."""

from collections.abc import Sequence
from functools import partial

from profiler.analytical.formulas.head import (
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    logging_scratch,
)
from profiler.analytical.formulas.layers.decoder_layer import (
    first_layer_unsaved_bytes,
    layer_input_bytes,
    layer_saved_bytes,
)
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.layers.layer_backward import layer_backward_bytes, layer_forward_bytes, norm_backward
from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes
from profiler.analytical.formulas.models import trained
from profiler.analytical.formulas.models.parameters import adapted_projections, layers_of
from profiler.analytical.formulas.models.trained import (
    all_logits,
    element_bytes,
    layer_gradients_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import autocast_more_bytes, autocast_saved_bytes, ends_autocast
from profiler.analytical.formulas.sizes.quantities import (
    Count,
    Flag,
    Term,
    Terms,
    added,
    both,
    either,
    larger,
    smaller,
    times,
    where,
)
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    by_begin,
    by_end,
    layer_kinds,
    longest_rows,
    one_row,
    unpadded,
    without_last,
)
from profiler.analytical.formulas.tower import tower_gradient_bytes
from profiler.analytical.timeline.instants import (
    NO_ROWS,
    EarlierRows,
    Gradients,
    Instant,
    InstantName,
    embedding_bytes,
    head_categories,
)
from profiler.analytical.timeline.tower_instants import (
    embedded_inputs,
    held_in_forward,
    inputs_backward,
    inputs_embedding_bytes,
    inputs_gradient,
    inputs_kept,
    kept_by_tower,
    tower_backward,
    tower_forward,
)
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import DistributedType, Logprobs

_PHASES = {InstantName.GATHERING: Phase.FORWARD} | dict.fromkeys(
    (InstantName.FORWARD_TOWER, InstantName.FORWARD_LAYER, InstantName.FORWARD_HEAD, InstantName.LOGGING), Phase.FORWARD
)
"""Every other instant of this module is in backward."""


def training_instants(
    spec: TrialKeys, architecture: DecoderShape, persistent: Terms, whole: Batch
) -> tuple[Instant, ...]:
    """Return the instants of training: the end of forward; backward of head, final norm, layers and embedding.

    `minibatch` processes one row at a time. A single row, there or in a micro-batch of one, is padded at one time, and
    the longest row, which needs no attention mask, at another. Either may need more memory, so both are here.

    Args:
        spec: The trial.
        architecture: Its model.
        persistent: The memory that is present throughout training.
        whole: A micro-batch.
    """
    gradients = Gradients.of(spec, architecture)
    if spec.logprobs is Logprobs.SLICED:
        return _row_by_row(spec, architecture, whole, persistent=persistent, gradients=gradients)
    batch, alone = (one_row(whole), True) if spec.logprobs is Logprobs.MINIBATCH else (whole, whole.rows == 1)
    padded = _pass(spec, architecture, batch, persistent=persistent, gradients=gradients)
    happens = both(alone, whole.has_mask)
    return padded + _pass(
        spec, architecture, unpadded(batch), persistent=persistent, gradients=gradients, happens=happens
    )


def _row_by_row(
    spec: TrialKeys, architecture: DecoderShape, whole: Batch, *, persistent: Terms, gradients: Gradients
) -> tuple[Instant, ...]:
    """Return the instants of `sliced`, which keeps the activations of all rows and runs backward row by row.

    From the second row on, autograd buffers the gradients of the earlier rows until backward of the last row, because
    every parameter is used once per row. One row is the longest, as in the heaviest micro-batch; others are average.
    """
    padded = one_row(whole)
    longest = unpadded(padded)
    padded_saved, longest_saved = (_row_saved(spec, architecture, row) for row in (padded, longest))
    found: tuple[Instant, ...] = ()
    for done in (0, 1):
        left = larger(whole.rows - 1 - done, 0)
        there = gradients.after_a_row() if done else gradients
        for row, others in ((padded, larger(left - 1, 0)), (longest, left)):
            masked = where(whole.has_mask, others - longest_rows(spec, others), 0)
            saved = added(times(masked, padded_saved), times(left - masked, longest_saved))
            happens = both(whole.rows > done, either(row is padded, whole.has_mask))
            instants = _pass(
                spec,
                architecture,
                row,
                persistent=persistent,
                earlier=EarlierRows(rows=left, saved=saved),
                gradients=there,
                happens=happens,
            )
            # Forward of all rows comes before backward of the first.
            found += tuple(instant for instant in instants if not done or instant.phase is Phase.BACKWARD)
    return found


def _row_saved(spec: TrialKeys, architecture: DecoderShape, row: Batch) -> Terms:
    """Return what a row keeps from its forward until its backward."""
    # Each row has an autocast context of its own, so rows whose layers are saved keep their own copies of the weights.
    return added(
        head_categories(head_saved(spec, architecture, row)),
        {Category.ACTIVATIONS: Term(stack(spec, architecture, row).size)},
        {Category.ACTIVATIONS: final_norm(spec, architecture, row)},
    )


def final_norm(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return what the norm after the last layer saves."""
    in_float32 = layers_of(architecture).has_float32_norms
    return Term(trained.norm_saved_bytes(spec, batch.positions, architecture.hidden_size, in_float32=in_float32))


def stack_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what all decoder layers keep from forward to backward: everything, or with checkpointing their inputs.

    By hand, with checkpointing: 24 layers x T x 896 x 2 B for qwen2.5-0.5b in bfloat16.
    """
    if spec.gradient_checkpointing:
        # The input of the first layer has the type of the embedding.
        hidden = batch.positions * architecture.hidden_size
        first = block_of(spec)(hidden * element_bytes(spec).outer)
        if layers_of(architecture).scales_stream and not trains_everything(spec):
            # Embeddings that are multiplied are kept too: frozen ones get a gradient of their own
            # (`enable_input_require_grads` in transformers).
            first = 2 * first
        return (architecture.num_hidden_layers - 1) * layer_input_bytes(spec, architecture, batch) + first
    kinds = layer_kinds(architecture)
    saved = sum(kind.num_hidden_layers * layer_saved_bytes(spec, kind, batch) for kind in kinds)
    return saved - unsaved_bytes(spec, kinds, batch)


def unsaved_bytes(spec: TrialKeys, kinds: Sequence[DecoderShape], batch: Batch) -> Count:
    """Return what the layers before the first adapter, and its own, do not save."""
    first = next((kind for kind in kinds if kind.linear is not None), kinds[0])
    if first.linear is None or _saves_in_each_layer(spec, first):
        return first_layer_unsaved_bytes(spec, first, batch)
    before = smaller(first.num_hidden_layers, first.linear.interval - 1)
    unsaved = before * layer_saved_bytes(spec, first, batch)
    return unsaved + sum(first_layer_unsaved_bytes(spec, kind, batch) for kind in kinds if kind is not first)


def _saves_in_each_layer(spec: TrialKeys, kind: DecoderShape) -> bool:
    """Return whether each layer of a kind trains something, so that backward reaches all of them."""
    return trains_everything(spec) or bool(adapted_projections(kind, spec.lora_target_modules or ()))


def stack(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, waiting_rows: Count = 0) -> Term:
    """Return what all decoder layers keep, with copies of weights, in words that are also those of earlier rows.

    Args:
        spec: The trial.
        architecture: Its model.
        batch: The rows that are computed.
        waiting_rows: Rows whose own backward waits, and which others count.
    """

    def words() -> str:
        kept = "inputs" if spec.gradient_checkpointing else "layers"
        tokens = batch.positions + waiting_rows * batch.width
        return f"{architecture.num_hidden_layers} {kept} of {tokens} tokens"

    return Term(stack_saved_bytes(spec, architecture, batch) + autocast_saved_bytes(spec, architecture), words)


def _pass(
    spec: TrialKeys,
    architecture: DecoderShape,
    batch: Batch,
    *,
    persistent: Terms,
    earlier: EarlierRows = NO_ROWS,
    gradients: Gradients,
    happens: Flag = True,
) -> tuple[Instant, ...]:
    """Return the instants of one forward and backward of `batch`; none if it never happens."""
    if happens is False:
        return ()
    of_norm: Terms = {Category.ACTIVATIONS: final_norm(spec, architecture, batch)}
    kept = head_categories(head_saved(spec, architecture, batch))
    inputs = stack(spec, architecture, batch, waiting_rows=earlier.rows)
    # The stack counts the tokens of earlier rows.
    until_the_end = added(persistent, earlier.named("rows that wait", Category.LOGITS))
    until_the_first = until_the_first_layer(spec, architecture, batch)
    layers = added(
        until_the_end, until_the_first, {Category.GRADIENTS: gradients.earlier, Category.ACTIVATIONS: inputs}
    )
    saved = dict(added(layers, kept, of_norm))
    # The head names what is there with it.
    saved[Category.LOGITS] = Term(saved[Category.LOGITS].size)
    in_layer, at_head = (Term(autocast_more_bytes(spec, architecture, in_layer=there)) for there in (True, False))
    last_layer, waiting = layer_backward(spec, architecture, batch), gradients.of_tied_head(spec, architecture)
    scratch = head_categories(head_forward_scratch(spec, architecture, batch))
    logged, is_over = logging_scratch(spec, architecture, batch), ends_autocast(spec)
    in_model: list[Terms] = [{Category.ACTIVATIONS: each[Category.ACTIVATIONS]} for each in (kept, scratch)]
    if is_over:  # what autocast keeps is next to the product alone then
        product = all_logits(spec, architecture, batch).product
        in_model.append({Category.ACTIVATIONS: at_head, Category.LOGITS: product})
    norm: Terms = {Category.ACTIVATIONS: norm_backward(spec, architecture, batch)}
    in_backward = added(layers, {Category.GRADIENTS: waiting})
    backward_of_tower = partial(
        tower_backward, spec, architecture, batch, embedding=embedding_bytes(spec, architecture)
    )
    of_tower = backward_of_tower(gradients=gradients.earlier, every=gradients.every, waiting=waiting)
    found = {
        **{
            name: added(until_the_end, {Category.GRADIENTS: gradients.earlier}, more)
            for name, more in tower_forward(spec, architecture, batch).items()
        },
        **_before_last(spec, architecture, batch, added(until_the_end, until_the_first), gradients),
        InstantName.FORWARD_LAYER: added(
            layers,
            {Category.ACTIVATIONS: in_layer},
            {Category.ACTIVATIONS: layer_forward(spec, architecture, batch)},
            held_in_forward(spec, architecture, batch),
            embedded_inputs(spec, architecture, batch),
        ),
        InstantName.FORWARD_HEAD: added(saved, {} if is_over else {Category.ACTIVATIONS: at_head}, scratch),
        **({} if logged is None else {InstantName.LOGGING: added(saved, {Category.LOGITS: logged})}),
        InstantName.BACKWARD_HEAD: added(saved, head_categories(head_backward_scratch(spec, architecture, batch))),
        InstantName.BACKWARD_NORM: added(in_backward, norm, of_norm),
        InstantName.BACKWARD_LAYER: added(in_backward, {Category.ACTIVATIONS: last_layer}),
        InstantName.BACKWARD_FIRST_LAYER: added(
            persistent,
            until_the_first,
            _first_layer(spec, architecture, batch, inputs.size, gradients, last_layer),
            earlier.named("rows that wait"),
        ),
        **{name: added(persistent, more, earlier.named("rows that wait")) for name, more in of_tower.items()},
        InstantName.BACKWARD_END: added(
            persistent,
            earlier.named("rows whose own backward waits"),
            {Category.GRADIENTS: gradients.at_the_end(spec, architecture, batch)},
        ),
    }
    others = _other_kinds(spec, architecture, batch, gradients) if architecture.first_layers else ()
    of_inputs = inputs_backward(spec, architecture, batch, gradients)
    at_inputs = ((InstantName.BACKWARD_INPUTS, added(until_the_end, more)) for more in of_inputs)
    named = (
        *((name, added(until_the_end, until_the_first, more)) for name, more in others),
        *(((InstantName.FORWARD_HEAD, added(layers, of_norm, *in_model)),) if is_over else ()),
        *found.items(),
        *at_inputs,
    )
    return tuple(
        Instant(phase=_PHASES.get(name, Phase.BACKWARD), name=name, terms=terms, happens=happens)
        for name, terms in named
    )


def _before_last(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, there: Terms, gradients: Gradients
) -> dict[InstantName, Terms]:
    """Return the end of the layers before the last one, where FSDP gathers weights for it: they keep all but its own.

    By hand, qwen2.5-0.5b with checkpointing: 24 inputs, of which the last layer has one.
    """
    if spec.distributed_type is not DistributedType.FSDP:
        return {}
    kept = stack(spec, architecture, batch)
    if not spec.gradient_checkpointing:
        last = layer_saved_bytes(spec, layer_kinds(architecture)[-1], batch)
        size = kept.size - last + layer_input_bytes(spec, architecture, batch)
        kept = Term(size, lambda: "layers before the last one")
    return {InstantName.GATHERING: added(there, {Category.GRADIENTS: gradients.earlier, Category.ACTIVATIONS: kept})}


def _other_kinds(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, gradients: Gradients
) -> tuple[tuple[InstantName, Terms], ...]:
    """Return the instants at the last layer of each kind but the last, and at the first layer of each but the first.

    Up to a layer there are the activations of the layers before it, and gradients of those after it.
    """
    kinds, every = layer_kinds(architecture), _made_in_layers(spec, architecture, gradients)
    waiting = gradients.of_tied_head(spec, architecture)
    found: list[tuple[InstantName, Terms]] = []
    if kinds[0].linear is not None and not _saves_in_each_layer(spec, kinds[0]):
        # Layers before the first adapter save nothing.
        alone = layer_without_gradient_bytes(spec, kinds[0], batch, adapted=False, autocast=spec.mixed_precision)
        terms = {Category.ACTIVATIONS: Term(alone), Category.GRADIENTS: gradients.earlier}
        found.append((InstantName.FORWARD_LAYER, terms))
    of_inputs = Term(inputs_gradient(spec, architecture, batch))
    for place, (kind, end, begin) in enumerate(zip(kinds, by_end(architecture), by_begin(architecture), strict=True)):
        backward = layer_backward(spec, kind, batch).plus(of_inputs)
        if place and not (of_inputs.size and place == len(kinds) - 1):
            there = gradients.in_layers(every - layer_gradients_bytes(spec, begin)).plus(waiting)
            activations = stack(spec, begin, batch).plus(backward)
            terms = {Category.ACTIVATIONS: activations, Category.GRADIENTS: there}
            found.append((InstantName.BACKWARD_FIRST_LAYER, terms))
        if place < len(kinds) - 1:
            inputs, casts = stack(spec, end, batch), Term(autocast_more_bytes(spec, end, in_layer=True))
            forward = inputs.plus(casts).plus(layer_forward(spec, kind, batch))
            terms = {Category.ACTIVATIONS: forward, Category.GRADIENTS: gradients.earlier}
            found.append((InstantName.FORWARD_LAYER, terms))
            there = gradients.in_layers(every - layer_gradients_bytes(spec, end)).plus(waiting)
            terms = {Category.ACTIVATIONS: inputs.plus(backward), Category.GRADIENTS: there}
            found.append((InstantName.BACKWARD_LAYER, terms))
    if of_inputs.size and kinds[-1].num_hidden_layers > 1:
        # Kinds take turns: those before the last layer are of another kind.
        left = without_last(architecture)
        there = gradients.in_layers(every - layer_gradients_bytes(spec, left)).plus(waiting)
        activations = stack(spec, left, batch).plus(layer_backward(spec, kinds[-2], batch)).plus(of_inputs)
        terms = {Category.ACTIVATIONS: activations, Category.GRADIENTS: there}
        found.append((InstantName.BACKWARD_INNER_LAYER, terms))
    return tuple(found)


def until_the_first_layer(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Terms:
    """Return what all layers share, so that backward has it until the first of them."""
    mask: Terms = {Category.INPUTS: Term(attention_mask_bytes(spec, architecture, batch))}
    return added(mask, kept_by_tower(spec, architecture, batch), inputs_kept(spec, architecture, batch))


def layer_forward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return what the last layer's forward needs in addition to the saved activations of all layers."""
    return Term(layer_forward_bytes(spec, architecture, batch), lambda: "one layer")


def layer_backward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return what the last layer's backward needs in addition to the saved activations of all layers."""
    words = "one recomputed" if spec.gradient_checkpointing else "the MLP's gradients"
    return Term(layer_backward_bytes(spec, architecture, batch), lambda: words)


def _made_in_layers(spec: TrialKeys, architecture: DecoderShape, gradients: Gradients) -> Count:
    """Return the gradients of everything but the embedding and a vision tower."""
    made = gradients.every.size - embedding_bytes(spec, architecture) - inputs_embedding_bytes(spec, architecture)
    if architecture.vision is not None:
        made = made - tower_gradient_bytes(spec, architecture.vision)
    return made


def _first_layer(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, kept_bytes: Count, gradients: Gradients, backward: Term
) -> Terms:
    """Return what the first layer's backward needs; of the other layers only gradients are left.

    In the first micro-batch, gradients grow while activations shrink. All layers of a kind have the same `backward`.
    """
    embedding, waiting = embedding_bytes(spec, architecture), gradients.of_tied_head(spec, architecture)
    made, first = _made_in_layers(spec, architecture, gradients), layer_kinds(architecture)[0]
    if architecture.first_layers:
        begin, backward = by_begin(architecture)[0], layer_backward(spec, first, batch)
        backward = backward.plus(Term(inputs_gradient(spec, architecture, batch)))
        kept = stack(spec, begin, batch).size
        one_layer = layer_gradients_bytes(spec, first) // first.num_hidden_layers
    else:
        kept = kept_bytes // architecture.num_hidden_layers
        one_layer = (made - (embedding - waiting.size)) // architecture.num_hidden_layers
    there = gradients.in_layers(made - one_layer, "all layers but one")
    return {
        Category.ACTIVATIONS: Term(kept, lambda: "one layer").plus(backward),
        Category.GRADIENTS: there.plus(waiting),
    }
