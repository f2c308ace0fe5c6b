"""Protocols of the trial and of the model that the formulas read, for one trial or for arrays of them.

`TrialSpec` and `Architecture` match them. `profiler.analytical.many` builds objects of the same form whose numbers are
arrays. The keys that decide which formula applies (recipe, tuning, log-probs, attention, checkpointing, LoRA modules,
engine, sharding) are single values in both.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from profiler.analytical.formulas.sizes.quantities import Coded, Count, Flag, Number
from profiler.domain.architectures.vision import VisionTower
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
    def beta(self) -> Number: ...  # noqa: D102
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
    def zero_stage(self) -> int | None: ...  # noqa: D102
    @property
    def offload_optimizer_device(self) -> OffloadDevice | None: ...  # noqa: D102
    @property
    def offload_param_device(self) -> OffloadDevice | None: ...  # noqa: D102
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
    def vision(self) -> VisionTower | None: ...  # noqa: D102
    @property
    def shared_expert_width(self) -> Count: ...  # noqa: D102
    @property
    def attention_dropout(self) -> Number: ...  # noqa: D102
    @property
    def reward_models(self) -> Sequence["DecoderShape"]: ...  # noqa: D102


def with_keys(spec: TrialKeys, **keys: object) -> TrialKeys:
    """Return a trial with other values of some keys; `dataclasses.replace` knows no trials of arrays."""
    return cast("TrialKeys", _WithKeys(spec, keys))


class _WithKeys:
    """A trial with other values of some keys."""

    def __init__(self, spec: TrialKeys, keys: Mapping[str, object]) -> None:
        self._spec = spec
        self.__dict__.update(keys)

    def __getattr__(self, name: str) -> object:
        return getattr(self._spec, name)
