"""The trials that are emulated and simulated: sampled by a seed, and written down before any of them runs."""

from collections.abc import Mapping, Sequence

from maintenance.samples.emulated_sample import Sample
from profiler.domain.trials.trial import Rollout, TrialSpec

MOST_DECODED_TOKENS = 150
"""A generated rollout is decoded token by token on the emulated card. Trials that would decode more are not sampled."""

AXES: Mapping[str, Sequence[object]] = {
    "recipe": (*("grpo",) * 13, "sft"),
    "model": (
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "deepseek-r1-distill-qwen-1.5b",
        "qwen2.5-7b",
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
    "lora_alpha": (None, 16, 64),
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
    "max_prompt_length": (32, 64, 128, 256, 512),
    "max_completion_length": (16, 32, 64, 128, 200, 256, 512, 786),
    "max_length": (128, 256, 512, 1024),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "steps_per_generation": (None, None, None, 1, 2, 4),
    "gradient_checkpointing": (True, False),
    "beta": (0.0, 0.0, 0.04),
    "attn_implementation": ("sdpa", "sdpa", "sdpa", "eager"),
    "dtype": ("bfloat16", "bfloat16", "bfloat16", "float32", "float16"),
    "bf16": (True, True, True, False),
    "logprobs": ("fused", "full", "sliced", "minibatch"),
    "rollout": ("synthetic", "generate"),
    "steps": (1, 2, 2, 3),
    "alloc_conf": (
        None,
        None,
        None,
        None,
        "expandable_segments:True",
        "roundup_power2_divisions:8",
        "max_split_size_mb:256",
        "garbage_collection_threshold:0.8",
    ),
}
"""Values of each key, as literals; each entry is equally likely. flash_attention_2 is not among them: its package is
compiled for a card and is not in the environment of the emulation."""


def takes_seconds(spec: TrialSpec) -> bool:
    """Whether the emulated card decodes at most `MOST_DECODED_TOKENS`, one by one."""
    if not spec.recipe.facts.has_rollout or spec.rollout is Rollout.SYNTHETIC:
        return True
    rollouts = -(-spec.steps * spec.gradient_accumulation_steps // spec.steps_per_generation)
    return rollouts * spec.max_completion_length <= MOST_DECODED_TOKENS


ONE_GPU = Sample(
    name="emulated",
    count=200,
    seed=1422,
    axes=AXES,
    is_wanted=takes_seconds,
    earlier="",
    what="one GPU, which are simulated too",
)
