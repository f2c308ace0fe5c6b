"""Transient memory of one decoder layer in forward and backward of training, in addition to what it saves."""

from collections.abc import Sequence

from profiler.analytical.formulas.layers.decoder_layer import (
    ATTENTION_INPUTS,
    MLP_INPUTS,
    adapted_parts,
    attention_inputs_saved_bytes,
    copied_output_bytes,
    layer_input_bytes,
    layer_saved_bytes,
    mlp_saved_bytes,
    saved_after_attention_bytes,
    saves_output,
)
from profiler.analytical.formulas.layers.eager_attention import (
    drops_inputs,
    input_mask_bytes,
    makes_scores,
    saved_scores_bytes,
    scores_backward_bytes,
)
from profiler.analytical.formulas.layers.experts import (
    added_bytes,
    after_mlp_bytes,
    experts_backward_bytes,
    experts_forward_bytes,
    experts_saved_bytes,
    recomputed_gate_bytes,
    sum_norm_bytes,
    until_mlp_bytes,
)
from profiler.analytical.formulas.layers.layer_without_gradient import (
    adapter_result_bytes,
    down_input_bytes,
    latent_forward_bytes,
    layer_without_gradient_bytes,
    recomputed_up_bytes,
)
from profiler.analytical.formulas.layers.linear_attention import linear_backward_bytes, linear_forward_bytes
from profiler.analytical.formulas.models.parameters import (
    is_mixture,
    key_width,
    layers_of,
    mlp_width,
    norms_after,
    norms_experts,
    output_width,
    query_width,
)
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    linear_output_bytes,
    norm_saved_bytes,
    saved_input_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import recomputed_copies_bytes
from profiler.analytical.formulas.sizes.quantities import NOTHING, Count, Flag, Term, either, larger, negated, where
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.domain.trials.trial import Tuning

_NORM_TENSORS = 5
"""Float32 [T, H] at the peak of a norm's backward."""


def mlp_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of the MLP's backward in addition to the saved activations of the layer.

    The larger of two: the gradients of the product, of the activated gate and of up, each [T, I], after the saved
    input of down is freed; or, before that, the gradient of the product with the new gradient of down's weight, or with
    that weight unpacked from 4 bits (`MatMul4Bit.backward`). In addition the gradient of the residual stream, [T, H],
    which is also that of the MLP's result; if this is multiplied by a number, its gradient is another, until down's
    backward is done (Granite).
    Liger writes the gradients of gate and up over their values (`swiglu_backward`), so the second is the larger; but if
    down has an adapter, the gradients of its input by the weight and by the adapter, and their sum, are three as well.
    Of a mixture, the experts come before their shared expert, which has freed what they saved; or after it, if it is
    added to them.
    """
    stream, dense = layer_input_bytes(spec, architecture, batch), _dense_backward_bytes(spec, architecture, batch)
    if not is_mixture(architecture):
        return stream + dense - until_mlp_bytes(spec, architecture, batch.positions)
    experts = experts_backward_bytes(spec, architecture, batch.positions)
    if layers_of(architecture).adds_shared_expert:
        return stream + larger(experts - _shared_saved_bytes(spec, architecture, batch.positions), dense)
    dense = dense - experts_saved_bytes(spec, architecture, batch.positions)
    if not norms_experts(architecture):
        return stream + larger(experts, dense)
    # The norm of the sum has freed what it saved, and the gradient of the MLP's result is a tensor of its own.
    return stream + larger(experts, dense + stream) - sum_norm_bytes(spec, architecture, batch.positions)


def _shared_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a shared expert saves that is added to the others: as an MLP, whose linear layers have no adapter.

    By hand, T = 10, I = 16 in bfloat16: 3 x 320 B, and trained 4 x 320 B.
    """
    saved = mlp_saved_bytes(spec, architecture, positions) - experts_saved_bytes(spec, architecture, positions)
    product = block_of(spec)(positions * mlp_width(architecture) * element_bytes(spec).compute)
    return saved + (product if trains_everything(spec) else 0)


