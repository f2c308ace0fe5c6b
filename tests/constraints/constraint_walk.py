"""Combinations of keys, and what sweep, estimate, solve and advise say of each.

A case is a base with two settings: bases are all recipes, backends, kinds of model, tunings, ways to train on several
GPUs and ways to roll out; settings are all values of the other enumerations and booleans, and values of numbers on both
sides of each limit. Every base occurs by itself, and every pair of settings on some bases, in turns.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product

from profiler.analytical.estimate import refuse_without_form
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.constraints.table import faults_in_a_sweep, refuse_without_card
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.keys import Kind
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import TRIAL_KEYS, Backend, Tuning

BASES_PER_PAIR = int(os.environ.get("CONSTRAINT_BASES_PER_PAIR", "1"))
"""On how many bases each pair of settings is tried; what is kept is for 1."""

Values = Mapping[str, object]

_DECODER: Values = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_EXPERTS: Values = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
_TOWER: Values = {"vision_config": {"num_hidden_layers": 1, "vision_use_head": False}}
CONFIGS: Mapping[str, Values] = {
    "mixture": {"model_type": "qwen3_moe", **_DECODER, **_EXPERTS},
    "shared-expert": {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 48,
        **_DECODER,
        **_EXPERTS,
    },
    "sinks": {"model_type": "gpt_oss", **_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "linear": {"model_type": "qwen3_5_text", **_DECODER, "full_attention_interval": 2},
    "wide-heads": {"model_type": "gemma4_text", **_DECODER, "hidden_size_per_layer_input": 0, "global_head_dim": 512},
    "second-inputs": {"model_type": "gemma4_text", **_DECODER, "hidden_size_per_layer_input": 8},
    "passed-tower": {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **_DECODER}, **_TOWER},
    "other-mixture": {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"], **_DECODER, **_EXPERTS},
    "learned-positions": {"model_type": "opt", "architectures": ["OPTForCausalLM"], **_DECODER},
    "other-head": {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"], **_DECODER},
    "four-bits": {
        "model_type": "qwen2",
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        **_DECODER,
    },
    "gptq": {"model_type": "qwen2", "quantization_config": {"quant_method": "gptq", "bits": 4}, **_DECODER},
}
"""Models that are not built in, by what is special about them."""

_PLACEMENTS: Sequence[Values] = (
    {},
    {"num_processes": 2, "distributed_type": "multi_gpu"},
    {"num_processes": 2, "distributed_type": "fsdp"},
    {"num_processes": 2, "distributed_type": "deepspeed", "zero_stage": 2},
    {"num_processes": 2, "distributed_type": "deepspeed", "zero_stage": 3},
)
_ROLLOUTS: Sequence[Values] = (
    {},
    {"rollout": "synthetic"},
    {"use_vllm": True, "vllm_mode": "colocate"},
    {"use_vllm": True, "vllm_mode": "server"},
)
_MODELS = ("qwen2.5-0.5b", "mixture", "qwen2.5-vl-3b")

NUMBERS: Mapping[str, Sequence[object]] = {
    "model": ("tiny", "gemma-2-2b", *CONFIGS),
    "gpu": ("t4-16gb", "40GiB"),
    "lora_target_modules": (
        ["q_proj", "v_proj"],
        ["gate_proj"],
        ["gate_proj", "up_proj"],
        ["gate", "o_proj"],
        ["qkv"],
        ["nothing"],
    ),
    "lora_dropout": (0.05, 1.0),
    "num_generations": (3, 8),
    "max_prompt_length": (512, 8192),
    "max_completion_length": (64, 8192),
    "max_length": (512, 8192),
    "per_device_train_batch_size": (1, 6),
    "gradient_accumulation_steps": (3,),
    "steps_per_generation": (6, 8),
    "ppo_max_token_len_per_gpu": (100, 4096),
    "beta": (0.04,),
    "vllm_gpu_memory_utilization": (0.0, 1.5),
    "vllm_max_model_length": (100, 300, 10**7),
    "vllm_tensor_parallel_size": (2, 3, 4),
    "reward_models": (["qwen2.5-0.5b"],),
    "per_device_eval_batch_size": (8,),
    "images_per_prompt": (1, 2),
    "max_pixels": (500, 401408),
    "num_processes": (1, 2, 3),
    "fsdp_version": (1, 3),
    "zero_stage": (0, 1, 2, 3),
    "alloc_conf": ("expandable_segments:True",),
}
"""Values of the keys that are no enumeration and no boolean; of `model` and `gpu` those that no base has."""

_FSDP: Values = {"num_processes": 2, "distributed_type": "fsdp"}
_DEEPSPEED: Values = {"num_processes": 2, "distributed_type": "deepspeed"}
_TOKENS: Values = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 4096}
RARE: Sequence[Values] = (
    {"attn_implementation": "flash_attention_2", "dtype": "float32", "bf16": False},
    {"attn_implementation": "flash_attention_2", "dtype": "float32", "bf16": False, "gpu": "t4-16gb"},
    {"attn_implementation": "flash_attention_2", "dtype": "float32", "tuning": "lora"},
    {"attn_implementation": "flash_attention_2", "dtype": "float32", "tuning": "lora", "use_vllm": True},
    {"fp16": True, "bf16": False, "dtype": "float32"},
    {"fp16": True, "bf16": False, "dtype": "float16", "tuning": "lora"},
    {"fp16": True, "bf16": False, "dtype": "float16", "tuning": "lora", "recipe": "reward"},
    {"fp16": True, "bf16": False, "dtype": "float32", "critic": True},
    {"fp16": True, "bf16": False, "dtype": "float32", **_FSDP},
    {"fp16": True, "bf16": False, "model": "mixture", "tuning": "lora"},
    {"recipe": "dpo", "logprobs": "pairs_at_once", "precompute_ref_log_probs": True},
    {"recipe": "dpo", "logprobs": "pairs_at_once", "per_device_eval_batch_size": 8},
    {"critic": True, "use_liger_kernel": True},
    {"critic": True, "activation_offloading": True},
    {"critic": True, "logprobs": "minibatch"},
    {"critic": True, "logprobs": "sliced"},
    {"critic": True, "steps_per_generation": 6},
    {"critic": True, "steps_per_generation": 6, "logprobs": "minibatch"},
    {"critic": True, "model": "mixture"},
    {"critic": True, "tuning": "lora", **_FSDP},
    {"critic": True, **_TOKENS},
    {"logprobs": "minibatch", **_TOKENS},
    {"model": "linear", "bf16": False},
    {"model": "linear", "dtype": "float32"},
    {"model": "linear", "critic": True},
    {"model": "linear", "use_liger_kernel": True},
    {"model": "wide-heads", "use_liger_kernel": True},
    {"model": "second-inputs", "critic": True},
    {"model": "second-inputs", "dtype": "float32"},
    {"model": "second-inputs", "logprobs": "minibatch"},
    {"model": "second-inputs", "num_processes": 2, "distributed_type": "multi_gpu"},
    {"model": "passed-tower", "recipe": "reward"},
    {"model": "passed-tower", "critic": True},
    {"model": "passed-tower", "num_processes": 2, "distributed_type": "multi_gpu"},
    {"model": "passed-tower", "use_vllm": True},
    {"model": "passed-tower", "use_liger_kernel": True},
    {"logprobs": "minibatch", "steps_per_generation": 6, "ppo_max_token_len_per_gpu": 100, "use_dynamic_bsz": True},
    {"weights": "pretrained", "model": "tiny"},
    {"max_length": 8192, "model": "learned-positions", "recipe": "sft"},
    {"max_completion_length": 8192, "model": "learned-positions"},
    {"recipe": "dpo", "beta": 0.0},
    {"recipe": "dpo", "max_length": 256},
    {"recipe": "dpo", "precompute_ref_log_probs": True, **_FSDP},
    {"recipe": "dpo", "precompute_ref_log_probs": True, "tuning": "lora", **_FSDP},
    {"recipe": "dpo", "offload_optimizer_device": "cpu", "zero_stage": 2, **_DEEPSPEED},
    {"recipe": "dpo", "precompute_ref_log_probs": True, "zero_stage": 3, **_DEEPSPEED},
    {"recipe": "dpo", "logprobs": "pairs_of_rows", "zero_stage": 3, **_DEEPSPEED},
    {"recipe": "dpo", "logprobs": "pairs_of_rows", **_FSDP},
    {"recipe": "sft", "logprobs": "nll", "dtype": "bfloat16_layers"},
    {"recipe": "sft", "logprobs": "nll", "dtype": "bfloat16_layers", "attn_implementation": "flash_attention_2"},
    {"recipe": "sft", "logprobs": "nll", "dtype": "bfloat16_layers", "bf16": False},
    {"recipe": "sft", "logprobs": "nll", "dtype": "bfloat16_layers", **_FSDP},
    {"recipe": "sft", "logprobs": "nll", "dtype": "float32_norms"},
    {"recipe": "sft", "logprobs": "nll", "dtype": "float32_norms", "tuning": "qlora"},
    {"recipe": "sft", "logprobs": "nll", "dtype": "float32_norms", "tuning": "qlora", "bf16": False},
    {"recipe": "sft", "logprobs": "nll", "dtype": "float32_norms", "tuning": "qlora", "model": "gemma-3-1b"},
    {"recipe": "sft", "dtype": "float32_norms", "tuning": "qlora", "use_liger_kernel": True},
    {"recipe": "kto", "per_device_train_batch_size": 1},
    {"recipe": "kto", "beta": 0.0},
    {"recipe": "reward", "use_liger_kernel": True},
    {"recipe": "reward", "model": "qwen2.5-vl-3b"},
    {"recipe": "reward", "tuning": "lora", "lora_target_modules": ["lm_head", "q_proj"]},
    {"recipe": "dpo", "tuning": "qlora", "lora_target_modules": ["lm_head"]},
    {"recipe": "sft", "tuning": "lora", "lora_target_modules": ["lm_head"], "logprobs": "nll"},
    {"recipe": "reward", "model": "other-head"},
    {"model": "qwen2.5-vl-3b", "attn_implementation": "eager"},
    {"model": "sinks", "attn_implementation": "flash_attention_2"},
    {"model": "qwen2.5-vl-3b", "use_liger_kernel": True},
    {"logprobs": "minibatch", **_DEEPSPEED},
    {"alloc_conf": "roundup_power2_divisions:8", **_FSDP},
    {"logprobs": "minibatch", **_FSDP},
    {"fsdp_activation_checkpointing": True, "gradient_checkpointing": False, **_FSDP},
    {"cp_size": 3, "fsdp_version": 1, "attn_implementation": "eager", "recipe": "sft", **_FSDP},
    {"cp_size": 3, **_FSDP},
    {"fsdp_version": 1, "fsdp_offload_params": True, "dtype": "float32", **_FSDP},
    {"offload_optimizer_device": "cpu", "offload_param_device": "cpu", "zero_stage": 0, "optim": "sgd", **_DEEPSPEED},
    {"tuning": "lora", "zero_stage": 3, "ref_adapter": True, "beta": 0.1, **_DEEPSPEED},
    {"tuning": "qlora", "zero_stage": 3, "reward_models": ["qwen2.5-0.5b"], **_DEEPSPEED},
    {"vllm_tensor_parallel_size": 4, "use_vllm": True, "num_processes": 4, "distributed_type": "multi_gpu"},
    {
        "vllm_tensor_parallel_size": 8,
        "use_vllm": True,
        "num_processes": 8,
        "distributed_type": "multi_gpu",
        "model": "mixture",
    },
    {"vllm_tensor_parallel_size": 7, "use_vllm": True, "num_processes": 7, "distributed_type": "multi_gpu"},
    {"vllm_max_model_length": 300, "use_vllm": True, "model": "mixture"},
    {"model": "mixture", "tuning": "lora", "lora_dropout": 0.05, "lora_target_modules": ["down_proj"], **_FSDP},
    {"model": "shared-expert", "tuning": "lora", "lora_target_modules": ["shared_expert_gate", "up_proj"]},
    {"model": "four-bits", "tuning": "lora", "lora_target_modules": ["nothing"]},
    {"model": "qwen2.5-vl-3b", "images_per_prompt": 1, "max_prompt_length": 100, "max_pixels": 401408},
    {"activation_offloading": True, "reward_models": ["qwen2.5-0.5b"]},
    {"activation_offloading": True, "use_vllm": True, "vllm_mode": "server"},
)
"""Combinations of several keys that a pair of settings seldom meets its base for."""

_OF_BASES = ("recipe", "backend", "tuning", "rollout")


def settings() -> list[tuple[str, object]]:
    """Return all settings: each value of each key that is not one of a base only."""
    found: list[tuple[str, object]] = []
    for key in TRIAL_KEYS:
        if key.name in _OF_BASES:
            continue
        if key.choices is not None:
            found += [(key.name, str(value)) for value in key.choices]
        elif key.kind is Kind.FLAG:
            found += [(key.name, value) for value in (False, True)]
        found += [(key.name, value) for value in NUMBERS.get(key.name, ())]
    return found


def bases() -> list[Values]:
    """Return all bases."""
    found: list[Values] = []
    for recipe, backend, model, tuning, place in product(Recipe, Backend, _MODELS, Tuning, _PLACEMENTS):
        for rollout in _ROLLOUTS if recipe in GENERATING else _ROLLOUTS[:1]:
            base = {"recipe": str(recipe), "backend": str(backend), "model": model, "tuning": str(tuning)}
            images = {"images_per_prompt": 1} if "vl" in model and recipe in GENERATING else {}
            found.append({**base, **images, **place, **rollout})
    return found


def cases() -> Iterator[Values]:
    """Yield every base, the rare combinations, and every pair of settings on some bases."""
    everywhere = bases()
    yield from everywhere
    for backend, recipe, keys in product(Backend, ("grpo", "sft"), RARE):
        yield {"backend": str(backend), "model": _MODELS[0], "recipe": recipe, **keys}
    pairs = [(one, other) for one, other in combinations(settings(), 2) if one[0] != other[0]]
    for number, pair in enumerate(pairs):
        for turn in range(BASES_PER_PAIR):
            # Both steps share no factor with the number of bases, so that all of them have their turn.
            yield {**everywhere[(number * 997 + turn * 421) % len(everywhere)], **dict(pair)}


@cache
def architecture_of(model: str) -> Architecture:
    return builtin_architecture(model) or read_architecture(CONFIGS[model], model=model)


def said(values: Values) -> dict[str, tuple[Fault, ...]]:
    """Return the faults of a case by who says them.

    `trial` is what every command says of the keys. What a `sweep`, the closed form (`estimate`: also of solve and
    advise), and solve and advise alone say of the `card` is known only where keys have no fault.
    """
    try:
        spec = parse_point(values, architecture_of=architecture_of)
    except UsageError as error:
        return {"trial": tuple(error.faults)}
    found = {"sweep": tuple(faults_in_a_sweep([spec], architecture_of))}
    for who, refuse in (
        ("estimate", lambda: refuse_without_form(spec, architecture_of(spec.model))),
        ("card", lambda: refuse_without_card(spec)),
    ):
        try:
            refuse()
        except UsageError as error:
            found[who] = tuple(error.faults)
    return {who: faults for who, faults in found.items() if faults}
