"""Bytes of the models: weights, adapters, copies, a reference model, a critic and reward models."""

from collections.abc import Sequence
from math import prod

from profiler.analytical.formulas.models.parameters import (
    active_parameter_count,
    base_tensors,
    expert_lora_tensors,
    idle_lora_tensors,
    is_mixture,
    lora_tensors,
    parameter_count,
    projections,
    scoring_model,
)
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of, outer_projections
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    is_unwrapped,
    lora_rank,
    outer_text,
    tensors_bytes,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import NOTHING, Count, Flag, Term, both, larger, where, whole_units
from profiler.analytical.formulas.sizes.rounding import Block, block_of, exact
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.domain.text import count_text
from profiler.domain.trials.trial import Dtype, Tuning

NF4_BLOCK = 64
"""Values of a matrix in nf4 that share a scale."""
_ABSMAX_BLOCK = 256
_NF4_CODE_VALUES = 16
_ABSMAX_CODE_VALUES = 256
SMALL_MATRIX = 2**22
"""Values of a matrix below which bitsandbytes chooses kernels by another table."""
_ROWS_OFSMALL_MATRIX = 1536
_ROWS_OF_LARGE_MATRIX = 256


def rope_buffer_bytes(architecture: DecoderShape) -> Count:
    """Return the bytes of the two float32 buffers of the rotary embedding, of head_dim / 2 values each.

    They are `inv_freq` and its original.
    """
    return 2 * (architecture.head_dim // 2) * FLOAT32_BYTES


def nf4_bytes(elements: Count, block: Block = exact, *, double_quant: bool = True) -> Count:
    """Return the bytes of one matrix in nf4, including its quantisation state.

    Two values per byte. With double quantisation an 8-bit scale per block of 64; a float32 scale per 256 of these; the
    two code tables (16 and 256 float32) and the offset. By hand, 64 x 256 = 16,384 values: 8,192 + 256 + 4 + 64 + 1,024
    + 4. Without, a float32 scale per block of 64 and one code table: 8,192 + 1,024 + 64.

    Source: `quantize_4bit` in bitsandbytes' `functional.py`, block size 64, `compress_statistics` as `double_quant`.
    """
    blocks = whole_units(elements, NF4_BLOCK)
    if not double_quant:
        return block(whole_units(elements, 2)) + block(FLOAT32_BYTES * blocks) + FLOAT32_BYTES * _NF4_CODE_VALUES
    scales_of_scales = whole_units(blocks, _ABSMAX_BLOCK)
    tables = _NF4_CODE_VALUES + _ABSMAX_CODE_VALUES + 1
    packed = block(whole_units(elements, 2)) + block(blocks)
    return packed + block(FLOAT32_BYTES * scales_of_scales) + FLOAT32_BYTES * tables


def widened_bytes(spec: TrialKeys, values: Count, rows: Count, *, autocast: Flag) -> Count:
    """Return the bytes that a product with a matrix of `values` values in nf4 makes in addition to its result.

    For many rows bitsandbytes widens the matrix to the type of the weights first; autocast copies it to bfloat16 if
    that is another type. With double quantisation the scales are widened too, and shifted. For few rows it depends on
    the card, so 0: a matrix of 2**22 values is read directly for at most 256 rows, a smaller one for at most 1,536.

    By hand, 4,096 x 1,024 in bfloat16, 300 rows: 8,388,608 B and 2 x 65,536 scales of 4 B.

    Source: `_gemm_4bit_use_custom_cuda` and `_dequant_linear_fallback` in bitsandbytes' `backends/cuda/ops.py`, 0.50.
    """
    read_directly = where(values < SMALL_MATRIX, _ROWS_OFSMALL_MATRIX, _ROWS_OF_LARGE_MATRIX)
    return where(rows > read_directly, widened_matrix_bytes(spec, values, autocast=autocast), 0)


def widened_matrix_bytes(spec: TrialKeys, values: Count, *, autocast: Flag) -> Count:
    """Return the bytes of `widened_bytes` where the matrix is not read directly."""
    block, sizes = block_of(spec), element_bytes(spec)
    scales = 2 * block(FLOAT32_BYTES * whole_units(values, NF4_BLOCK)) if spec.bnb_4bit_use_double_quant else 0
    cast = where(both(autocast, sizes.autocast_casts), block(values * sizes.compute), 0)
    return block(values * sizes.weight) + cast + scales


def weights(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the parameters and buffers of the policy, without adapters.

    With `qlora` the linear layers of the decoder are in nf4; embeddings, LM head, norms and biases keep `dtype`, or
    norms and biases are in float32 (`_widened_vectors_bytes`).

    By hand, qwen2.5-0.5b in bfloat16: 494,032,768 x 2 B + 256 B.
    """
    whole = _whole_model(spec, architecture, element_bytes(spec).weight)
    if spec.tuning is not Tuning.QLORA and is_mixture(architecture):
        return Term(whole.size, lambda: f"{whole.words()}, {count_text(active_parameter_count(architecture))} active")
    if spec.tuning is not Tuning.QLORA:
        return whole
    block, element = block_of(spec), element_bytes(spec).weight
    double_quant = spec.bnb_4bit_use_double_quant
    saved = _widened_vectors_bytes(spec, architecture)
    for kind in layer_kinds(architecture):
        unpacked = sum(block(part.weights * element) for part in projections(kind))
        packed = sum(nf4_bytes(part.weights, block, double_quant=double_quant) for part in projections(kind))
        saved = saved + (packed - unpacked) * kind.num_hidden_layers
    for outer in outer_projections(architecture):
        packed = nf4_bytes(outer.weights, block, double_quant=double_quant)
        saved = saved + packed - block(outer.weights * element)
    for part in architecture.idle:
        if part.layer:
            values = prod(part.shape)
            packed = nf4_bytes(values, block, double_quant=double_quant)
            saved = saved + (packed - block(values * element)) * part.copies

    def words() -> str:
        # Two values per byte, and the scales of a block.
        value = nf4_bytes(SMALL_MATRIX, double_quant=double_quant) / SMALL_MATRIX
        layers = "linear layers" if is_mixture(architecture) else "layers"
        return f"{layers} in nf4 ({value:.2f} B), the rest {element} B each"

    return Term(whole.size + saved, words)


def _widened_vectors_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return what norms and biases need in float32 beyond their other type (`Dtype.FLOAT32_NORMS`); 0 otherwise.

    By hand, qwen2.5-0.5b: 49 norms of 896 values, and 24 x (896 + 2 x 128) of biases: 71,552 x 2 B.

    Source: `prepare_model_for_kbit_training` of peft 0.21, which casts all that is not in 4 bits, and
    `peft_module_casting_to_bf16` in `trl/models/utils.py` of trl 0.14 to 0.25, which casts embedding and head back. trl
    0.25 has a function of its own, which leaves biases as they are: 0.01 % of a model.
    """
    if spec.dtype is not Dtype.FLOAT32_NORMS:
        return 0
    block, element = block_of(spec), element_bytes(spec).weight
    vectors = [group for group in base_tensors(architecture) if len(group.shape) == 1]
    wider = (block(group.elements * FLOAT32_BYTES) - block(group.elements * element) for group in vectors)
    return sum(group.copies * each for group, each in zip(vectors, wider, strict=True))


def _whole_model(spec: TrialKeys, architecture: DecoderShape, element: Count) -> Term:
    """Return the parameters in a type of `element` bytes, and the buffers."""
    tensors = base_tensors(architecture)
    return Term(
        _tensors_bytes(spec, tensors, element) + rope_buffer_bytes(architecture),
        lambda: f"{count_text(count_of(tensors))} parameters x {element} B{outer_text(spec, tensors)}",
    )


def _tensors_bytes(spec: TrialKeys, tensors: Sequence[TensorGroup], element: Count) -> Count:
    """Return the bytes of `tensors` with `element` bytes per value."""
    return tensors_bytes(spec, tensors, element)


def keeps_reference_model(spec: TrialKeys) -> Flag:
    """Return whether there is a separate reference model (`TrialSpec.keeps_reference_model`, also for columns)."""
    pairs = spec.logprobs.pair_loss
    needs_one = trains_everything(spec) or (pairs is not None and pairs.has_own_reference)
    return both(spec.beta != 0.0, needs_one and not spec.precompute_ref_log_probs)


def reference(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return a separate reference model, in the type of the policy; or a copy of adapters; 0 if there is none.

    trl creates one for `beta` > 0 unless an adapter can be switched off. LLaMA-Factory loads one that is not trained,
    in the type of autocast (`create_ref_model` and `load_model` of 0.9.5).

    Of a model that has adapters, trl keeps a frozen copy of these: `model.add_adapter("ref", ...)` in `__init__` of the
    trainers of 1.16. peft makes it in float32; trl casts only what is trained over 4-bit weights. By hand,
    qwen2.5-0.5b, rank 16 on all linear layers: 8,798,208 x 4 B.
    """
    if spec.ref_adapter:
        copied = _adapters(spec, architecture, FLOAT32_BYTES)
        return Term(copied.size, lambda: f"copied adapters, {copied.words()}")
    sizes, pairs = element_bytes(spec), spec.logprobs.pair_loss
    element = sizes.compute if pairs is not None and pairs.at_once else sizes.weight
    return _whole_model(spec, architecture, element).only_if(keeps_reference_model(spec))


def adapters(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the LoRA matrices.

    By hand, qwen2.5-0.5b, rank 16 on all linear layers: 8,798,208 x 4 B, or x 2 B over 4-bit weights.
    """
    if spec.tuning is Tuning.FULL:
        return NOTHING
    return _adapters(spec, architecture, element_bytes(spec).adapter)


def _adapters(spec: TrialKeys, architecture: DecoderShape, element: Count) -> Term:
    """Return adapters in a type of `element` bytes."""
    idle = idle_lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())
    tensors = (*_lora_tensors(spec, architecture), *idle)
    return Term(
        _tensors_bytes(spec, tensors, element),
        lambda: f"{count_text(count_of(tensors))} x {element} B, rank {lora_rank(spec)}",
    )


def _lora_tensors(spec: TrialKeys, architecture: DecoderShape) -> Sequence[TensorGroup]:
    return lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())


def autocast_cache_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the copies of weights that autocast makes during one forward and that are kept until its end.

    The weight of each linear layer that is not bfloat16 is cast once: trained float32 weights are kept in autocast's
    cache, others by the matrix product that saves them for backward. Float32 adapters are always cast and kept. The
    fused log-probabilities cast the LM head in chunks, so it is not included.

    With checkpointing, copies outside the cache are not kept: see `autocast_forward_bytes`.

    By hand, qwen2.5-0.5b with LoRA of rank 16 on all linear layers: 8,798,208 x 2 B = 17,596,416 B.
    """
    sizes = element_bytes(spec)
    copied: Count = 0
    if spec.tuning is not Tuning.QLORA:
        block = block_of(spec)
        copies = sum(
            kind.num_hidden_layers * sum(block(part.weights * sizes.compute) for part in projections(kind))
            for kind in layer_kinds(architecture)
        )
        copies = copies + sum(block(part.weights * sizes.compute) for part in outer_projections(architecture))
        copied = where(sizes.autocast_casts, copies, 0)
    return copied + _adapter_casts(spec, architecture)


def autocast_forward_bytes(spec: TrialKeys, architecture: DecoderShape, *, in_layer: bool) -> Count:
    """Return the bytes of the copies of weights at the end of a training forward.

    Args:
        spec: The trial.
        architecture: Its model.
        in_layer: Whether the last layer still runs, not the LM head.

    Autocast's cache keeps only copies of float32 weights that require a gradient. A copy of a frozen or a float16
    weight is kept as long as autograd saves it. Under checkpointing nothing of the first forward is saved: one copy at
    a time remains, the largest, and none after the last layer.

    By hand, qwen2.5-0.5b in float32 with LoRA of rank 16 and checkpointing: 8,798,208 x 2 B for the adapters and
    896 x 4,864 x 2 B for the largest matrix, 26,312,704 B.
    """
    sizes = element_bytes(spec)
    cached = autocast_cache_bytes(spec, architecture)
    if not spec.gradient_checkpointing:
        return cached
    adapters = _adapter_casts(spec, architecture)
    if spec.tuning is Tuning.QLORA:
        return adapters
    largest = larger(0, *(part.weights for kind in layer_kinds(architecture) for part in projections(kind)))
    copied = both(sizes.autocast_casts, in_layer)
    one = adapters + where(copied, block_of(spec)(largest * sizes.compute), 0)
    return where(sizes.autocast_caches, cached, one) if trains_everything(spec) else one


def autocast_scoring_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the copies that autocast's cache keeps while the policy or its reference scores.

    They are those of trained weights; the copy of a frozen or a float16 weight is freed after its product. A copy of
    adapters is trained too while it is switched on, and float32 over 4-bit weights. By hand, as in
    `autocast_cache_bytes`: 17,596,416 B.

    Source: `use_adapter` in `trl/trainer/utils.py` of trl 1.16, `set_adapter` in peft's `tuners/tuners_utils.py`.
    """
    if trains_everything(spec):
        copies = autocast_cache_bytes(spec, architecture) + head_copy_bytes(spec, architecture)
        return where(element_bytes(spec).caches_head, copies, 0)
    return _adapter_casts(spec, architecture, of_copy=spec.ref_adapter)


def ends_autocast(spec: TrialKeys) -> bool:
    """Return whether log-probabilities are made after autocast, which is around the model's forward alone.

    Models that FSDP and DeepSpeed shard have no autocast.
    """
    return spec.logprobs.ends_autocast and not is_unwrapped(spec.distributed_type)


def head_cast_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the whole LM head in the compute type of autocast; 0 if weights have that type.

    By hand, H = 8, V = 100, float32 under autocast: 100 x 8 x 2 = 1,600 B.
    """
    sizes = element_bytes(spec)
    head = block_of(spec)(architecture.vocab_size * architecture.hidden_size * sizes.compute)
    return where(sizes.casts_inputs, head, 0)


def head_copy_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the copy of the LM head that logits of all rows make under autocast and backward needs.

    The head may be frozen or trained. 0 for the fused head, which casts one chunk at a time (`cast_chunk_bytes`) and
    keeps none. By hand, as in `head_cast_bytes`: 1,600 B.
    """
    return head_cast_bytes(spec, architecture) if spec.logprobs.makes_all_logits else 0


def _adapter_casts(spec: TrialKeys, architecture: DecoderShape, *, of_copy: bool = False) -> Count:
    """Return the bytes of the copies of float32 adapters, or of their copy, in the compute type, without experts'.

    peft casts the adapters of experts itself, layer by layer (`merged_bytes`).
    """
    are_wide = not is_unwrapped(spec.distributed_type) if of_copy else not has_bfloat16_adapters(spec)
    if trains_everything(spec) or not are_wide:
        return 0
    element = element_bytes(spec).compute
    casts = _tensors_bytes(spec, _lora_tensors(spec, architecture), element)
    of_experts = expert_lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())
    return where(spec.mixed_precision, casts - _tensors_bytes(spec, of_experts, element), 0)


