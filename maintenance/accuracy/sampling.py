"""The sample over every key that decides memory."""

from collections.abc import Mapping, Sequence

from maintenance.samples.sampling import sample_trials
from profiler.domain.trials.trial import TrialSpec

AXES: Mapping[str, Sequence[object]] = {
    "model": (
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "qwen2.5-7b",
        "qwen2.5-14b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "llama-3.1-8b",
        "llama-2-7b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "qwen3-14b",
        "tiny",
    ),
    "gpu": (
        "h100-80gb",
        "h200-141gb",
        "b200-180gb",
        "a100-40gb",
        "a100-80gb",
        "l40s-48gb",
        "rtx-4090-24gb",
        "rtx-5090-32gb",
        "t4-16gb",
        "rtx-3080-laptop-16gb",
    ),
    "tuning": ("full", "lora", "qlora"),
    "lora_rank": (4, 8, 16, 32, 64, 128),
    "lora_alpha": (None, None, 16, 64),
    "lora_target_modules": (
        ("all-linear",),
        ("all-linear",),
        ("q_proj", "v_proj"),
        ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj"),
        ("gate_proj", "up_proj", "down_proj"),
        ("embed_tokens", "v_proj"),
    ),
    "optim": ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd"),
    "num_generations": (2, 4, 8, 16),
    "max_prompt_length": (32, 64, 128, 256, 512, 1024),
    "max_completion_length": (64, 128, 200, 256, 512, 786, 1024, 1536, 2048),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "steps_per_generation": (None, None, None, 1, 2, 4),
    "gradient_checkpointing": (True, False),
    "beta": (0.0, 0.0, 0.04),
    "attn_implementation": ("sdpa", "sdpa", "sdpa", "flash_attention_2", "eager"),
    "dtype": ("bfloat16", "bfloat16", "bfloat16", "float32", "float16"),
    "bf16": (True, True, True, False),
    "logprobs": ("fused", "full", "sliced", "minibatch"),
    "rollout": ("generate", "generate", "synthetic"),
    "steps": (1, 2, 2, 3),
    "alloc_conf": (
        None,
        None,
        None,
        "expandable_segments:True",
        "roundup_power2_divisions:8",
        "max_split_size_mb:256",
        "garbage_collection_threshold:0.8",
    ),
}
"""Values of each key. Each key is sampled by itself and each entry is equally likely; an entry that is listed twice is
twice as likely.

trl refuses an adapter on `lm_head`. All entries are literal, so that a new model, card or optimizer does not change a
kept sample. Small cards end in out-of-memory; what is compared is what a trial requires of an unlimited card.
"""

FIXED: Mapping[str, object] = {
    "backend": "simulated",
    "recipe": "grpo",
    "weights": "random",
    "dataset": None,
    "seed": 0,
    "lora_dropout": 0.0,
    "use_liger_kernel": False,
    "bnb_4bit_use_double_quant": True,
    "use_vllm": False,
    "vllm_mode": None,
    "vllm_gpu_memory_utilization": None,
    "vllm_enable_sleep_mode": None,
    "vllm_max_model_length": None,
    "vllm_tensor_parallel_size": 1,
    "vllm_model_impl": "vllm",
    "reward_models": None,
    "per_device_eval_batch_size": None,
    "images_per_prompt": None,
    "min_pixels": None,
    "max_pixels": None,
    "num_processes": 1,
    "distributed_type": "no",
    "fsdp_version": None,
    "fsdp_reshard_after_forward": None,
    "fsdp_offload_params": None,
    "fsdp_activation_checkpointing": None,
    "torch_empty_cache_steps": None,
    "activation_offloading": False,
    "critic": False,
    "use_dynamic_bsz": False,
    "ppo_max_token_len_per_gpu": None,
    "zero_stage": None,
    "offload_optimizer_device": None,
    "offload_param_device": None,
}
"""Keys that are not sampled: a simulated trial reads no weights, its prompts are synthetic, values of the random seed
change no size, Liger's kernels and several processes are not simulated, vLLM and critics are compared by themselves,
and for an emptied cache, offloaded activations and micro-batches by tokens there is no closed form."""

NEXT_SAMPLE: Mapping[str, tuple[str, ...]] = {
    "logprobs": ("selective", "selective_row_entropy", "selective_in_place", "selective_kept"),
    "model": (
        "deepseek-r1-distill-qwen-1.5b",
        "deepseek-r1-distill-qwen-7b",
        "deepseek-r1-distill-qwen-14b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "tinyllama-1.1b",
        "smollm2-135m",
        "smollm2-360m",
        "smollm2-1.7b",
        "smollm3-3b",
        "mistral-7b",
        "mistral-small-24b",
        "gemma-2-2b",
        "gemma-2-9b",
        "gemma-3-1b",
        "phi-3.5-mini",
        "phi-4",
        "phi-4-mini",
        "deepseek-llm-7b",
        "qwen2.5-32b",
        "qwen2.5-72b",
        "qwen3-32b",
    ),
    "gpu": (
        "rtx-3060-12gb",
        "rtx-3090-24gb",
        "rtx-4060-ti-16gb",
        "rtx-4070-12gb",
        "rtx-4080-16gb",
        "rtx-5080-16gb",
        "rtx-a6000-48gb",
        "rtx-6000-ada-48gb",
        "rtx-pro-6000-96gb",
        "a10g-24gb",
        "a40-48gb",
        "l4-24gb",
        "l40-48gb",
        "v100-16gb",
        "v100-32gb",
        "h100-pcie-80gb",
        "h100-nvl-94gb",
        "h20-96gb",
        "gh200-96gb",
        "b300-288gb",
        "dgx-spark-128gb",
    ),
}
"""Values that were added after the sample was written down. The next sample has them: move them to `AXES` then."""


def sample(count: int, *, seed: int) -> tuple[TrialSpec, ...]:
    """Return `count` different trials. They depend only on the seed; a larger count adds trials at the end."""
    return sample_trials(count, seed=seed, axes=AXES, fixed=FIXED)
