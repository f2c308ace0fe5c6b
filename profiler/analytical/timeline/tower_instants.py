"""What comes before the layers: a vision tower, and second inputs of the layers; nothing for other models.

What a vision tower adds to the instants of a step, and its own instants.

trl keeps the pixels of a generation batch until the next one is there, and joins them again by micro-batch
(`_prepare_inputs` and `unsplit_pixel_values_by_grid` in trl 1.16). While it generates again, the model has a copy of
the new ones.
"""

from dataclasses import replace

from profiler.analytical.formulas.layers.eager_attention import drops_inputs, input_mask_bytes
from profiler.analytical.formulas.layers.experts import trains_layer_inputs
from profiler.analytical.formulas.layers.layer_without_gradient import adapter_input_bytes, adapter_result_bytes
from profiler.analytical.formulas.models.parameters import key_width
from profiler.analytical.formulas.models.tensor_groups import outer_adapted, outer_tensors
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    linear_output_bytes,
    lora_rank,
    rows_norm_saved_bytes,
    saved_input_bytes,
    stream_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import widened_bytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, Term, Terms, added, chosen, either, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.formulas.tower import (
    block_backward_bytes,
    block_input_bytes,
    block_recomputation_bytes,
    block_saved_bytes,
    block_without_gradient_bytes,
    cast_pixel_bytes,
    has_images,
    held_in_forward_bytes,
    image_patches,
    image_tokens,
    merger_saved_bytes,
    needs_gradient,
    norm_backward_bytes,
    pixel_bytes,
    position_bytes,
    token_type_bytes,
    tower_gradient_bytes,
    tower_kept_bytes,
)
from profiler.analytical.timeline.instants import Gradients, InstantName, embedding_bytes
from profiler.domain.architectures.architecture import VisionTower
from profiler.domain.memory import Category
from profiler.domain.trials.trial import Tuning

_NOTHING: Terms = {}
_NORM_TENSORS = 5
"""Float32 tensors at the peak of a norm's backward (`norm_backward`)."""


def image_input_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the pixels of a generation batch, once, and of the kinds of its tokens."""
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture):
        return 0
    rows = spec.generation_batch_size
    return pixel_bytes(spec, tower, rows) + token_type_bytes(spec, rows)


def next_images(spec: TrialKeys, architecture: DecoderShape) -> Terms:
    """Return the pixels of the next generation batch, while those of the last one are still there."""
    again = spec.steps_per_generation < spec.steps * spec.gradient_accumulation_steps
    return {Category.INPUTS: Term(where(again, image_input_bytes(spec, architecture), 0))}


def joined_images(spec: TrialKeys, architecture: DecoderShape) -> Terms:
    """Return the copy of the pixels that trl makes as it joins them by micro-batch."""
    return {Category.INPUTS: Term(image_input_bytes(spec, architecture))}


def held_in_forward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Terms:
    """Return what is there of the tower's results, and of rotary positions per row, in the language model's forward."""
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture):
        return _NOTHING
    held = held_in_forward_bytes(spec, architecture, tower, batch.rows)
    return {Category.ACTIVATIONS: Term(held + _rotary_of_rows(spec, architecture, batch))}


def kept_by_tower(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Terms:
    """Return what the tower and the rotary positions keep while the language model runs forward and backward."""
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture):
        return _NOTHING
    kept = tower_kept_bytes(spec, tower, batch.rows)
    return {Category.ACTIVATIONS: Term(kept + _rotary_of_rows(spec, architecture, batch))}


def without_gradient(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, name: InstantName, *, adapted: Flag, autocast: Flag
) -> dict[InstantName, Terms]:
    """Return the instant `name`, in a block of a tower that saves nothing; none without images."""
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture):
        return {}
    patches = image_patches(spec, tower, batch.rows)
    block = block_without_gradient_bytes(spec, tower, patches, adapted=adapted, autocast=autocast)
    return {name: {Category.ACTIVATIONS: _block(block + _around_block(spec, architecture, tower, batch))}}


def _block(size: Count) -> Term:
    return Term(size, lambda: "a block, and what it reads")


def _kept_text() -> str:
    return "what the tower keeps"


def _around_block(spec: TrialKeys, architecture: DecoderShape, tower: VisionTower, batch: Batch) -> Count:
    """Return what is there while a block of the tower runs: pixels, positions, and the embeddings of the tokens."""
    block, sizes = block_of(spec), element_bytes(spec)
    patches = image_patches(spec, tower, batch.rows)
    embeddings = block(batch.positions * architecture.hidden_size * sizes.weight)
    around = cast_pixel_bytes(spec, tower, batch.rows) + position_bytes(spec, tower, patches) + embeddings
    if tower.position_embeddings:
        around = around + block(patches * tower.hidden_size * FLOAT32_BYTES)
    merged = block(image_tokens(spec, tower, batch.rows) * architecture.hidden_size * sizes.compute)
    return around + tower.deepstack * merged


def _rotary_of_rows(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return cosines and sines of the language model, which each row has for itself."""
    return 2 * block_of(spec)(batch.positions * architecture.head_dim * element_bytes(spec).stream)


