"""A vision tower as a whole: its inputs, and what it keeps while the language model runs.

trl gives each completion the pixels of its prompt, so a batch has as many images as its rows have together
(`GRPOTrainer._generate_and_score_completions` in trl 1.16).
"""

from profiler.analytical.formulas.models.tower_parameters import (
    adapted_in_block,
    adapted_in_merger,
    tower_lora_tensors,
    tower_tensors,
)
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    element_bytes,
    lora_rank,
    trained_element_bytes,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import Count
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.tower_block import (
    block_input_bytes,
    block_saved_bytes,
    merger_saved_bytes,
    norm_saved_bytes,
)
from profiler.domain.architectures.vision import VisionTower

_TAPS = 4
"""Learned positions that are interpolated for one patch."""


def has_images(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether the prompts of a trial have images."""
    return architecture.vision is not None and spec.images_per_prompt is not None


def image_tokens(spec: TrialKeys, tower: VisionTower, rows: Count) -> Count:
    """Return the tokens of the images of `rows` rows.

    By hand, 4 rows with 2 images of 401,408 pixels, 784 pixels per token: 4 x 2 x 512 = 4,096.
    """
    images = 0 if spec.images_per_prompt is None else spec.images_per_prompt
    pixels = 0 if spec.max_pixels is None else spec.max_pixels
    return rows * images * (pixels // tower.pixels_per_token)


def image_patches(spec: TrialKeys, tower: VisionTower, rows: Count) -> Count:
    """Return the patches of the images of `rows` rows. By hand, as above: 4 x 4,096 = 16,384."""
    return image_tokens(spec, tower, rows) * tower.patches_per_token


def pixel_bytes(spec: TrialKeys, tower: VisionTower, rows: Count) -> Count:
    """Return the bytes of `pixel_values` of `rows` rows, in float32, as the processor returns them.

    By hand, 1 row with an image of 512 tokens, 1,176 values per patch: 2,048 x 1,176 x 4 B = 9,633,792 B.
    """
    return block_of(spec)(image_patches(spec, tower, rows) * tower.patch_values * FLOAT32_BYTES)


def token_type_bytes(spec: TrialKeys, rows: Count) -> Count:
    """Return the bytes of the kinds of tokens (`mm_token_type_ids`), an int64 per token."""
    return block_of(spec)(rows * (spec.max_prompt_length + spec.max_completion_length) * INT64_BYTES)


def cast_pixel_bytes(spec: TrialKeys, tower: VisionTower, rows: Count) -> Count:
    """Return the bytes of the pixels in the type of the weights."""
    return block_of(spec)(image_patches(spec, tower, rows) * tower.patch_values * element_bytes(spec).weight)


def position_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return the bytes of cosines and sines, float32 of the width of a head, and of interpolated positions.

    These have four weights in float32 and four indices per patch.
    """
    block = block_of(spec)
    rotary = 2 * block(patches * tower.head_dim * FLOAT32_BYTES)
    if not tower.position_embeddings:
        return rotary
    return rotary + block(patches * _TAPS * FLOAT32_BYTES) + block(patches * _TAPS * INT64_BYTES)


def needs_gradient(spec: TrialKeys, tower: VisionTower) -> bool:
    """Return whether the tower saves activations.

    It does if it is trained or has adapters; and with adapters anywhere under gradient checkpointing, because
    `enable_input_require_grads` of transformers lets the output of its first layer require a gradient.
    """
    targets = spec.lora_target_modules or ()
    adapted = adapted_in_block(tower, targets) or adapted_in_merger(tower, targets)
    return trains_everything(spec) or bool(adapted) or spec.gradient_checkpointing


def tower_kept_bytes(spec: TrialKeys, tower: VisionTower, rows: Count) -> Count:
    """Return what the tower keeps from its forward until its backward, while the language model runs.

    The blocks, or with checkpointing their inputs; the mergers; cosines and sines; the cast pixels if the first layer
    is trained; and its output, a leaf, if it is not.

    By hand, one RMS-normed block with h = 8, 2 heads, gate, i = 16, and a merger of 2 x 2, P = 8 patches of 12 values,
    full with checkpointing: 8 x 8 x 2 for the input, 8 x (8 x 4 + 4 + 8 x 2) + 3 x 2 x 32 x 2 for the merger,
    2 x 8 x 4 x 4 of positions and 8 x 12 x 2 of pixels: 128 + 800 + 256 + 192 = 1,376 B.
    """
    if not needs_gradient(spec, tower):
        return 0
    patches = image_patches(spec, tower, rows)
    one = block_input_bytes(spec, tower, patches)
    kept = merger_saved_bytes(spec, tower, patches) + position_bytes(spec, tower, patches)
    kept = kept + tower.deepstack * merger_saved_bytes(spec, tower, patches, joined=True)
    if spec.gradient_checkpointing:
        kept = kept + tower.depth * one
    else:
        kept = kept + tower.depth * block_saved_bytes(spec, tower, patches)
    if trains_everything(spec):
        return kept + cast_pixel_bytes(spec, tower, rows)
    if spec.gradient_checkpointing:
        return kept + one
    # Nothing before the first adapter needs a gradient.
    return kept - norm_saved_bytes(spec, tower, patches * tower.hidden_size, patches)


def held_in_forward_bytes(spec: TrialKeys, architecture: DecoderShape, tower: VisionTower, rows: Count) -> Count:
    """Return what the model's forward holds of the tower's results while the layers of the language model run.

    The output of the last block, the tokens in the order of the patches and joined (`get_image_features`), and those of
    the deepstack.
    """
    block, compute = block_of(spec), element_bytes(spec).compute
    patches = image_patches(spec, tower, rows)
    tokens = block(image_tokens(spec, tower, rows) * architecture.hidden_size * compute)
    return block_input_bytes(spec, tower, patches) + (2 + tower.deepstack) * tokens


def tower_gradient_bytes(spec: TrialKeys, tower: VisionTower) -> Count:
    """Return the bytes of the gradients of the tower's parameters, or of its adapters."""
    block, element = block_of(spec), trained_element_bytes(spec)
    if trains_everything(spec):
        groups = tower_tensors(tower)
    else:
        groups = tower_lora_tensors(tower, lora_rank(spec), spec.lora_target_modules or ())
    return sum(group.copies * block(group.elements * element) for group in groups)