def _scaled_gradient_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the gradient of what is multiplied before it is added to the residual stream, [T, H]; 0 without that."""
    return layer_input_bytes(spec, architecture, batch) if layers_of(architecture).scales_stream else 0


def _dense_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of the backward of the MLP's linear layers, without the gradients of the residual stream."""
    sizes, inner, hidden = element_bytes(spec), mlp_width(architecture), architecture.hidden_size
    block = block_of(spec)
    wide = block(batch.positions * inner * linear_output_bytes(spec))
    weight = block(inner * hidden * sizes.weight)
    at_down = wide + _scaled_gradient_bytes(spec, architecture, batch)
    if trains_everything(spec):
        return at_down + weight if spec.use_liger_kernel else larger(2 * wide, at_down + weight)
    unpacked = weight if spec.tuning is Tuning.QLORA else 0
    dropping = _dropout_backward_bytes(spec, architecture, batch.positions)
    if spec.use_liger_kernel and not adapted_parts(spec, architecture, ("down_proj",)):
        return at_down + unpacked
    return larger(3 * wide - _down_saved_bytes(spec, architecture, batch.positions), at_down + unpacked, dropping)


def _dropout_backward_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the dropout of down's adapter needs in backward: the gradients of its result and of its input.

    Both have the type of that input, [T, I]; what the adapter saved of it is freed, and the mask is there. Negative or
    0 if there is no such dropout. By hand, T = 10, I = 16, float32 adapters under autocast: 160 x (2 x 4 - 2) = 960 B.
    """
    sizes, values, block = element_bytes(spec), positions * mlp_width(architecture), block_of(spec)
    if not adapted_parts(spec, architecture, ("down_proj",)):
        return 0
    # Over 4 bits it drops its input in that input's own type under autocast, and casts it afterwards.
    given = where(spec.mixed_precision, linear_output_bytes(spec), sizes.adapter)
    dropped = given if spec.tuning is Tuning.QLORA else sizes.adapter
    freed = _down_saved_bytes(spec, architecture, positions) - input_mask_bytes(spec, values)
    return where(drops_inputs(spec), 2 * block(values * dropped) - freed, 0)


def _down_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the adapter of down saves of its input, with the mask of its dropout; 0 if down has none."""
    values = positions * mlp_width(architecture)
    if not adapted_parts(spec, architecture, ("down_proj",)):
        return 0
    return block_of(spec)(values * saved_input_bytes(spec)) + input_mask_bytes(spec, values)