def tower_forward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> dict[InstantName, Terms]:
    """Return the instant in the last block's forward in training; none without images."""
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture):
        return {}
    name, patches = InstantName.FORWARD_TOWER, image_patches(spec, tower, batch.rows)
    transient = block_without_gradient_bytes(spec, tower, patches, adapted=True, autocast=spec.mixed_precision)
    around = _around_block(spec, architecture, tower, batch)
    if not needs_gradient(spec, tower):
        return {name: {Category.ACTIVATIONS: _block(transient + around)}}
    # Pixels and positions are counted among what is around a block, and the last merger has not run.
    counted = position_bytes(spec, tower, patches) + merger_saved_bytes(spec, tower, patches)
    if trains_everything(spec):
        counted = counted + cast_pixel_bytes(spec, tower, batch.rows)
    kept = tower_kept_bytes(spec, tower, batch.rows) - counted
    one = block_input_bytes(spec, tower, patches)
    if spec.gradient_checkpointing:
        # The input of the last block is counted among those that are kept.
        kept = kept - one
    else:
        # The last layer of the MLP, with its results and those of its adapter.
        saved = block_saved_bytes(spec, tower, patches)
        transient = larger(transient - saved, block_recomputation_bytes(spec, tower, patches) + 2 * one)
    return {name: {Category.ACTIVATIONS: Term(kept, _kept_text).plus(_block(transient + around))}}


