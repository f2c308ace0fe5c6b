"""What a vision tower adds to the instants of a step, and its own instants; nothing for a model of text alone.

trl keeps the pixels of a generation batch until the next one is there, and joins them again by micro-batch
(`_prepare_inputs` and `unsplit_pixel_values_by_grid` in trl 1.16). While it generates again, the model has a copy of
the new ones.
"""

from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, element_bytes, trains_everything
from profiler.analytical.formulas.sizes.quantities import Count, Flag, Term, Terms, chosen, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
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
from profiler.analytical.timeline.instants import InstantName
from profiler.domain.architectures.architecture import VisionTower
from profiler.domain.memory import Category

_NOTHING: Terms = {}


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
