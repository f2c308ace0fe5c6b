"""The trained parameters of a trial, the bytes of each kind of value, and those of logits that exist at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from profiler.analytical.formulas.models.parameters import (
    expert_lora_tensors,
    layer_lora_tensors,
    layer_tensors,
    layers_of,
    lora_tensors,
    reached_tensors,
)
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.sizes.quantities import (
    Coded,
    Count,
    Flag,
    Term,
    Words,
    both,
    either,
    holds,
    larger,
    looked_up,
    negated,
    where,
)
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, layer_kinds
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.text import count_text
from profiler.domain.trials.trial import SHARDED, DistributedType, Dtype, TrialSpec, Tuning

_DTYPE_BYTES = {**dict.fromkeys(Dtype, 2), Dtype.FLOAT32: 4}

BFLOAT16_BYTES = 2
FLOAT16_BYTES = 2
FLOAT32_BYTES = 4
INT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ElementBytes:
    """Bytes of one value, by kind."""

    weight: Count
    """Weights of the model, and the residual stream without autocast."""
    outer: Count
    """Embeddings, the LM head and norms: as other weights, or float32 (`Dtype.BFLOAT16_LAYERS`)."""
    stream: Count
    """The residual stream under autocast: as the weights, but float32 for other 16-bit weights (`element_bytes`)."""
    compute: Count
    """Inputs and outputs of matrix products: 16 bits under autocast, else the type of the weights."""
    adapter: int
    """LoRA matrices."""
    output: Count
    """Outputs of the model, which accelerate's `convert_outputs_to_fp32` casts to float32 under autocast.

    Not under FSDP 2 and DeepSpeed, whose models accelerate does not wrap.
    """
    log_softmax: Count
    """Log-softmax of all logits under autocast (`logprobs=full`); DeepSpeed has none."""
    autocast_casts: Flag
    """Whether autocast copies the weights of layers, because they are not in its compute type."""
    casts_inputs: Flag
    """Whether it copies the LM head, and the inputs of linear layers, for each of them."""
    caches_head: Flag
    """Whether it keeps that copy of the head until it ends."""
    adapter_casts: Flag
    """Whether adapters, or autocast for them, copy their inputs to another type."""
    autocast_caches: Flag
    """Whether autocast keeps the copies of trained weights until it ends, as it does for float32 weights."""


def element_bytes(spec: TrialKeys) -> ElementBytes:
    """Return the bytes of one value of each kind.

    Float16 weights under autocast to bfloat16, or the reverse: a linear layer returns autocast's type, and its sum with
    the stream in the other one is float32. Only the embedding keeps the type of the weights.

    Adapters: peft's `autocast_adapter_dtype` keeps them in float32 over half-precision weights. Over 4-bit weights
    trl's trainer casts them to bfloat16 (`GRPOTrainer.__init__`). FSDP gathers them in the type of the computation
    (`MixedPrecisionPolicy.param_dtype`), which is bfloat16. An input of the adapter's type is not
    copied (`_cast_input_dtype` in peft), unless autocast casts it, which it does with each float32 input of a product.

    By hand, float16 under autocast to bfloat16: weight 2, stream 4, compute 2 B, and so next to float32 norms.

    Outputs: FSDP casts them to its `output_dtype`, bfloat16 (`_cast_output_dtype` in torch's `_fsdp_state.py`;
    accelerate's `set_mixed_precision`), and DeepSpeed computes in bfloat16 without autocast (`native_amp` of
    accelerate's `Accelerator`). A log-softmax of all logits has their type, unless it is made under autocast.

    Source of what is cached: `cached_cast` in `aten/src/ATen/autocast_mode.cpp` (float32 leaves that require a
    gradient).
    """
    dtype, bf16, fp16 = spec.dtype, spec.bf16, spec.fp16
    if isinstance(bf16, bool) and isinstance(fp16, bool) and not isinstance(dtype, Coded):
        return _element_bytes_of_one(dtype, bf16, fp16, spec.tuning, spec.distributed_type)
    return _element_bytes(dtype, bf16, fp16, spec.tuning, spec.distributed_type)


def _element_bytes(
    dtype: Dtype | Coded[Dtype], bf16: Flag, fp16: Flag, tuning: Tuning, distributed_type: DistributedType
) -> ElementBytes:
    weight = looked_up(dtype, _DTYPE_BYTES.__getitem__)
    autocast = either(bf16, fp16)
    compute = where(autocast, BFLOAT16_BYTES, weight)
    widened_output = where(autocast, FLOAT32_BYTES, weight)
    is_cast = either(
        both(bf16, holds(dtype, lambda dtype: dtype not in (Dtype.BFLOAT16, Dtype.FLOAT32_NORMS))),
        both(fp16, holds(dtype, lambda dtype: dtype is not Dtype.FLOAT16)),
    )
    is_wide = holds(dtype, lambda dtype: dtype is Dtype.FLOAT32)
    only_layers = holds(dtype, lambda dtype: dtype is Dtype.BFLOAT16_LAYERS)
    widened = either(both(is_cast, negated(is_wide)), holds(dtype, lambda dtype: dtype is Dtype.FLOAT32_NORMS))
    in_bfloat16 = _keeps_bfloat16_adapters(tuning, distributed_type, dtype)
    casts = holds(dtype, lambda dtype: dtype is not (Dtype.BFLOAT16 if in_bfloat16 else Dtype.FLOAT32))
    if not in_bfloat16:
        casts = either(casts, autocast)
    return ElementBytes(
        weight=weight,
        outer=where(only_layers, FLOAT32_BYTES, weight),
        stream=where(widened, FLOAT32_BYTES, weight),
        autocast_casts=both(is_cast, negated(only_layers)),
        casts_inputs=is_cast,
        caches_head=both(autocast, either(is_wide, only_layers)),
        adapter_casts=casts,
        autocast_caches=both(autocast, is_wide),
        compute=compute,
        adapter=BFLOAT16_BYTES if in_bfloat16 else FLOAT32_BYTES,
        output=compute if is_unwrapped(distributed_type) else widened_output,
        log_softmax=compute if distributed_type is DistributedType.DEEPSPEED else widened_output,
    )


_element_bytes_of_one = cache(_element_bytes)
"""Of one configuration. One estimate asks some 150 times, which took a third of its time."""


def is_unwrapped(distributed_type: DistributedType) -> bool:
    """Return whether accelerate leaves the forward of the model as it is."""
    return distributed_type in SHARDED


def _keeps_bfloat16_adapters(tuning: Tuning, distributed_type: DistributedType, dtype: object) -> bool:
    return (tuning is Tuning.QLORA and dtype is not Dtype.FLOAT32_NORMS) or is_unwrapped(distributed_type)


def has_bfloat16_adapters(spec: TrialKeys) -> bool:
    """Return whether layers compute with adapters in bfloat16, so that nothing is cast for them.

    Over 4-bit weights they are kept so, FSDP gathers its float32 shards so, and DeepSpeed casts the whole model.
    """
    return _keeps_bfloat16_adapters(spec.tuning, spec.distributed_type, spec.dtype)


def saved_input_bytes(spec: TrialKeys) -> Count:
    """Return the bytes of one value of an input that an adapter saves: of the adapter, or what autocast makes of it."""
    sizes = element_bytes(spec)
    return sizes.adapter if has_bfloat16_adapters(spec) else where(spec.mixed_precision, sizes.compute, sizes.adapter)


def trains_everything(spec: TrialKeys) -> bool:
    """Return whether all parameters are trained, not only adapters."""
    return spec.tuning is Tuning.FULL


def lora_rank(spec: TrialKeys) -> Count:
    """Return the rank of the adapters; 0 if there are none."""
    return 0 if spec.lora_rank is None else spec.lora_rank


def computed_bytes(spec: TrialKeys, *, autocast: Flag) -> Count:
    """Return the bytes of one value that a matrix product returns, with autocast around the model or not.

    In full fine-tuning autocast also wraps the forward that generation calls. By hand, LoRA over float32 weights with
    `bf16`: 2 B under autocast, 4 B in the rollout.
    """
    sizes = element_bytes(spec)
    return sizes.compute if trains_everything(spec) else where(autocast, sizes.compute, sizes.weight)


def computes_in_bfloat16(spec: TrialKeys, *, autocast: Flag) -> Flag:
    """Return whether matrix products are in bfloat16, with autocast around the model or not (as `computed_bytes`)."""
    active = True if trains_everything(spec) else autocast
    weights = holds(spec.dtype, lambda dtype: dtype is Dtype.BFLOAT16)
    return either(both(active, spec.bf16), both(weights, negated(both(active, spec.fp16))))


def stream_bytes(spec: TrialKeys, *, autocast: Flag) -> Count:
    """Return the bytes of one value of the residual stream, with autocast or not (as `computed_bytes`).

    By hand, LoRA over float16 weights with `bf16`: 4 B under autocast, 2 B in the rollout.
    """
    sizes = element_bytes(spec)
    return sizes.stream if trains_everything(spec) else where(autocast, sizes.stream, sizes.weight)


def linear_output_bytes(spec: TrialKeys, *, autocast: Flag = True) -> Count:
    """Return the bytes of one value that a linear layer returns.

    As `computed_bytes`, but 4-bit layers return the type of their input.

    Source: `Linear4bit.forward` in bitsandbytes, `.to(inp_dtype)`.
    """
    if spec.tuning is Tuning.QLORA:
        return stream_bytes(spec, autocast=autocast)
    return computed_bytes(spec, autocast=autocast)


def trained_tensors(spec: TrialKeys, architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters that the optimizer updates: those with a gradient."""
    if trains_everything(spec):
        return reached_tensors(architecture)
    return lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())