def tower_backward(
    spec: TrialKeys,
    architecture: DecoderShape,
    batch: Batch,
    *,
    gradients: Term,
    every: Term,
    waiting: Term,
    embedding: Count,
) -> dict[InstantName, Terms]:
    """Return the instants in the backward of the tower's last block and of its first; none without images.

    The gradients of the language model are all there, and that of the embeddings waits until the tower is done: it was
    made later in the forward (`Engine::execute` of autograd takes the latest first).

    Args:
        spec: The trial.
        architecture: Its model.
        batch: The micro-batch.
        gradients: Those of earlier micro-batches.
        every: All gradients.
        waiting: The gradient of a tied head.
        embedding: The gradient of the embedding, which is made last.
    """
    tower = architecture.vision
    if tower is None or not has_images(spec, architecture) or not needs_gradient(spec, tower):
        return {}
    patches = image_patches(spec, tower, batch.rows)
    embeddings = block_of(spec)(batch.positions * architecture.hidden_size * element_bytes(spec).stream)
    made, own = every.size - embedding, tower_gradient_bytes(spec, tower)
    kept = tower_kept_bytes(spec, tower, batch.rows) - merger_saved_bytes(spec, tower, patches)
    backward = block_backward_bytes(spec, tower, patches)
    one = block_saved_bytes(spec, tower, patches)
    if spec.gradient_checkpointing:
        backward = one + larger(backward, block_recomputation_bytes(spec, tower, patches))
        one = block_input_bytes(spec, tower, patches)
    merger = norm_backward_bytes(spec, tower, patches)
    merged = tower.deepstack * merger_saved_bytes(spec, tower, patches, joined=True)
    at_first = kept - merged - (tower.depth - 1) * one

    def there(missing: Count) -> Term:
        others = Term(made - missing, lambda: "the language model's")
        return chosen(gradients.size >= others.size, gradients, others).plus(waiting)

    def activations(at_start: Count, transient: Count) -> Term:
        return Term(at_start, _kept_text).plus(Term(transient + embeddings, lambda: "a block's backward"))

    return {
        InstantName.BACKWARD_TOWER: {
            Category.ACTIVATIONS: activations(kept, larger(backward, merger)),
            Category.GRADIENTS: there(own),
        },
        InstantName.BACKWARD_FIRST_BLOCK: {
            Category.ACTIVATIONS: activations(at_first, backward),
            Category.GRADIENTS: there(own // tower.depth),
        },
    }


def inputs_held(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag, has_cache: bool = False
) -> Terms:
    """Return what all layers of a forward without gradient hold: their second inputs, and keys that some share.

    A cache has these keys.

    By hand, T = 10, second inputs of 2 layers of 4 in bfloat16: 10 x 2 x 4 x 2 = 160 B.
    """
    element = stream_bytes(spec, autocast=autocast)
    held = _second_inputs(spec, architecture, batch, element)
    held = held + (0 if has_cache else _shared_keys(spec, architecture, batch, element))
    terms: Terms = {Category.ACTIVATIONS: Term(held, lambda: "second inputs of all layers")} if held else _NOTHING
    return added(terms, embedded_inputs(spec, architecture, batch))


def embedded_inputs(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Terms:
    """Return the embeddings that a model with towers holds while layers run: of second inputs, and a copy of others.

    By hand, T = 10, H = 8, 2 layers of 4 in bfloat16: 2 x 160 B; 0 for a model of text, and after the last layer.

    Source: `per_layer_inputs` and `llm_inputs_embeds` in `forward` of transformers' `Gemma4Model`.
    """
    element, hidden = element_bytes(spec).weight, batch.positions * architecture.hidden_size
    held = _second_inputs(spec, architecture, batch, element) + block_of(spec)(hidden * element)
    return {Category.ACTIVATIONS: Term(held)} if architecture.layer_inputs and architecture.idle else _NOTHING


def of_prefill(kind: DecoderShape, prompts: Batch) -> Batch:
    """Return what a layer computes of prompts: their last tokens, if it takes keys of an earlier layer.

    Source: `_maybe_slice_kv_shared_inputs` of transformers' `Gemma4TextModel`.
    """
    return replace(prompts, prompt_tokens=1) if kind.shares_keys else prompts


def inputs_kept(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Terms:
    """Return what second inputs keep from forward until the first backward, and under checkpointing shared keys.

    Without checkpointing, the layers that make keys save them.

    By hand, T = 10, H = 8, 2 layers of 4 in bfloat16, full, with checkpointing: the inputs of 160 B, and of their norm
    80 values in float32, as many normalised, and one number per layer: 160 + 320 + 320 + 80 = 880 B.
    """
    element = element_bytes(spec).stream
    kept = _second_inputs(spec, architecture, batch, element)
    if architecture.layer_inputs is not None and trains_layer_inputs(spec, architecture):
        kept = kept + _inputs_norm(spec, architecture, batch) + _projection_input(spec, architecture, batch)
    if spec.gradient_checkpointing:
        kept = kept + _shared_keys(spec, architecture, batch, element)
    return {Category.ACTIVATIONS: Term(kept)} if kept else _NOTHING


def _second_inputs(spec: TrialKeys, architecture: DecoderShape, batch: Batch, element: Count) -> Count:
    second = architecture.layer_inputs
    return block_of(spec)(batch.positions * second.whole_width * element) if second else 0


def _shared_keys(spec: TrialKeys, architecture: DecoderShape, batch: Batch, element: Count) -> Count:
    """Return keys and values of the layers whose keys others share: one of each kind of attention."""
    sharing = [kind for kind in layer_kinds(architecture) if kind.shares_keys]
    return sum(2 * block_of(spec)(batch.positions * key_width(kind) * element) for kind in sharing)


def _inputs_norm(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the norm of second inputs saves, of which each layer has a row."""
    second = architecture.layer_inputs
    if second is None:
        return 0
    values, rows = batch.positions * second.whole_width, batch.positions * second.layers
    return rows_norm_saved_bytes(spec, values, rows, element_bytes(spec).stream, in_float32=True)


def _projection_input(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the projection of second inputs saves of its input; the embeddings are kept by checkpointing."""
    sizes, block, values = element_bytes(spec), block_of(spec), batch.positions * architecture.hidden_size
    is_kept = spec.gradient_checkpointing
    if trains_everything(spec):
        return where(sizes.autocast_casts if is_kept else True, block(values * sizes.compute), 0)
    if not outer_adapted(architecture, spec.lora_target_modules or ()):
        return 0
    is_copy = either(sizes.adapter_casts, drops_inputs(spec)) if is_kept else True
    low_rank = block(batch.positions * lora_rank(spec) * sizes.compute)
    return where(is_copy, block(values * saved_input_bytes(spec)), 0) + input_mask_bytes(spec, values) + low_rank


def inputs_without_gradient(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, name: InstantName, *, adapted: Flag, autocast: Flag
) -> dict[InstantName, Terms]:
    """Return the instant `name`, at which second inputs are made and nothing is saved; none for layers with one input.

    With the embeddings there are those of second inputs, and the larger of two: the projection with what its adapter or
    a 4-bit weight makes, or the projection and two tensors of its norm in float32.

    By hand, T = 10, H = 8, 2 layers of 4 in bfloat16: 10 x (8 x 2 + 8 x (2 + 2 + 8)) = 1,120 B.

    Source: `project_per_layer_inputs` of transformers' `Gemma4TextModel`.
    """
    second = architecture.layer_inputs
    if second is None:
        return {}
    block, sizes, hidden = block_of(spec), element_bytes(spec), batch.positions * architecture.hidden_size
    values, given = batch.positions * second.whole_width, linear_output_bytes(spec, autocast=autocast)
    there = block(hidden * sizes.weight) + block(values * sizes.weight) + block(values * given)
    made: Count = 2 * block(values * FLOAT32_BYTES)
    if spec.tuning is Tuning.QLORA:
        weight = architecture.hidden_size * second.whole_width
        made = larger(made, widened_bytes(spec, weight, batch.positions, autocast=autocast))
    if outer_adapted(architecture, spec.lora_target_modules or ()):
        copy = adapter_input_bytes(spec, hidden, sizes.weight, autocast=autocast)
        made = larger(made, where(adapted, copy + adapter_result_bytes(spec, values, autocast=autocast), 0))
    return {name: {Category.ACTIVATIONS: Term(there + made, lambda: "what second inputs are made of")}}


def inputs_gradient(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the gradient of all second inputs, which is there from the second backward of a layer on; 0 without one.

    By hand, T = 10, 2 layers of 4 in bfloat16: 160 B.

    Source: `select_backward` in torch's `derivatives.yaml`, which makes a gradient of the whole.
    """
    if architecture.layer_inputs is None or not trains_layer_inputs(spec, architecture):
        return 0
    return _second_inputs(spec, architecture, batch, element_bytes(spec).stream)


def inputs_backward(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, gradients: Gradients
) -> tuple[Terms, ...]:
    """Return what there is at the backward of the norm of second inputs, and at that of their embedding.

    The norm needs five tensors in float32 (`norm_backward`). The new gradient of the embedding is added to an earlier
    one, if there is one. That of the first embedding comes later.
    """
    second, gradient = architecture.layer_inputs, inputs_gradient(spec, architecture, batch)
    if second is None or not gradient:
        return ()
    block, values = block_of(spec), batch.positions * second.whole_width
    freed = block(values * FLOAT32_BYTES) if trains_everything(spec) else 0
    made = gradient + block(batch.positions * architecture.hidden_size * element_bytes(spec).stream)
    kept = _inputs_norm(spec, architecture, batch) + _projection_input(spec, architecture, batch)
    at_norm = kept + made + _NORM_TENSORS * block(values * FLOAT32_BYTES) - freed
    embedding, earlier = inputs_embedding_bytes(spec, architecture), gradients.earlier
    every = gradients.every.size - embedding_bytes(spec, architecture)
    after = chosen(earlier.size > 0, Term(earlier.size + embedding), Term(every))
    waiting = gradients.of_tied_head(spec, architecture)
    return tuple(
        {Category.ACTIVATIONS: Term(size, lambda: "second inputs"), Category.GRADIENTS: there.plus(waiting)}
        for size, there in ((at_norm, gradients.in_layers(every - embedding)), (gradient + made, after))
    )


def inputs_embedding_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the gradient of the embedding of second inputs; 0 with adapters."""
    if not trains_everything(spec):
        return 0
    block, element = block_of(spec), element_bytes(spec).weight
    return sum(block(group.total * element) for group in outer_tensors(architecture) if group.is_embedding)
