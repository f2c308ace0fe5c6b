"""The sample over every key that decides memory."""

from collections.abc import Mapping, Sequence

from maintenance.samples.sampling import FIXED, Narrowed, architecture_of, sample_trials
from profiler.domain.trials.trial import Logprobs, Rollout, TrialSpec

COUNT, SEED = 2000, 2053

MOST_DECODED_LAYERS = 60_000
"""Trials whose generated rollouts run more layers, one per token, are not sampled: each would take half a minute or
more. By hand, a model of 28 layers generates 2,142 tokens."""

AXES: Mapping[str, Sequence[object]] = {
    "recipe": (*("grpo",) * 16, "rloo", "rloo", "sft", "dpo", "kto", "reward"),
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
        "gemma-2b",
        "llama-2-13b",
        "mistral-7b-v0.1",
        "mistral-7b-v0.2",
        "mistral-nemo-12b",
        "deepseek-v2",
        "deepseek-v2-lite",
        "deepseek-v3",
        "moonlight-16b-a3b",
        "glm-4.7-flash",
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
        "glm-4.5-air",
        "gpt-oss-120b",
        "gpt-oss-20b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "mixtral-8x7b",
        "olmo-2-7b",
        "olmo-2-13b",
        "granite-3.3-8b",
        "maintenance/samples/dropping/qwen2.5-1.5b.json",
        "maintenance/samples/dropping/llama-3.2-3b.json",
        "maintenance/samples/dropping/qwen3-1.7b.json",
        "maintenance/samples/dropping/mistral-7b.json",
        "maintenance/samples/dropping/granite-3.3-8b.json",
        "maintenance/samples/dropping/gemma-2-2b.json",
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
    "lora_dropout": (0.0, 0.0, 0.05),
    "bnb_4bit_use_double_quant": (True, True, False),
    "optim": ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd"),
    "num_generations": (2, 4, 8, 16),
    "max_prompt_length": (32, 64, 128, 256, 512, 1024),
    "max_completion_length": (64, 128, 200, 256, 512, 786, 1024, 1536, 2048),
    "max_length": (128, 256, 512, 1024, 2048),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "steps_per_generation": (None, None, None, 1, 2, 4),
    "gradient_checkpointing": (True, False),
    "torch_empty_cache_steps": (None, None, None, None, 1, 2),
    "beta": (0.0, 0.0, 0.04),
    "precompute_ref_log_probs": (False, False, True),
    "precompute_ref_batch_size": (None, None, 1, 8),
    "critic": (*(False,) * 4, True),
    "attn_implementation": ("sdpa", "sdpa", "sdpa", "flash_attention_2", "eager"),
    "dtype": ("bfloat16", "bfloat16", "bfloat16", "float32", "float16"),
    "bf16": (True, True, True, False),
    "logprobs": (
        *("fused", "full", "sliced", "minibatch") * 2,
        "selective",
        "selective_row_entropy",
        "selective_in_place",
        "selective_kept",
    ),
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

_FUSED: Mapping[str, Sequence[object]] = {"logprobs": ("fused",)}
_PREFERRED: Mapping[str, Sequence[object]] = {**_FUSED, "beta": (0.1,)}
_EXPERTS: Mapping[str, Sequence[object]] = {
    **_FUSED,
    "dtype": ("bfloat16",),
    "bf16": (True,),
    "critic": (False,),
    "lora_dropout": (0.0,),
    "attn_implementation": ("sdpa", "sdpa", "flash_attention_2"),
    "lora_target_modules": (("all-linear",), ("all-linear",), ("q_proj", "v_proj"), ("k_proj", "o_proj")),
}
_LATENT = {**_EXPERTS, "lora_target_modules": (("all-linear",), ("all-linear",), ("o_proj",), ("kv_b_proj", "o_proj"))}
_SINKS = {**_EXPERTS, "attn_implementation": ("eager",)}
_FUSED_LAYERS = {
    "lora_target_modules": (("all-linear",), ("all-linear",), ("qkv_proj",), ("o_proj", "gate_up_proj", "down_proj"))
}

NARROWED: Sequence[Narrowed] = (
    (
        "recipe",
        ("sft",),
        {
            "logprobs": (
                *("fused",) * 4,
                "nll",
                "nll_accuracy",
                "nll_row_entropy",
                "nll_two_copies",
                "nll_entropy",
                "chunked_nll",
                "chunked_nll_masked",
                "chunked_nll_cast",
            )
        },
    ),
    ("recipe", ("dpo",), _PREFERRED),
    ("recipe", ("kto",), {**_PREFERRED, "per_device_train_batch_size": (2, 4, 8)}),
    ("recipe", ("reward",), _FUSED),
    ("model", ("qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "glm-4.5-air"), _EXPERTS),
    ("model", ("deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "moonlight-16b-a3b", "glm-4.7-flash"), _LATENT),
    ("model", ("gpt-oss-20b", "gpt-oss-120b"), _SINKS),
    ("model", ("phi-3.5-mini", "phi-4", "phi-4-mini"), _FUSED_LAYERS),
)
"""A key, values of it, and the values that other keys have with these: what trl refuses otherwise, layers of other
names, and for mixtures of experts what the closed form has (`profiler/constraints/commands.py`). Later ones win."""


def sample(count: int = COUNT, *, seed: int = SEED) -> tuple[TrialSpec, ...]:
    """Return `count` different trials. They depend only on the seed; a larger count adds trials at the end."""
    fixed = {key: value for key, value in FIXED.items() if key not in AXES}
    return sample_trials(count, seed=seed, axes=AXES, fixed=fixed, is_wanted=is_wanted, narrowed=NARROWED)


def is_wanted(spec: TrialSpec) -> bool:
    """Whether a trial is kept: one that takes seconds, and of a critic only where the closed form has it."""
    if decoded_layers(spec) > MOST_DECODED_LAYERS:
        return False
    counts_critic = spec.logprobs not in (Logprobs.SLICED, Logprobs.MINIBATCH)
    whole_steps = spec.steps_per_generation % spec.gradient_accumulation_steps == 0
    return not spec.critic or (counts_critic and whole_steps)


def decoded_layers(spec: TrialSpec) -> int:
    """Return the layers that generated rollouts run, one per token; a simulation writes the events of each.

    By hand, one rollout of 2,048 tokens and 28 layers: 57,344.
    """
    if not spec.recipe.facts.has_rollout or spec.rollout is Rollout.SYNTHETIC:
        return 0
    rollouts = -(-spec.steps * spec.gradient_accumulation_steps // spec.steps_per_generation)
    return rollouts * spec.max_completion_length * architecture_of(spec.model).num_hidden_layers
