"""Models and trials whose numbers are worked out by hand.

The toy model has 2 layers, H = 8, I = 16, V = 100, 2 query heads and 1 key head of 4, and a tied head.
"""

from collections.abc import Mapping
from dataclasses import replace

from profiler.analytical.formulas.sizes.trial_keys import Batch
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture, LatentAttention, LinearAttention, VisionTower
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    Dtype,
    Lengths,
    Rollout,
    TrialSpec,
    Tuning,
    VllmMode,
)
from profiler.domain.verl import Strategy, TrainedModel, VerlJob


def architecture_of(name: str) -> Architecture:
    """Return a built-in model."""
    return read_architecture(BUILTIN_MODELS[name].config, model=name)


HALF_BILLION = architecture_of("qwen2.5-0.5b")
TOY = Architecture(
    model_type="qwen2",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    qkv_bias=True,
)

SINKS = replace(TOY, model_type="gpt_oss", first_layers=(replace(TOY, num_hidden_layers=1, sliding_window=4),))
"""The same with sinks, whose first layer slides."""

LATENT = replace(
    TOY,
    model_type="deepseek_v3",
    qkv_bias=False,
    num_key_value_heads=2,
    head_dim=2,
    latent=LatentAttention(q_lora_rank=6, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3),
)
"""The same with latent attention: heads of 6 and of 3, made of vectors of 6 and 4."""

DELTA = replace(
    TOY,
    model_type="qwen3_5_text",
    qkv_bias=False,
    qk_norm=True,
    linear=LinearAttention(
        num_key_heads=1, num_value_heads=2, key_head_dim=4, value_head_dim=3, conv_kernel_dim=4, interval=2
    ),
)
"""The same with linear attention in all layers: 1 head of keys of 4, 2 heads of values of 3."""

WITH_GATE = replace(DELTA, linear=None)
"""The same with the full attention of its family, whose output is gated."""

FULL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy", gradient_checkpointing=False)
LORA = replace(FULL, tuning=Tuning.LORA, lora_rank=2, lora_alpha=4, lora_target_modules=(ALL_LINEAR,))
QLORA = replace(LORA, tuning=Tuning.QLORA)
EAGER = replace(FULL, attn_implementation=Attention.EAGER)
OLD = replace(FULL, gpu="t4-16gb")
HALF = replace(FULL, dtype=Dtype.FLOAT16, bf16=True)
WIDE = replace(FULL, dtype=Dtype.FLOAT32, bf16=False)
CAST = replace(FULL, dtype=Dtype.FLOAT32, bf16=True)
AUTOCAST, NO_AUTOCAST = {"autocast": True}, {"autocast": False}
ADAPTED, PLAIN = {"adapted": True, **AUTOCAST}, {"adapted": False, **AUTOCAST}
WITHOUT = {"adapted": True, **NO_AUTOCAST}


def adapting(*names, spec=LORA):
    """Return a trial whose adapters are of these layers."""
    return replace(spec, lora_target_modules=names)


def batch(rows=1, tokens=8, has_mask=False):
    """Return rows with 5 tokens of completion each."""
    return Batch(rows=rows, prompt_tokens=tokens - 5, completion_tokens=5, scored_tokens=5 * rows, has_mask=has_mask)


def completions(rows=1, tokens=10, has_mask=False, **keys):
    """Return rows after a prompt of 4 tokens."""
    scored = keys.pop("scored_tokens", rows * tokens)
    return Batch(rows=rows, prompt_tokens=4, completion_tokens=tokens, scored_tokens=scored, has_mask=has_mask, **keys)