def autocast_saved_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the copies that forward leaves for backward: all of them, or with checkpointing none.

    Autocast's cache ends with forward. By hand, as in `autocast_cache_bytes` without checkpointing: 17,596,416 B.
    """
    return 0 if spec.gradient_checkpointing else autocast_cache_bytes(spec, architecture)


def autocast_more_bytes(spec: TrialKeys, architecture: DecoderShape, *, in_layer: bool) -> Count:
    """Return the bytes of the copies of `autocast_forward_bytes` that forward does not leave for backward.

    By hand, as in `autocast_forward_bytes`, 26,312,704 B; 0 without checkpointing.
    """
    return autocast_forward_bytes(spec, architecture, in_layer=in_layer) - autocast_saved_bytes(spec, architecture)


def recomputed_copies_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the copies that the recomputation of the last layer makes; 0 without checkpointing.

    By hand, as in `autocast_cache_bytes` with checkpointing: 17,596,416 / 24 = 733,184 B.
    """
    if not spec.gradient_checkpointing:
        return 0
    last = layer_kinds(architecture)[-1]
    return autocast_cache_bytes(spec, last) // last.num_hidden_layers


def critic_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of a critic: those of the decoder, and weight and bias of a head of one value."""
    return (*base_tensors(scoring_model(architecture)), TensorGroup(shape=(1,), copies=1))


def critic_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters of a critic: the decoder, and a head of one value with its bias.

    By hand, toy (V = 100, H = 8, tied): its parameters and 9. Untied: 800 fewer for its head, and 9 more.

    Source: transformers' `GenericForTokenClassification`, whose `score` is an `nn.Linear` with bias; trl's and verl's
    critics are of this class (`load_valuehead_model` in verl).
    """
    return count_of(critic_tensors(architecture))


