"""Activations of a mixture of experts that transformers computes by grouped products, in bfloat16.

S is the number of pairs of a token and one of its experts: T x experts per token. Each pair has its own row in every
tensor, whatever expert computes it. Counted in `grouped_mm_experts_forward` of transformers' `integrations/moe.py` and
in its backward. While it decodes, `generate` takes `batched_mm_experts_forward` instead, which copies the weights of
the expert of each pair. Left out: the router's tensors, a few numbers per token and expert.
"""

from profiler.analytical.formulas.layers.eager_attention import input_mask_bytes
from profiler.analytical.formulas.models.parameters import (
    LINEAR_ROUTER,
    SHARED_GATE,
    adapted_experts,
    adapted_projections,
    expert_weights,
    has_shared_expert,
    layers_of,
    norms_experts,
)
from profiler.analytical.formulas.models.tensor_groups import outer_adapted
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    linear_output_bytes,
    lora_rank,
    norm_saved_bytes,
    saved_input_bytes,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, larger, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.architectures.families import LAYER_GATE, LAYER_PROJECTION

_INDICES = 4
"""Indices of pairs: by expert, their order, its inverse, and the token of each."""


_AT_BIASED_GATE = 9
"""[S, I] at the product of a clamped gate: gate and up, and their biases; both clamped; the activated gate, up and one,
and the product."""


def _gate_tensors(architecture: DecoderShape) -> int:
    """Return the [S, I] that the activation of experts saves: gate and up together, and the activated gate.

    A clamped gate saves gate and up together, the clamped gate, its sigmoid, the activated gate, and up and one.
    """
    return 6 if layers_of(architecture).has_biased_experts else 3


def experts_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the experts save for backward: gate and up together, the activated gate, and the result.

    With trained or adapted experts also their inputs and the product, and adapted ones the weights with adapters
    (`merged_bytes`); an adapted router saves its input, [T, H]. By hand, S = 8 pairs, H = 4, I = 2, bfloat16, trained:
    8 x (2 x 4 + 4 x 2) x 2 B = 256 B, and 4 x 64 B of indices. A shared expert that is weighed saves its result,
    [T, H], and so does a trained router that casts its input.
    """
    result, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
    saved = result + _gate_tensors(architecture) * inner + _shared_result(spec, architecture, positions)
    saved = saved + (result if _saves_inputs(spec, architecture) else 0)
    saved = saved + (inner if _saves_products(spec, architecture) else 0)
    if _saves_router_input(spec, architecture):
        saved = saved + _stream(spec, architecture, positions)
    saved = saved + norms_saved_bytes(spec, architecture, positions)
    return saved + merged_bytes(spec, architecture) + _indices(spec, architecture, positions)


def norms_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what norms and router of experts after an MLP save; 0 for other experts.

    Norms are after the MLP, before the experts and after them, and the router has one without a weight. Trained, the
    router saves the inputs of its product and of its linear layer, [T, H] each; adapted, the latter.

    By hand, T = 10, H = 8 in bfloat16, full: 3 x 680 + 360 + 2 x 160 = 2,720 B; frozen router: 4 x 360 B.
    """
    if not norms_experts(architecture):
        return 0
    block, values = block_of(spec), positions * architecture.hidden_size
    saved = 3 * _norm(spec, architecture, positions)
    saved = saved + block(values * FLOAT32_BYTES) + block(positions * FLOAT32_BYTES)
    if trains_everything(spec):
        return saved + 2 * _stream(spec, architecture, positions)
    targets = spec.lora_target_modules or ()
    if LINEAR_ROUTER not in {part.name for part in adapted_projections(architecture, targets)}:
        return saved
    low_rank = block(positions * lora_rank(spec) * element_bytes(spec).compute)
    return saved + block(values * saved_input_bytes(spec)) + input_mask_bytes(spec, values) + low_rank


def sum_norm_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the norm of the sum of an MLP and of experts saves; 0 without such a sum.

    By hand, T = 10, H = 8 in bfloat16, full: 680 B.
    """
    return _norm(spec, architecture, positions) if norms_experts(architecture) else 0


def _norm(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    return norm_saved_bytes(spec, positions, architecture.hidden_size, in_float32=True)


def _mlp_results(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the result of an MLP before experts, with and without its norm, [T, H] each; 0 for other experts."""
    return 2 * _stream(spec, architecture, positions) if norms_experts(architecture) else 0