def attention_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of attention's backward in addition to the saved activations of the layer, if it makes scores.

    The activations of the MLP, the norms after attention's scores and the output projection are freed by then; the
    gradients of the values and of the residual stream are there. Negative or 0 if the backward of the MLP is higher,
    and for other kernels, whose scratch is left out, but those of latent attention, whose heads can be wider than the
    MLP: the gradients of queries, keys, values and output, and cuDNN's sum of the gradients of queries in float32, with
    one number per row.

    By hand, of latent attention, T = 10, 2 heads of 4 + 2, values of 3, in bfloat16: 10 x (2 x (12 + 6) x 2 +
    (12 + 2) x 4) B, less what is freed.
    """
    sizes, positions = element_bytes(spec), batch.positions
    freed = after = saved_after_attention_bytes(spec, architecture, positions)
    output = block_of(spec)(positions * output_width(architecture) * sizes.compute)
    stream = layer_input_bytes(spec, architecture, batch)
    of_kernel: Count = 0
    if architecture.latent is not None:
        queries = block_of(spec)(positions * query_width(architecture) * sizes.compute)
        summed = positions * (query_width(architecture) + architecture.num_attention_heads)
        of_kernel = stream + 2 * (queries + output) + block_of(spec)(summed * FLOAT32_BYTES) - freed
        of_kernel = of_kernel - copied_output_bytes(spec, architecture, batch)
    freed = freed + where(saves_output(spec, architecture), output, 0)
    transient = scores_backward_bytes(spec, architecture, batch) - saved_scores_bytes(spec, architecture, batch)
    if architecture.linear is not None:
        keeps = saves_output(spec, architecture)
        return stream - after + linear_backward_bytes(spec, architecture, batch, keeps_output=keeps)
    added = transient + stream - freed
    return where(makes_scores(spec, architecture, batch, autocast=spec.mixed_precision), added, of_kernel)


def norm_backward(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    """Return the peak of a norm's backward in addition to the saved activations: five float32 [T, H].

    The gradient of the product, the three factors of the gradient of the square, and that gradient (`pow_backward` in
    torch's `FunctionsManual.cpp`). The normalised input, which a trained weight saves, is freed before them. Liger
    writes the gradient over that of the output.

    By hand, T = 10, H = 8, adapters: 5 x 320 B; a trained bfloat16 weight frees 160 B of them.
    """
    if spec.use_liger_kernel:
        return NOTHING
    block, values = block_of(spec), batch.positions * architecture.hidden_size
    element = FLOAT32_BYTES if layers_of(architecture).has_float32_norms else element_bytes(spec).stream
    freed = block(values * element) if trains_everything(spec) else 0
    size = _NORM_TENSORS * block(values * FLOAT32_BYTES) - freed
    return Term(size, lambda: f"{int(size) / int(values * FLOAT32_BYTES):.3g} float32 T x H")


def last_norm_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of the backward of the norm after the MLP in addition to the saved activations of the layer.

    What the layer saved is all there, and the gradient of the residual stream, [T, H]. 0 without such a norm.

    By hand, T = 10, H = 8 in bfloat16, adapters: 160 B + 5 x 320 B.
    """
    found = layer_input_bytes(spec, architecture, batch) + norm_backward(spec, architecture, batch).size
    return where(norms_after(architecture) > 0, found, 0)


def head_norm_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the peak of the backward of the norm over queries in addition to what the layer saves; 0 or less without.

    Its input and five float32 of the width of all queries; the layer has freed all but its first norm and the inputs of
    linear layers. The gradients of the stream and of these inputs are there, or, if norms come after all projections,
    those of keys and values. By hand, T = 10, H = 8, 2 heads of 8, full: 6 x 640 + 80 + 160 + 520 + 2 x 160 B.
    """
    block, positions, layers = block_of(spec), batch.positions, layers_of(architecture)
    stream, compute = layer_input_bytes(spec, architecture, batch), element_bytes(spec).compute
    made = (1 + _NORM_TENSORS) * block(positions * query_width(architecture) * FLOAT32_BYTES) + stream
    made = made + block(positions * architecture.num_attention_heads * FLOAT32_BYTES)
    inputs = attention_inputs_saved_bytes(spec, architecture, positions)
    if layers.normalises_after_values:
        made = made + inputs + 2 * block(positions * key_width(architecture) * compute)
    else:
        one = block(positions * architecture.hidden_size * compute)
        made = made + stream + (one if trains_everything(spec) else inputs)
    if layers.has_input_norms:
        width, in_float32 = architecture.hidden_size, layers.has_float32_norms
        made = made + norm_saved_bytes(spec, positions, width, in_float32=in_float32)
    is_normed = architecture.qk_norm if not spec.use_liger_kernel else False
    return where(is_normed, made - layer_saved_bytes(spec, architecture, batch), 0)


def down_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what a layer's forward needs at the down projection in addition to what it saves.

    The residual stream and the input of the MLP, [T, H] each, if it is not saved. For a float32 adapter, the product,
    [T, I], is cast to float32 before autocast casts it back to the type that is saved.
    """
    inner = down_input_bytes(spec, architecture, batch)
    if is_mixture(architecture):
        experts = experts_forward_bytes(spec, architecture, batch.positions)
        if layers_of(architecture).adds_shared_expert:
            experts = experts - _shared_saved_bytes(spec, architecture, batch.positions)
            inner = larger(inner + added_bytes(spec, architecture, batch.positions), experts)
        else:
            # The experts come after their shared expert, and have saved nothing when that ends.
            unsaved = experts_saved_bytes(spec, architecture, batch.positions)
            inner = larger(inner - unsaved - sum_norm_bytes(spec, architecture, batch.positions), experts)
    inner = inner - after_mlp_bytes(spec, architecture, batch.positions)
    return layer_input_bytes(spec, architecture, batch) + _mlp_input_bytes(spec, architecture, batch) + inner


def _mlp_input_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the input of the MLP, [T, H], if it is neither the residual stream nor what its linear layers save."""
    if not layers_of(architecture).has_input_norms:
        return 0
    return where(_saves_inputs(spec, architecture, MLP_INPUTS), 0, layer_input_bytes(spec, architecture, batch))


def recomputation_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the recomputation of a layer under checkpointing needs in addition to what the layer saves.

    The larger of two instants, with the incoming gradient, the residual stream and the input of the MLP, [T, H] each.

    - At down: as the first forward, and the result of down, [T, H]. If down has an adapter, its gradients at the
      scaling come before the recomputation (`_scaling_gradient_bytes`). Of a mixture, at the experts, whose forward
      includes their result; the gate of the shared expert starts the recomputation before the scaling.
    - At up: `recomputed_up_bytes`. Experts have saved nothing by then.

    A stream that the layer saves before the MLP is counted there. A norm after the MLP starts the recomputation, and it
    ends with that norm: `_until_last_norm_bytes` in place of the scaling.
    """
    hidden = layer_input_bytes(spec, architecture, batch)
    at_up = 2 * hidden + _mlp_input_bytes(spec, architecture, batch)
    at_up = at_up + recomputed_up_bytes(spec, architecture, batch.positions)
    at_up = at_up - _down_saved_bytes(spec, architecture, batch.positions)  # which is not there yet
    at_up = at_up - after_mlp_bytes(spec, architecture, batch.positions)
    at_down = hidden + down_forward_bytes(spec, architecture, batch)
    if layers_of(architecture).adds_shared_expert and is_mixture(architecture):
        at_up = at_up + added_bytes(spec, architecture, batch.positions)
    elif is_mixture(architecture):
        at_up = at_up - experts_saved_bytes(spec, architecture, batch.positions)
        at_up = at_up - sum_norm_bytes(spec, architecture, batch.positions)
    else:
        has_last_norm = norms_after(architecture) > 0
        scaling = _scaling_gradient_bytes(spec, architecture, batch)
        before, until_norm = _until_last_norm_bytes(spec, architecture, batch)
        at_up = at_up + where(has_last_norm, before, scaling)
        at_down = at_down + hidden + where(has_last_norm, before + until_norm, scaling)
    if layers_of(architecture).has_biased_experts:
        at_gate = recomputed_gate_bytes(spec, architecture, batch.positions)
        at_down = larger(at_down, 2 * hidden + _mlp_input_bytes(spec, architecture, batch) + at_gate)
    scaled = _scaled_gradient_bytes(spec, architecture, batch)
    return larger(at_down, at_up) + scaled - where(saves_stream(spec, architecture, MLP_INPUTS), hidden, 0)


def layer_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the last layer's forward needs in addition to the saved activations of all layers.

    The loop over layers references the embeddings and the layer's input. With checkpointing, the layer saves nothing,
    and these two are among the saved inputs; without, the layers may save them as they are.
    """
    embeddings = block_of(spec)(batch.positions * architecture.hidden_size * element_bytes(spec).outer)
    referenced = embeddings + layer_input_bytes(spec, architecture, batch)
    if spec.gradient_checkpointing:
        autocast = spec.mixed_precision
        return layer_without_gradient_bytes(spec, architecture, batch, adapted=True, autocast=autocast) - referenced
    unsaved = where(saves_stream(spec, architecture, ATTENTION_INPUTS), 0, referenced)
    peak = down_forward_bytes(spec, architecture, batch)
    if architecture.latent is not None or architecture.linear is not None:
        peak = larger(peak, _attention_forward_bytes(spec, architecture, batch))
    return peak + unsaved


def layer_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what the last layer's backward needs in addition to the saved activations of all layers.

    With checkpointing, the layer is recomputed first.
    """
    mlp = mlp_backward_bytes(spec, architecture, batch)
    of_heads = head_norm_backward_bytes(spec, architecture, batch)
    norm = larger(last_norm_backward_bytes(spec, architecture, batch), of_heads)
    backward = larger(mlp, attention_backward_bytes(spec, architecture, batch), norm)
    if not spec.gradient_checkpointing:
        return backward
    # A stream that the layer saves as it is, is the input that checkpointing keeps.
    kept = where(saves_stream(spec, architecture, ATTENTION_INPUTS), layer_input_bytes(spec, architecture, batch), 0)
    recomputed = layer_saved_bytes(spec, architecture, batch) - kept + recomputed_copies_bytes(spec, architecture)
    recomputation = recomputation_bytes(spec, architecture, batch)
    if architecture.linear is not None:
        # The gradient of the layer's result waits, and those at the scaling of down's adapter.
        at_rule = layer_input_bytes(spec, architecture, batch) + _attention_forward_bytes(spec, architecture, batch)
        at_rule = at_rule + (0 if is_mixture(architecture) else _scaling_gradient_bytes(spec, architecture, batch))
        recomputation = larger(recomputation, at_rule)
    return recomputed + larger(backward, recomputation)


def _attention_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what latent or linear attention needs in addition to what its layer saves until the end of the MLP."""
    kept = _saves_inputs(spec, architecture, ATTENTION_INPUTS)
    normed = where(kept, 0, layer_input_bytes(spec, architecture, batch))
    if architecture.latent is not None:
        return normed + latent_forward_bytes(spec, architecture, batch)
    made = linear_forward_bytes(spec, architecture, batch, keeps_output=saves_output(spec, architecture))
    return normed + made - saved_after_attention_bytes(spec, architecture, batch.positions)


def _until_last_norm_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> tuple[Count, Count]:
    """Return what recomputation needs for the norm after the MLP, before its input is there, and at the end of down.

    Before: the gradient in float32 if the norm ends in it, less what the norm saves. At the end: the results of down's
    adapter. By hand, T = 10, H = 8 in bfloat16, adapters: -(320 + 40) B; in Gemma 320 - 360 = -40 B.
    """
    positions, hidden, layers = batch.positions, architecture.hidden_size, layers_of(architecture)
    in_float32 = layers.has_float32_norms
    narrow, is_widened = element_bytes(spec).stream < FLOAT32_BYTES, in_float32 and not layers.scales_layers
    widened = where(narrow, block_of(spec)(positions * hidden * FLOAT32_BYTES), 0) if is_widened else 0
    before = widened - norm_saved_bytes(spec, positions, hidden, in_float32=in_float32)
    if not adapted_parts(spec, architecture, ("down_proj",)):
        return before, 0
    return before, adapter_result_bytes(spec, positions * hidden, autocast=spec.mixed_precision)


def saves_stream(spec: TrialKeys, architecture: DecoderShape, names: Sequence[str]) -> Flag:
    """Return whether a layer saves the residual stream itself as the input of the linear layers `names`.

    A norm before them saves its input itself if the stream is float32, or by Liger's kernel in every type; in other
    types it saves a copy. Without such a norm the linear layers may save it.
    """
    if layers_of(architecture).has_input_norms:
        return True if spec.use_liger_kernel else element_bytes(spec).stream == FLOAT32_BYTES
    return _saves_inputs(spec, architecture, names)


def _saves_inputs(spec: TrialKeys, architecture: DecoderShape, names: Sequence[str]) -> Flag:
    """Return whether linear layers save the tensor that they get: none casts it, and no adapter drops a part of it."""
    sizes = element_bytes(spec)
    if trains_everything(spec):
        return negated(sizes.casts_inputs)
    if not adapted_parts(spec, architecture, names):
        return False
    return negated(either(sizes.adapter_casts, drops_inputs(spec)))


def _scaling_gradient_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return the gradients at the scaling of down's adapter, [T, H]; 0 if down has none.

    That of the scaled result. Where it is wider than the layer's result, also that of the layer's result, because their
    sum was narrowed (`Linear.forward` in peft's `lora/layer.py`).
    """
    if not adapted_parts(spec, architecture, ("down_proj",)):
        return 0
    block, sizes, values = block_of(spec), element_bytes(spec), batch.positions * architecture.hidden_size
    low = where(spec.mixed_precision, sizes.compute, sizes.adapter)
    return block(values * low) + where(low > sizes.compute, block(values * sizes.compute), 0)