EIGHT, TEN, SIX, MASKED = batch(), batch(tokens=10), batch(tokens=6), batch(has_mask=True)
ONE, TWO = completions(), completions(rows=2, has_mask=True)
LABELLED = Batch(rows=2, prompt_tokens=1, completion_tokens=10, scored_tokens=20, loss_tensors=0, has_mask=True)
LONG = replace(LABELLED, completion_tokens=1000, scored_tokens=2000)
MICRO_BATCH = Batch(rows=4, prompt_tokens=256, completion_tokens=786, scored_tokens=2_555, has_mask=True)
RAGGED = Batch(rows=2, prompt_tokens=3, completion_tokens=5, scored_tokens=7, has_mask=True)
NORMED, OWN_KEYS = replace(TOY, qk_norm=True), replace(TOY, num_key_value_heads=2)
GEMMA = replace(TOY, model_type="gemma2", norms_per_layer=4)
OLMO = replace(TOY, model_type="olmo2", qk_norm=True)
PHI, WIDE_QUERIES = replace(TOY, model_type="phi3"), replace(TOY, num_attention_heads=8)
VALUED = replace(NORMED, model_type="gemma4_text")
"""The same with a norm on values too."""
WIDER_MLP = replace(TOY, intermediate_size=32)

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
MIXTRAL = {
    **{key: CONFIG[key] for key in CONFIG if key not in ("moe_intermediate_size", "num_experts")},
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 1024,
}
QWEN2 = {**CONFIG, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 2048}
OLMOE = {
    **{key: CONFIG[key] for key in CONFIG if key not in ("moe_intermediate_size", "head_dim")},
    "model_type": "olmoe",
    "intermediate_size": 512,
}
TWO_STEPS = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="m",
    rollout=Rollout.SYNTHETIC,
    lengths=Lengths.FORCED,
    max_prompt_length=256,
    max_completion_length=256,
    gradient_accumulation_steps=2,
    steps_per_generation=2,
    steps=2,
)
OF_EXPERTS = replace(
    TWO_STEPS,
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
)
EVERYTHING = replace(OF_EXPERTS, lora_target_modules=(ALL_LINEAR,))


def mixture(config: Mapping[str, object]) -> Architecture:
    """Return a mixture of experts by its `config.json`."""
    return read_architecture(config, model="m")


SOME_EXPERTS = replace(mixture(CONFIG), hidden_size=4, expert_width=2, experts_per_token=4)
"""A layer of experts that is small enough to compute by hand."""
ADDED_EXPERT = replace(SOME_EXPERTS, model_type="glm4_moe", shared_expert_width=2)
"""The same with a shared expert that is added."""
NORMED_EXPERTS = replace(SOME_EXPERTS, model_type="gemma4_text", shared_expert_width=2)
"""The same after an MLP, with norms."""
BIASED_EXPERTS = replace(SOME_EXPERTS, model_type="gpt_oss")

GATED = VisionTower(
    depth=1,
    hidden_size=8,
    intermediate_size=16,
    num_heads=2,
    out_hidden_size=10,
    patch_size=2,
    temporal_patch_size=1,
    in_channels=3,
    spatial_merge_size=2,
    min_pixels=16,
    max_pixels=1024,
    inner_tensors=3,
    has_layer_norm=False,
    mlp_names=("gate_proj", "up_proj", "down_proj"),
)
GELU = replace(GATED, inner_tensors=1, has_layer_norm=True, mlp_names=("linear_fc1", "linear_fc2"))
"""As in Qwen3-VL, without its deepstack."""

VISION_FULL = TrialSpec(
    backend=Backend.SIMULATED, gpu=None, model="qwen2.5-vl-3b", images_per_prompt=1, max_pixels=401_408
)
VISION_LORA = replace(VISION_FULL, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=(ALL_LINEAR,))
VISION = read_architecture(VISION_MODELS["qwen2.5-vl-3b"].config, model="qwen2.5-vl-3b").vision

ENGINE = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="qwen2.5-0.5b",
    use_vllm=True,
    vllm_mode=VllmMode.COLOCATE,
    vllm_gpu_memory_utilization=0.3,
    vllm_enable_sleep_mode=False,
)

SEVEN_BILLION = architecture_of("qwen2.5-7b")
JOB = VerlJob(
    model="qwen2.5-7b",
    n_gpus=8,
    strategy=Strategy.FSDP,
    actor=TrainedModel(max_tokens=1_000),
    critic=None,
    has_reference=True,
    ref_param_offload=False,
    log_prob_max_tokens=1_000,
    fsdp_size=8,
    reshard_after_forward=True,
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    use_fused_kernels=False,
    lora_rank=0,
    lora_target_modules=(ALL_LINEAR,),
    max_prompt_length=512,
    max_response_length=1_024,
    train_batch_size=1_024,
    rollout_n=8,
    rollout_tensor_parallel_size=2,
    gpu_memory_utilization=0.5,
    free_cache_engine=True,
)
