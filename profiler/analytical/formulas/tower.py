"""A vision tower: its inputs, its blocks, and what it keeps while the language model runs.

Activations of one block of a vision tower, counted tensor by tensor as autograd saves them.

P is the number of patches of all images of a batch, h the hidden size, i the inner size of the MLP. Weights are in
bfloat16. Attention runs image by image, or window by window, by a kernel that makes no scores; blocks of Qwen2.5-VL
with windows and without save alike. The rotary embedding computes in float32.

Source: `modeling_qwen2_vl.py`, `modeling_qwen2_5_vl.py` and `modeling_qwen3_vl.py` in transformers 5.23.

A vision tower as a whole: its inputs, and what it keeps while the language model runs.

trl gives each completion the pixels of its prompt, so a batch has as many images as its rows have together
(`GRPOTrainer._generate_and_score_completions` in trl 1.16).
"""

from collections.abc import Sequence

from profiler.analytical.formulas.models.tensor_groups import (
    Projection,
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
from profiler.analytical.formulas.sizes.quantities import Count, Flag, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.architectures.architecture import VisionTower

_ROTARY_TENSORS = 6
"""Of float32, as large as the queries: queries, keys and the rotated queries, and for the keys the product with the
cosine, the rotated halves, and their product with the sine (`apply_rotary_pos_emb_vision`)."""


def norm_saved_bytes(spec: TrialKeys, tower: VisionTower, values: Count, rows: Count) -> Count:
    """Return what a norm over `values` in `rows` rows saves.

    A root-mean-square norm: the input in float32, one float32 per row, and if its weight is trained the normalised
    input. A layer norm: the input in float32, because autocast casts it, and two float32 per row.

    By hand, 10 rows of 8: RMS 10 x (8 x 4 + 4) = 360 B, trained 520 B; layer norm 10 x (8 x 4 + 8) = 400 B.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    if tower.has_layer_norm:
        cast = where(spec.mixed_precision, block(values * FLOAT32_BYTES), 0)
        return cast + 2 * block(rows * FLOAT32_BYTES)
    normalised = block(values * sizes.compute) if trains_everything(spec) else 0
    return block(values * FLOAT32_BYTES) + block(rows * FLOAT32_BYTES) + normalised


def norm_backward_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return the peak of the backward of the norm before the merger, with what that norm saves.

    In float32, as large as the patches: of a root-mean-square norm the gradients of the two products and the three
    factors of that of the square (`pow_backward`); of a layer norm the gradients of its output and of its input.
    """
    made = 2 if tower.has_layer_norm else 5
    values = patches * tower.hidden_size
    return norm_saved_bytes(spec, tower, values, patches) + made * block_of(spec)(values * FLOAT32_BYTES)


def linear_inputs_bytes(spec: TrialKeys, rows: Count, parts: Sequence[Projection]) -> Count:
    """Return what linear layers with adapters save: per layer its input, cast for the adapter, and A's output.

    By hand, 10 rows, one layer with 8 inputs, rank 2 under autocast: 10 x (8 + 2) x 2 = 200 B.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    element = where(spec.mixed_precision, sizes.compute, sizes.adapter)
    low = block(rows * lora_rank(spec) * element)
    return sum(block(rows * part.in_features * element) + low for part in parts)


def block_saved_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return what one block saves for backward without checkpointing.

    Two norms; attention: the output of the joint projection, whose third part are the values (3h), queries and keys
    after the rotation (2h), the output of its kernel (h), and a float32 per head; the MLP: `inner_tensors` of i; and
    the inputs of the linear layers. Full: those of qkv, of the output layer and of the MLP (3h), and of its last layer
    (i).

    By hand, P = 10, h = 8, 2 heads, i = 16 with a gate, full: 10 x (2 x (8 x 4 + 4 + 8 x 2) + 6 x 8 x 2 + 2 x 4 +
    3 x 16 x 2 + 3 x 8 x 2 + 16 x 2) = 3,840 B.
    """
    block, compute = block_of(spec), element_bytes(spec).compute
    one, inner = block(patches * tower.hidden_size * compute), block(patches * tower.intermediate_size * compute)
    norms = 2 * norm_saved_bytes(spec, tower, patches * tower.hidden_size, patches)
    joint = block(patches * 3 * tower.hidden_size * compute)
    attention = joint + 3 * one + block(patches * tower.num_heads * FLOAT32_BYTES)
    saved = norms + attention + tower.inner_tensors * inner
    if trains_everything(spec):
        return saved + 3 * one + inner
    return saved + linear_inputs_bytes(spec, patches, adapted_in_block(tower, spec.lora_target_modules or ()))


def merger_saved_bytes(spec: TrialKeys, tower: VisionTower, patches: Count, *, joined: bool = False) -> Count:
    """Return what a merger saves: its norm, and three tensors as wide as the patches of a token.

    These are the input of its first layer, that of GELU, and that of its second layer; or with adapters the inputs
    that are cast for them.

    By hand, P = 8, h = 4, RMS, merged 2 x 2, full: 8 x (4 x 4 + 4 + 4 x 2) + 3 x 2 x 16 x 2 = 416 B.

    Args:
        spec: The trial.
        tower: The tower.
        patches: The patches of all images.
        joined: Whether the norm is over the joined patches of a token.
    """
    block, compute = block_of(spec), element_bytes(spec).compute
    tokens = patches // tower.patches_per_token
    merged = block(tokens * tower.merged_size * compute)
    norm = norm_saved_bytes(spec, tower, patches * tower.hidden_size, tokens if joined else patches)
    if trains_everything(spec):
        return norm + 3 * merged
    parts = adapted_in_merger(tower, spec.lora_target_modules or ())
    return norm + merged + linear_inputs_bytes(spec, tokens, parts)


def block_input_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return what checkpointing keeps of a block: its input."""
    return block_of(spec)(patches * tower.hidden_size * element_bytes(spec).compute)


def block_backward_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return the peak of a block's backward in addition to what the block saves: in its MLP.

    Twice the gradient of the stream, and gradients of inner tensors while the saved input of the last layer is freed:
    three with a gate or QuickGELU, two with GELU; or before that one, with the new gradient of the last weight.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    inner = block(patches * tower.intermediate_size * sizes.compute)
    stream = 2 * block_input_bytes(spec, tower, patches)
    made = 2 if tower.inner_tensors == 1 else 3
    names = {part.name for part in adapted_in_block(tower, spec.lora_target_modules or ())}
    everything = trains_everything(spec)
    freed = 1 if everything or tower.mlp_names[-1] in names else 0
    weight = block(tower.intermediate_size * tower.hidden_size * sizes.weight) if everything else 0
    return stream + larger((made - freed) * inner, inner + weight)


def block_recomputation_bytes(spec: TrialKeys, tower: VisionTower, patches: Count) -> Count:
    """Return what the recomputation of a block needs in addition to what it saves, at the last layer of the MLP.

    The input of the block, the stream, the incoming gradient and the result; and for a float32 adapter of that layer
    its input as it is, and in float32.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    names = {part.name for part in adapted_in_block(tower, spec.lora_target_modules or ())}
    values = patches * tower.intermediate_size
    copies = block(values * sizes.compute) + block(values * sizes.adapter)
    return 4 * block_input_bytes(spec, tower, patches) + (copies if tower.mlp_names[-1] in names else 0)


def block_without_gradient_bytes(
    spec: TrialKeys, tower: VisionTower, patches: Count, *, adapted: Flag, autocast: Flag
) -> Count:
    """Return the peak of a block that saves nothing: in the rotary embedding, in the MLP, or at an adapter.

    In the rotary embedding: the input, the normed input, queries, keys and values, and six float32 tensors. In the
    MLP: the input, the stream, the normed stream, and inner tensors.

    By hand, P = 10, h = 8, i = 16 with a gate: 10 x (2 x 8 x 2 + 3 x 8 x 2 + 6 x 8 x 4) = 2,720 B.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    one = block_input_bytes(spec, tower, patches)
    joint = block(patches * 3 * tower.hidden_size * sizes.compute)
    inner = block(patches * tower.intermediate_size * sizes.compute)
    rotary = 2 * one + joint + _ROTARY_TENSORS * block(patches * tower.hidden_size * FLOAT32_BYTES)
    mlp = 3 * one + (2 if tower.inner_tensors == 1 else 3) * inner
    found = larger(rotary, mlp)
    parts = {part.name: part for part in adapted_in_block(tower, spec.lora_target_modules or ())}
    if trains_everything(spec) or not parts:
        return found
    low = where(autocast, sizes.compute, sizes.adapter)
    cast = block(patches * tower.hidden_size * sizes.adapter)
    summed = 2 * low
    at_qkv = 2 * one + cast + joint + block(patches * 3 * tower.hidden_size * summed) if "qkv" in parts else 0
    at_up: Count = 0
    if tower.mlp_names[-2] in parts:
        gates = 2 if tower.is_gated else 1
        at_up = 3 * one + cast + gates * inner + block(patches * tower.intermediate_size * summed)
    return where(adapted, larger(found, at_qkv, at_up), found)


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
