"""Protocols of the trial and of the model that the formulas read, and the shapes of batches.

`TrialSpec` and `Architecture` match them, and objects of `profiler.analytical.many`, whose numbers are arrays. The keys
that decide which formula applies (recipe, tuning, log-probs, attention and others) are single values in both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from profiler.analytical.formulas.sizes.quantities import (
    Coded,
    Count,
    Flag,
    Number,
    both,
    either,
    holds,
    larger,
    smaller,
    where,
    whole_units,
)
from profiler.domain.architectures import architecture as parts
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    Attention,
    DistributedType,
    Dtype,
    Lengths,
    Logprobs,
    OffloadDevice,
    Rollout,
    Tuning,
    VllmMode,
)


class TrialKeys(Protocol):
    """The keys of a trial that decide memory; see `TrialSpec`."""

    @property
    def recipe(self) -> Recipe: ...  # noqa: D102
    @property
    def tuning(self) -> Tuning: ...  # noqa: D102
    @property
    def logprobs(self) -> Logprobs: ...  # noqa: D102
    @property
    def attn_implementation(self) -> Attention: ...  # noqa: D102
    @property
    def gradient_checkpointing(self) -> bool: ...  # noqa: D102
    @property
    def critic(self) -> bool: ...  # noqa: D102
    @property
    def use_liger_kernel(self) -> bool: ...  # noqa: D102
    @property
    def bnb_4bit_use_double_quant(self) -> bool: ...  # noqa: D102
    @property
    def lora_target_modules(self) -> tuple[str, ...] | None: ...  # noqa: D102
    @property
    def gpu(self) -> str | Coded[str | None] | None: ...  # noqa: D102
    @property
    def optim(self) -> Optimizer | Coded[Optimizer]: ...  # noqa: D102
    @property
    def weight_decay(self) -> Number: ...  # noqa: D102
    @property
    def dtype(self) -> Dtype | Coded[Dtype]: ...  # noqa: D102
    @property
    def lengths(self) -> Lengths | Coded[Lengths]: ...  # noqa: D102
    @property
    def rollout(self) -> Rollout | Coded[Rollout]: ...  # noqa: D102
    @property
    def alloc_conf(self) -> str | Coded[str]: ...  # noqa: D102
    @property
    def bf16(self) -> Flag: ...  # noqa: D102
    @property
    def fp16(self) -> Flag: ...  # noqa: D102
    @property
    def mixed_precision(self) -> Flag: ...  # noqa: D102
    @property
    def beta(self) -> Number: ...  # noqa: D102
    @property
    def precompute_ref_log_probs(self) -> bool: ...  # noqa: D102
    @property
    def ref_adapter(self) -> bool: ...  # noqa: D102
    @property
    def precompute_ref_batch_size(self) -> Count | None: ...  # noqa: D102
    @property
    def lora_rank(self) -> Count | None: ...  # noqa: D102
    @property
    def lora_dropout(self) -> Number: ...  # noqa: D102
    @property
    def max_prompt_length(self) -> Count: ...  # noqa: D102
    @property
    def max_completion_length(self) -> Count: ...  # noqa: D102
    @property
    def max_length(self) -> Count | None: ...  # noqa: D102
    @property
    def per_device_train_batch_size(self) -> Count: ...  # noqa: D102
    @property
    def gradient_accumulation_steps(self) -> Count: ...  # noqa: D102
    @property
    def steps_per_generation(self) -> Count: ...  # noqa: D102
    @property
    def generation_batch_size(self) -> Count: ...  # noqa: D102
    @property
    def use_vllm(self) -> bool: ...  # noqa: D102
    @property
    def vllm_mode(self) -> VllmMode | Coded[VllmMode | None] | None: ...  # noqa: D102
    @property
    def vllm_gpu_memory_utilization(self) -> Number | None: ...  # noqa: D102
    @property
    def vllm_enable_sleep_mode(self) -> Flag | None: ...  # noqa: D102
    @property
    def vllm_max_model_length(self) -> Count | None: ...  # noqa: D102
    @property
    def vllm_tensor_parallel_size(self) -> Count: ...  # noqa: D102
    @property
    def images_per_prompt(self) -> Count | None: ...  # noqa: D102
    @property
    def max_pixels(self) -> Count | None: ...  # noqa: D102
    @property
    def reward_models(self) -> tuple[str, ...] | None: ...  # noqa: D102
    @property
    def per_device_eval_batch_size(self) -> Count | None: ...  # noqa: D102
    @property
    def num_processes(self) -> Count: ...  # noqa: D102
    @property
    def distributed_type(self) -> DistributedType: ...  # noqa: D102
    @property
    def fsdp_reshard_after_forward(self) -> bool | None: ...  # noqa: D102
    @property
    def fsdp_activation_checkpointing(self) -> bool | None: ...  # noqa: D102
    @property
    def fsdp_cpu_ram_efficient_loading(self) -> bool: ...  # noqa: D102
    @property
    def cp_size(self) -> int | None: ...  # noqa: D102
    @property
    def zero_stage(self) -> int | None: ...  # noqa: D102
    @property
    def offload_optimizer_device(self) -> OffloadDevice | None: ...  # noqa: D102
    @property
    def offload_param_device(self) -> OffloadDevice | None: ...  # noqa: D102
    @property
    def torch_empty_cache_steps(self) -> int | None: ...  # noqa: D102
    @property
    def steps(self) -> Count: ...  # noqa: D102


class DecoderShape(Protocol):
    """The shape of a model; see `Architecture`."""

    @property
    def model_type(self) -> str: ...  # noqa: D102
    @property
    def vocab_size(self) -> Count: ...  # noqa: D102
    @property
    def hidden_size(self) -> Count: ...  # noqa: D102
    @property
    def intermediate_size(self) -> Count: ...  # noqa: D102
    @property
    def num_hidden_layers(self) -> Count: ...  # noqa: D102
    @property
    def num_attention_heads(self) -> Count: ...  # noqa: D102
    @property
    def num_key_value_heads(self) -> Count: ...  # noqa: D102
    @property
    def head_dim(self) -> Count: ...  # noqa: D102
    @property
    def context(self) -> Count: ...  # noqa: D102
    @property
    def tie_word_embeddings(self) -> Flag: ...  # noqa: D102
    @property
    def qkv_bias(self) -> Flag: ...  # noqa: D102
    @property
    def qk_norm(self) -> Flag: ...  # noqa: D102
    @property
    def norms_per_layer(self) -> Count: ...  # noqa: D102
    @property
    def num_experts(self) -> Count: ...  # noqa: D102
    @property
    def expert_width(self) -> Count: ...  # noqa: D102
    @property
    def experts_per_token(self) -> Count: ...  # noqa: D102
    @property
    def sliding_window(self) -> int | None: ...  # noqa: D102
    @property
    def first_layers(self) -> Sequence["DecoderShape"]: ...  # noqa: D102
    @property
    def keys_are_values(self) -> bool: ...  # noqa: D102
    @property
    def shares_keys(self) -> bool: ...  # noqa: D102
    @property
    def layer_inputs(self) -> parts.LayerInputs | None: ...  # noqa: D102
    @property
    def latent(self) -> parts.LatentAttention | None: ...  # noqa: D102
    @property
    def linear(self) -> parts.LinearAttention | None: ...  # noqa: D102
    @property
    def vision(self) -> parts.VisionTower | None: ...  # noqa: D102
    @property
    def idle(self) -> Sequence[parts.IdleTensors]: ...  # noqa: D102
    @property
    def shared_expert_width(self) -> Count: ...  # noqa: D102
    @property
    def attention_dropout(self) -> Number: ...  # noqa: D102
    @property
    def scores(self) -> int: ...  # noqa: D102
    @property
    def reward_models(self) -> Sequence["DecoderShape"]: ...  # noqa: D102


def layer_kinds(architecture: DecoderShape) -> tuple[DecoderShape, ...]:
    """Return one model per kind of layer, with the layers of that kind alone, in the order of their first layers.

    By hand, GLM 4.5 Air: 1 layer with a dense MLP, 45 with a mixture of experts.
    """
    if not (first := tuple(architecture.first_layers)):
        return (architecture,)
    rest = architecture.num_hidden_layers - sum(kind.num_hidden_layers for kind in first)
    return (*first, _with_layers(architecture, (), rest))


def by_end(architecture: DecoderShape) -> tuple[DecoderShape, ...]:
    """Return the model up to the last layer of each kind; the model itself comes last.

    By hand, GLM 4.5 Air: the model of its first layer, and of all 46. Qwen3-Next: of 47 layers, 36 linear, and all 48.
    """
    if (kinds := layer_kinds(architecture))[0].linear is not None:
        others = kinds[1].num_hidden_layers - 1
        before = (_with_layers(kinds[1], (), others),) if others else ()
        return _with_layers(kinds[0], before, kinds[0].num_hidden_layers + others), architecture
    return (*(_up_to(kinds, place, kinds[place].num_hidden_layers) for place in range(len(kinds) - 1)), architecture)


def by_begin(architecture: DecoderShape) -> tuple[DecoderShape, ...]:
    """Return the model up to the first layer of each kind.

    By hand, GLM 4.5 Air: that of 1 layer, and of 2. Qwen3-Next: that of 1 layer, and of 4.
    """
    if (linear := (kinds := layer_kinds(architecture))[0].linear) is not None:
        before = _with_layers(kinds[0], (), linear.interval - 1)
        return _with_layers(kinds[0], (), 1), _with_layers(kinds[1], (before,), linear.interval)
    return tuple(_up_to(kinds, place, 1) for place in range(len(kinds)))


def without_last(architecture: DecoderShape) -> DecoderShape:
    """Return the model without its last layer, which is not the only one of its kind."""
    return _with_layers(architecture, architecture.first_layers, architecture.num_hidden_layers - 1)


def _up_to(kinds: Sequence[DecoderShape], place: int, layers: Count) -> DecoderShape:
    """Return the model of the first kinds, with `layers` layers of the one at `place`."""
    before = sum(kind.num_hidden_layers for kind in kinds[:place])
    return _with_layers(kinds[place], tuple(kinds[:place]), before + layers)


def _with_layers(architecture: DecoderShape, first: Sequence[DecoderShape], layers: Count) -> DecoderShape:
    return cast("DecoderShape", replace(cast("Any", architecture), first_layers=first, num_hidden_layers=layers))


def with_keys(spec: TrialKeys, **keys: object) -> TrialKeys:
    """Return a trial with other values of some keys; `dataclasses.replace` knows no trials of arrays."""
    return cast("TrialKeys", (type(spec) if isinstance(spec, _WithKeys) else _WithKeys)(spec, keys))


def itemised_keys(spec: TrialKeys) -> TrialKeys:
    """Return a trial for which formulas return the blocks of their sizes too (`Itemised`)."""
    return cast("TrialKeys", ItemisedKeys(spec, {}))


class _WithKeys:
    """A trial with other values of some keys. It keeps what is asked of it: an estimate asks thousands of times."""

    def __init__(self, spec: TrialKeys, keys: Mapping[str, object]) -> None:
        self._spec = spec
        self.__dict__.update(keys)

    def __getattr__(self, name: str) -> object:
        return self.__dict__.setdefault(name, getattr(self._spec, name))


class ItemisedKeys(_WithKeys):
    """A trial for which `block_of` itemises."""


_RAGGED_ROWS, _RAGGED_PARTS = 4, 8
"""`completion_lengths`: four lengths that repeat, each an eighth of the longest shorter than the one before."""
_GRPO_LOSS_TENSORS = 12
"""An estimate: ratios, clipped ratios, masks, entropy."""
_RLOO_LOSS_TENSORS = 3
"""The loss is one number per row. Kept are the log-probabilities, their entropy and the mask."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows padded to one length; a micro-batch of training unless stated otherwise."""

    rows: Count
    prompt_tokens: Count
    completion_tokens: Count
    scored_tokens: Count
    """Completion tokens of all rows that are not padding."""
    loss_tensors: int = _GRPO_LOSS_TENSORS
    """Float32 tensors [rows, completion_tokens] that the loss keeps until backward."""
    has_mask: Flag
    """Whether a row is padded. transformers drops a mask that masks nothing; of layers that slide see `is_masked`."""

    @property
    def width(self) -> Count:
        """Tokens of one row, padding included."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def positions(self) -> Count:
        """Tokens of all rows, padding included."""
        return self.rows * self.width


def generated_micro_batch(spec: TrialKeys) -> Batch:
    """Return the batch of one forward and backward pass over prompts and their completions.

    trl shuffles a generation batch before it splits it into micro-batches, so the rows of a micro-batch are random. The
    scored tokens are those of one longest row and otherwise of average rows, rounded up. Each micro-batch is as wide as
    the longest row of its generation batch. `logprobs=full` passes no mask.
    """
    rows, generated = spec.per_device_train_batch_size, spec.generation_batch_size
    longest = spec.max_completion_length
    tokens = tokens_of(spec, rows=generated, longest=longest)
    return Batch(
        rows=rows,
        prompt_tokens=spec.max_prompt_length,
        completion_tokens=longest,
        scored_tokens=longest + whole_units(tokens * (rows - 1), generated),
        loss_tensors=_RLOO_LOSS_TENSORS if spec.recipe is Recipe.RLOO else _GRPO_LOSS_TENSORS,
        has_mask=both(is_padded(spec, rows=generated, longest=longest), spec.logprobs is not Logprobs.FULL),
    )


def is_padded(spec: TrialKeys, *, rows: Count, longest: Count) -> Flag:
    """Return whether one of `rows` rows, the longest of which has `longest` tokens, is shorter than the longest."""
    is_ragged = holds(spec.lengths, lambda lengths: lengths is Lengths.RAGGED)
    return both(is_ragged, (smaller(rows, _RAGGED_ROWS) - 1) * longest // _RAGGED_PARTS > 0)


def tokens_of(spec: TrialKeys, *, rows: Count, longest: Count) -> Count:
    """Return the tokens of `rows` rows, the longest of which has `longest` tokens, without padding."""
    is_ragged = holds(spec.lengths, lambda lengths: lengths is Lengths.RAGGED)
    return where(is_ragged, ragged_tokens(rows, longest), rows * longest)


def ragged_tokens(rows: Count, longest: Count) -> Count:
    """Return the tokens of ragged completions or rows.

    Row i has `longest` minus (i mod 4) eighths, at least one (`completion_lengths`). By hand, 6 rows of at most 80:
    80 + 70 + 60 + 50 + 80 + 70 = 410.
    """
    total: Count = 0
    for cut in range(_RAGGED_ROWS):
        alike = (rows + _RAGGED_ROWS - 1 - cut) // _RAGGED_ROWS
        total = total + alike * larger(1, longest - cut * longest // _RAGGED_PARTS)
    return total


def one_row(batch: Batch) -> Batch:
    """Return one row of `batch` as a batch, as `logprobs=sliced` and `minibatch` process it.

    It is padded if rows of `batch` are. All its completion tokens count as scored, as in the longest row.
    """
    return Batch(
        rows=1,
        prompt_tokens=batch.prompt_tokens,
        completion_tokens=batch.completion_tokens,
        scored_tokens=batch.completion_tokens,
        loss_tensors=batch.loss_tensors,
        has_mask=batch.has_mask,
    )


def unpadded(batch: Batch) -> Batch:
    """Return `batch` with all rows of the longest length: transformers drops a mask that masks nothing."""
    return replace(batch, has_mask=False)


def is_masked(kind: DecoderShape, batch: Batch) -> Flag:
    """Return whether SDPA gets a mask in a layer: of padded rows, or of rows that are longer than it sees.

    Source: `_ignore_causal_mask_sdpa` in transformers' `masking_utils.py`.
    """
    return batch.has_mask if kind.sliding_window is None else either(batch.has_mask, batch.width >= kind.sliding_window)


def longest_rows(spec: TrialKeys, rows: Count) -> Count:
    """Return how many of `rows` rows have the longest length, in the proportion of the generation batch; rounded down.

    By hand, 3 of 8 ragged rows, two of which are longest: 3 x 2 // 8 = 0.
    """
    generated, is_ragged = spec.generation_batch_size, holds(spec.lengths, lambda each: each is Lengths.RAGGED)
    return where(is_ragged, rows * whole_units(generated, _RAGGED_ROWS) // generated, rows)