def bfloat16_tensors(spec: TrialSpec, architecture: Architecture) -> tuple[TensorGroup, ...]:
    """Return the trained parameters in bfloat16: weights, adapters over 4 bits, and the head of a reward model.

    By hand, LoRA in bfloat16 of a decoder: none; of a reward model of H = 8: the head, [1, 8].
    """
    weights = spec.dtype is Dtype.BFLOAT16
    if trains_everything(spec):
        return trained_tensors(spec, architecture) if weights else ()
    is_narrow = spec.tuning is Tuning.QLORA and has_bfloat16_adapters(spec)
    adapters = trained_tensors(spec, architecture) if is_narrow else ()
    head = TensorGroup(shape=(1, architecture.hidden_size), copies=1)
    return adapters if spec.recipe.facts.has_lm_head or not weights else (*adapters, head)


def trained_element_bytes(spec: TrialKeys) -> Count:
    """Return the bytes of one trained parameter, which are those of its gradient."""
    sizes = element_bytes(spec)
    return sizes.weight if trains_everything(spec) else sizes.adapter


def trainable_parameter_count(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the number of parameters that the optimizer updates."""
    return count_of(trained_tensors(spec, architecture))


def all_gradients(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return all `.grad`: one value per trained parameter, in its type.

    By hand, qwen2.5-0.5b full in bfloat16: 494,032,768 x 2 B = 988,065,536 B.
    """
    element, tensors = trained_element_bytes(spec), trained_tensors(spec, architecture)
    size = tensors_bytes(spec, tensors, element)
    return Term(size, lambda: f"{count_text(count_of(tensors))} x {element} B{outer_text(spec, tensors)}")


def tensors_bytes(spec: TrialKeys, tensors: Sequence[TensorGroup], element: Count) -> Count:
    """Return the bytes of tensors, `element` of a value, unless only layers have such weights.

    By hand, a norm of 896 values, 2 B each: 1,792 B; with `bfloat16_layers` 3,584 B.
    """
    block, sizes = block_of(spec), element_bytes(spec)
    outer = element + sizes.outer - sizes.weight if trains_everything(spec) else element
    return sum(group.copies * block(group.elements * (outer if group.is_outer else element)) for group in tensors)


def outer_text(spec: TrialKeys, tensors: Sequence[TensorGroup]) -> str:
    """Return the words of the values that are in float32 although `tensors` are not; empty if there are none."""
    if element_bytes(spec).outer == element_bytes(spec).weight or not trains_everything(spec):
        return ""
    return f", {count_text(count_of([group for group in tensors if group.is_outer]))}: {FLOAT32_BYTES} B"


def layer_gradients_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the gradients of all layers of a model.

    By hand, qwen2.5-0.5b full in bfloat16: 24 x 14,912,384 x 2 B = 715,794,432 B.
    """
    block, element = block_of(spec), trained_element_bytes(spec)
    if trains_everything(spec):
        kinds = layer_kinds(architecture)
        return sum(kind.num_hidden_layers * tensors_bytes(spec, layer_tensors(kind), element) for kind in kinds)
    rank, targets = lora_rank(spec), spec.lora_target_modules or ()
    adapters = (
        *layer_lora_tensors(architecture, rank, targets),
        *expert_lora_tensors(architecture, rank, targets),
    )
    return sum(group.copies * block(group.elements * element) for group in adapters)


def norm_saved_bytes(spec: TrialKeys, positions: Count, width: Count, *, in_float32: bool = False) -> Count:
    """Return what an RMSNorm over [T, width] saves.

    The input in float32 and one float32 per row; if the weight of the norm is trained, also the normalised input, in
    the type of the residual stream. The output is saved by the operation that uses it. By hand, T = 10, width = 8 in
    bfloat16, full: 10 x (8 x 4 + 4 + 8 x 2) = 520 B. Liger's norm saves the input as it is, and one float32 per row: 10
    x (8 x 2 + 4) = 200 B (`LigerRMSNormFunction` in `liger_kernel/ops/rms_norm.py`). Gemma multiplies by the weight
    before it leaves float32 (`in_float32`): 10 x (8 x 4 + 4 + 8 x 4) = 680 B.
    """
    return rows_norm_saved_bytes(spec, positions * width, positions, element_bytes(spec).stream, in_float32=in_float32)


def rows_norm_saved_bytes(spec: TrialKeys, values: Count, rows: Count, given: Count, *, in_float32: bool) -> Count:
    """Return what `norm_saved_bytes` counts, of `values` in `rows` whose type has `given` bytes."""
    block = block_of(spec)
    if spec.use_liger_kernel:
        return block(values * given) + block(rows * FLOAT32_BYTES)
    normalised = block(values * (FLOAT32_BYTES if in_float32 else given)) if trains_everything(spec) else 0
    return block(values * FLOAT32_BYTES) + block(rows * FLOAT32_BYTES) + normalised


@dataclass(frozen=True, kw_only=True)
class AllLogits:
    """Bytes of the tensors that are as wide as the vocabulary, where the logits of all rows exist at once."""

    rows: Count
    whole: Count
    """The logits, [rows, C + 1, V], in the type of the outputs."""
    scored: Count
    """Those of the completions, [rows, C, V], in the same type: a quotient or a gradient."""
    product: Term
    """The logits as the head returns them, in the compute type."""
    converted: Count
    """The same; 0 if it is the type of the outputs."""
    row: Count
    """The log-softmax of one row, [C, V], in its own type."""
    cast_row: Count
    """The logits of one row in the type of the log-softmax; 0 if it is their own."""
    in_float32: Count
    """The logits in float32, in which transformers computes a loss of labels."""
    is_float32: Flag
    """Whether the outputs are in float32, of which trl takes the log-sum-exp; of others the log-softmax of each row."""
    capped: Count
    """What the hyperbolic tangent that caps logits keeps until backward, in the compute type; 0 without one."""
    words: Words
    """The largest of them."""

    @property
    def narrow(self) -> Count:
        """The logits in a narrower type than float32; 0 without one."""
        return larger(self.converted, where(self.is_float32, 0, self.whole))


def all_logits(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> AllLogits:
    """Return the sizes of logits. By hand, 2 rows, C = 10, V = 100, float32: 8,800, 8,000 and 4,000 B of a row.

    A loss of preferences may have them in float32 whatever the outputs are, or score the last position as well.
    """
    sizes, block, vocabulary = element_bytes(spec), block_of(spec), architecture.vocab_size
    pairs = spec.logprobs.pair_loss
    in_float32 = pairs is not None and (pairs.at_once or pairs.widens)
    output: Count = FLOAT32_BYTES if in_float32 else sizes.output
    tokens = batch.completion_tokens + (0 if pairs is None or pairs.slices else 1)
    whole = batch.rows * (batch.completion_tokens + 1) * vocabulary
    log_softmax = output if in_float32 or spec.logprobs.ends_autocast else sizes.log_softmax
    row = block(tokens * vocabulary * log_softmax)
    return AllLogits(
        rows=batch.rows,
        whole=block(whole * output),
        scored=block(batch.rows * tokens * vocabulary * output),
        product=Term(block(whole * sizes.compute), lambda: f"{whole // vocabulary} x {vocabulary} x {sizes.compute} B"),
        converted=where(output != sizes.compute, block(whole * sizes.compute), 0),
        row=row,
        cast_row=where(output < log_softmax, row, 0),
        in_float32=block(whole * FLOAT32_BYTES),
        is_float32=output == FLOAT32_BYTES,
        capped=block(whole * sizes.compute) if layers_of(architecture).caps_logits else 0,
        words=lambda: _logits_text(spec, architecture, batch),
    )


def copy_bytes(logits: AllLogits) -> Count:
    """Return a copy of the logits without those of the last token; that of a single row is no copy."""
    return where(logits.rows > 1, logits.scored, 0)


def waiting_logits(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Count:
    """Return what a loss of preferences holds next to what backward needs, while the last pass of its reference runs.

    The policy's logits, and at once with a KL term those of the reference's other pass too. By hand, 2 rows of 11
    tokens, V = 100: 8,800 B of DPO, 17,600 B of KTO.

    Source: `get_batch_loss_metrics` and `concatenated_forward` in LLaMA-Factory's `train/dpo/trainer.py` and
    `train/kto/trainer.py`, 0.9.5, where a selection of rows takes the place of all of them; `_compute_loss` in
    `dpo_trainer.py` and `kto_trainer.py` of trl 1.9; `selective_log_softmax` in axolotl 0.18's
    `monkeypatch/trainer/utils.py`.
    """
    pairs = spec.logprobs.pair_loss
    if pairs is None or not (pairs.at_once or pairs.by_kernel):
        return 0
    logits = all_logits(spec, architecture, batch)
    return (2 if pairs.at_once and spec.recipe.facts.has_shifted_rows else 1) * logits.whole


def _logits_text(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> str:
    tokens, element = batch.completion_tokens, element_bytes(spec).output
    labels, pairs = spec.logprobs.label_loss, spec.logprobs.pair_loss
    if labels is not None or pairs is not None:
        tokens = batch.completion_tokens + 1
    if labels is not None or (pairs is not None and (pairs.at_once or pairs.widens)):
        element = FLOAT32_BYTES
    return f"{batch.rows} x {tokens} x {architecture.vocab_size} x {element} B, ..."