def critic(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the critic's parameters, in the type of the policy, and its buffers; 0 without a critic.

    By hand, qwen2.5-0.5b in bfloat16, whose head is tied: 494,032,768 + 897 values x 2 B + 256 B = 988,067,586 B.
    """
    if not spec.critic:
        return NOTHING
    size = critic_gradients(spec, architecture).size + rope_buffer_bytes(architecture)
    return Term(size, lambda: f"{_critic_text(architecture)} parameters x {element_bytes(spec).weight} B")


def critic_gradients(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return all gradients of the critic: one value per parameter, in its type; 0 without a critic."""
    if not spec.critic:
        return NOTHING
    block, element = block_of(spec), element_bytes(spec).weight
    size = sum(group.copies * block(group.elements * element) for group in critic_tensors(architecture))
    return Term(size, lambda: f"{_critic_text(architecture)} x {element} B")


def _critic_text(architecture: DecoderShape) -> str:
    return count_text(critic_count(architecture))


def reward_models(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return all reward models of the trial, in the type of the policy's weights.

    By hand, qwen2.5-0.5b in bfloat16, whose head is tied: 494,032,768 + 896 values x 2 B + 256 B = 988,067,584 B.
    """
    models = architecture.reward_models
    if not models:
        return NOTHING
    block, element = block_of(spec), element_bytes(spec).weight
    groups = [group for model in models for group in base_tensors(scoring_model(model))]
    size = sum(group.copies * block(group.elements * element) for group in groups)
    buffers = sum(rope_buffer_bytes(model) for model in models)
    return Term(size + buffers, lambda: f"{count_text(sum(map(parameter_count, models)))} parameters x {element} B")
