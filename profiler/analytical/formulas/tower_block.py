"""Activations of one block of a vision tower, counted tensor by tensor as autograd saves them.

P is the number of patches of all images of a batch, h the hidden size, i the inner size of the MLP. Weights are in
bfloat16. Attention runs image by image, or window by window, by a kernel that makes no scores; blocks of Qwen2.5-VL
with windows and without save alike. The rotary embedding computes in float32.

Source: `modeling_qwen2_vl.py`, `modeling_qwen2_5_vl.py` and `modeling_qwen3_vl.py` in transformers 5.23.
"""

from collections.abc import Sequence

from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.tower_parameters import adapted_in_block, adapted_in_merger
from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, element_bytes, lora_rank, trains_everything
from profiler.analytical.formulas.sizes.quantities import Count, Flag, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import TrialKeys
from profiler.domain.architectures.vision import VisionTower

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
        cast = where(spec.bf16, block(values * FLOAT32_BYTES), 0)
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
    element = where(spec.bf16, sizes.compute, sizes.adapter)
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