def trains_layer_inputs(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether the second inputs of layers get a gradient: by weights, an adapter, or checkpointing.

    With adapters and checkpointing the embeddings require one (`enable_input_require_grads` in transformers).
    """
    if trains_everything(spec) or spec.gradient_checkpointing:
        return True
    return bool(outer_adapted(architecture, spec.lora_target_modules or ()))


def layer_inputs_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a layer saves between its MLP and its last norm, where it takes its second input; 0 without one.

    The gate, and if the second input gets a gradient the activated gate, [T, P] each; the inputs of both linear layers,
    [T, H] and [T, P], if these are trained or adapted. The second input is a part of one tensor of all layers.

    By hand, T = 10, H = 8, P = 4 in bfloat16, full: 2 x 80 + 160 + 80 = 400 B; frozen, without checkpointing: 80 B.

    Source: the end of `Gemma4TextDecoderLayer.forward` in transformers.
    """
    second, block, sizes = architecture.layer_inputs, block_of(spec), element_bytes(spec)
    if second is None:
        return 0
    gates = 2 if trains_layer_inputs(spec, architecture) else 1
    saved = gates * block(positions * second.width * linear_output_bytes(spec))
    if trains_everything(spec):
        inputs = (architecture.hidden_size, second.width)
        return saved + sum(block(positions * width * sizes.compute) for width in inputs)
    low_rank = block(positions * lora_rank(spec) * sizes.compute)
    for part in adapted_projections(architecture, spec.lora_target_modules or ()):
        if part.name in (LAYER_GATE, LAYER_PROJECTION):
            values = positions * part.in_features
            saved = saved + block(values * saved_input_bytes(spec)) + input_mask_bytes(spec, values) + low_rank
    return saved


def after_mlp_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a layer saves after the norm of its MLP: for its second input, and the last norm; 0 without one.

    By hand, T = 10, H = 8, P = 4 in bfloat16, full: 400 + 680 B.
    """
    if architecture.layer_inputs is None:
        return 0
    return layer_inputs_saved_bytes(spec, architecture, positions) + _norm(spec, architecture, positions)


def until_mlp_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what backward has freed when it reaches such a layer's MLP: with `after_mlp_bytes` the norm of the MLP.

    By hand, T = 10, H = 8, P = 4 in bfloat16, full: 400 + 2 x 680 B.
    """
    if architecture.layer_inputs is None:
        return 0
    return after_mlp_bytes(spec, architecture, positions) + _norm(spec, architecture, positions)


def experts_forward_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a forward with gradient needs at the end of the experts in addition to what it saves.

    The weighted results, before and after they are brought back into the order of tokens; the inputs of the experts,
    if these are frozen. After an MLP, its result twice, and the input of all experts, if the MLP saves its own; the
    norms after the experts and of the sum have saved nothing.
    """
    results: Count = 0
    if norms_experts(architecture):
        saves_own = trains_everything(spec) or has_bfloat16_adapters(spec)
        own = _stream(spec, architecture, positions) if saves_own else 0
        results = _mlp_results(spec, architecture, positions) + own - 2 * _norm(spec, architecture, positions)
    weighted, inputs = (
        2 * _weighted(spec, architecture, positions, autocast=spec.mixed_precision),
        _result(spec, architecture, positions),
    )
    biases = inputs if layers_of(architecture).has_biased_experts else 0
    return results + weighted + biases + (0 if _saves_inputs(spec, architecture) else inputs)


def recomputed_gate_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what recomputation needs at a clamped gate in addition to what the experts save; 0 for other gates.

    The gradient of the weighted results, [S, H]; the biases of gate and up, the clamped up and the product, if it is
    not saved; the inputs, if experts are frozen. The result of the experts is not there yet.

    By hand, S = 8 pairs, H = 4, I = 2, bfloat16, frozen: 8 x (4 + 4 x 2) x 2 B = 192 B.
    """
    if not layers_of(architecture).has_biased_experts:
        return 0
    result, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
    product = 0 if _saves_products(spec, architecture) else inner
    inputs = 0 if _saves_inputs(spec, architecture) else result
    return 3 * inner + product + inputs


def experts_without_gradient_bytes(
    spec: TrialKeys, architecture: DecoderShape, positions: Count, *, autocast: Flag
) -> Count:
    """Return the peak of the experts without gradient and adapters: inputs, results, and weighted results twice.

    By hand, S = 8 pairs, H = 4, bfloat16: 4 x 8 x 4 x 2 B = 256 B, and 4 x 64 B of indices. Mixtral weighs in float32:
    2 x 8 x 4 x (2 + 4) B = 384 B, and the indices.
    """
    weighted = _weighted(spec, architecture, positions, autocast=autocast)
    found = 2 * (_result(spec, architecture, positions) + weighted)
    if layers_of(architecture).has_biased_experts:
        inputs, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
        found = larger(found + inputs, inputs + _AT_BIASED_GATE * inner)
    found = found + _mlp_results(spec, architecture, positions)
    return found + _shared_result(spec, architecture, positions) + _indices(spec, architecture, positions)


def decoding_bytes(spec: TrialKeys, architecture: DecoderShape, sequences: Count) -> Count:
    """Return what the experts of one layer copy to decode a token per sequence: the weights that each pair uses.

    Adapted experts are merged first. By hand, 2 sequences, 4 experts per token, H = 4, I = 2, bfloat16: 8 x 3 x 4 x 2 x
    2 B = 384 B.

    Source: `_optimize_model_for_decode` in transformers' `generation/utils.py`.
    """
    pairs, element = sequences * architecture.experts_per_token, element_bytes(spec).weight
    one = architecture.hidden_size * architecture.expert_width * element
    block = block_of(spec)
    return block(2 * pairs * one) + block(pairs * one) + merged_bytes(spec, architecture)


def merged_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the adapted weights of one layer's experts, which peft makes anew in each forward.

    Those of all experts, whether they have tokens or not; and for float32 adapters their copies in the type of the
    weights. By hand, 16 experts of H = 4, I = 2, rank 3 in bfloat16, all adapted: 16 x 3 x 4 x 2 x 2 B = 768 B, and
    16 x (6 x 8 + 3 x 6) x 2 B = 2,112 B.

    Source: `ParamWrapper._activate_lora` and `_LoraFactorsProxy` in peft's `lora/layer.py`, peft 0.21.
    """
    if trains_everything(spec):
        return 0
    found = adapted_experts(architecture, spec.lora_target_modules or ())
    block, element = block_of(spec), element_bytes(spec).weight
    experts, hidden, width = architecture.num_experts, architecture.hidden_size, architecture.expert_width
    rank = 0 if has_bfloat16_adapters(spec) else lora_rank(spec)
    merged: Count = 0
    if found.gate_up:
        merged = block(2 * expert_weights(architecture) * element)
        merged = merged + block(experts * 2 * rank * hidden * element) + block(experts * 4 * rank * width * element)
    if found.down:
        merged = merged + block(expert_weights(architecture) * element)
        merged = merged + block(experts * rank * hidden * element) + block(experts * rank * width * element)
    return merged


def experts_backward_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the peak of the experts' backward in addition to what they saved.

    The largest of three: at the weights of the router, three gradients as large as the weighted results, and if these
    are wider, that of the result; at the down projection, the gradient of the product, and the new gradient of the
    weights; at gate and up, their gradients, those of the inputs and of the weights, when only the inputs are left of
    what was saved. Adapted weights have such gradients too, but those of down are freed before gate and up, and so are
    its weights. A shared expert that is weighed waits with the gradients of its result and of its input, [T, H] each,
    and its result is freed, with what the adapter of its gate saved; one that is added is done, and left the gradient
    of its input.
    """
    result, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
    # Two gradients, less the result.
    waiting = _shared_result(spec, architecture, positions) + added_bytes(spec, architecture, positions)
    waiting = waiting - _gate_input(spec, architecture, positions)
    if norms_experts(architecture):
        # The gradient of the MLP's result after its norm; the norm after the experts is done.
        waiting = _stream(spec, architecture, positions) - _norm(spec, architecture, positions)
    # Its node keeps the result until then; checkpointing frees what it has unpacked.
    is_narrowed = layers_of(architecture).has_float32_router and not spec.gradient_checkpointing
    narrowed = result if is_narrowed else 0
    at_router = 3 * _weighted(spec, architecture, positions, autocast=spec.mixed_precision) + narrowed
    weights = block_of(spec)(expert_weights(architecture) * element_bytes(spec).weight)
    if trains_everything(spec):
        # Without earlier micro-batches the new gradient of down is kept, and is counted nowhere else at this instant.
        kept = where(spec.gradient_accumulation_steps > 1, 0, weights)
        # The result has been freed; the gradient of it takes its place.
        return waiting + larger(at_router, inner + weights, 2 * weights + kept - 2 * inner)
    found = adapted_experts(architecture, spec.lora_target_modules or ())
    at_down = inner + weights if found.down else 0
    freed = result + (weights if found.down else 0)
    left = result + 2 * inner if found.gate_up else 0
    at_gate_and_up = 2 * weights + left - freed - 2 * inner if found.gate_up else 0
    return waiting + larger(at_router, at_down, at_gate_and_up)


def _saves_inputs(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether gate and up need their inputs for the gradient of their weights."""
    return trains_everything(spec) or adapted_experts(architecture, spec.lora_target_modules or ()).gate_up


def _saves_products(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether the down projections need their inputs for the gradient of their weights."""
    return trains_everything(spec) or adapted_experts(architecture, spec.lora_target_modules or ()).down


def _result(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of one tensor [S, H]."""
    pairs = positions * architecture.experts_per_token
    return block_of(spec)(pairs * architecture.hidden_size * element_bytes(spec).compute)


def _saves_router_input(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether the router saves a copy of its input: adapted, or trained, if it casts it."""
    if trains_everything(spec):
        return layers_of(architecture).widens_router
    return adapted_experts(architecture, spec.lora_target_modules or ()).router


def _weighted(spec: TrialKeys, architecture: DecoderShape, positions: Count, *, autocast: Flag) -> Count:
    """Return the bytes of the results times the weights of the router, [S, H]."""
    layers, narrow = layers_of(architecture), _result(spec, architecture, positions)
    pairs = positions * architecture.experts_per_token
    wide = block_of(spec)(pairs * architecture.hidden_size * FLOAT32_BYTES)
    if layers.widens_router and not layers.has_float32_router:
        casts_back = spec.mixed_precision if trains_everything(spec) else both(autocast, spec.mixed_precision)
        return where(casts_back, narrow, wide)
    return wide if layers.has_float32_router else narrow


def _inner(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of one tensor [S, I]."""
    pairs = positions * architecture.experts_per_token
    return block_of(spec)(pairs * architecture.expert_width * element_bytes(spec).compute)


def _shared_result(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of the result of a shared expert that is weighed, [T, H]; 0 without one."""
    is_weighed = has_shared_expert(architecture) and layers_of(architecture).weighs_shared_expert
    return _stream(spec, architecture, positions) if is_weighed else 0


def _gate_input(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the input that the adapter of a shared expert's gate saves alone, [T, H]; 0 without such an adapter."""
    inputs = (SHARED_GATE, "gate_proj", "up_proj")
    parts = adapted_projections(architecture, spec.lora_target_modules or ())
    adapted = {part.name for part in parts if part.name in inputs}
    is_shared = has_bfloat16_adapters(spec) and len(adapted) > 1
    return 0 if SHARED_GATE not in adapted or is_shared else _stream(spec, architecture, positions)


def added_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of the result of the experts, [T, H], to which a shared expert is added; 0 without one."""
    is_added = has_shared_expert(architecture) and layers_of(architecture).adds_shared_expert
    return _stream(spec, architecture, positions) if is_added else 0


def _stream(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of one tensor [T, H]."""
    return block_of(spec)(positions * architecture.hidden_size * element_bytes(spec).compute)


def _indices(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    return _INDICES * block_of(spec)(positions * architecture.experts_per_token * INT64_BYTES)
