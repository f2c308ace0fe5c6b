"""Keys of verl that change memory and have no formula: a value other than verl's default is named as not counted."""

import re
from collections.abc import Mapping

from profiler.config.notes import Note, not_counted
from profiler.config.reading import show
from profiler.domain.verl import Strategy, VerlJob

_WITHOUT_FORMULA = re.compile(
    r"""
    (actor_rollout_ref\.(actor|ref)|critic)\.megatron\.
        (context_parallel_size|expert_model_parallel_size|expert_tensor_parallel_size|sequence_parallel
        |virtual_pipeline_model_parallel_size|use_distributed_optimizer|dtype|override_ddp_config(\..+)?
        |override_transformer_config\.(recompute_\w+|attention_backend|moe_\w+))
    |actor_rollout_ref\.ref\.megatron\.(tensor|pipeline)_model_parallel_size
    |critic\.megatron\.(tensor|pipeline)_model_parallel_size
    |(actor_rollout_ref\.(actor|ref)|critic\.model)\.fsdp_config\.
        (dtype|forward_prefetch|entropy_from_logits_with_chunking|entropy_checkpointing|ulysses_sequence_parallel_size
        |mixed_precision(\..+)?)
    |actor_rollout_ref\.ref\.fsdp_config\.(model_dtype|fsdp_size|reshard_after_forward)
    |critic\.model\.fsdp_config\.(fsdp_size|reshard_after_forward)
    |actor_rollout_ref\.actor\.use_prefix_grouper
    |(actor_rollout_ref\.actor|critic)\.optim\.(optimizer|optimizer_impl|override_optimizer_config(\..+)?)
    |actor_rollout_ref\.rollout\.
        (data_parallel_size|expert_parallel_size|pipeline_model_parallel_size|quantization|dtype)
    |actor_rollout_ref\.model\.
        (use_liger|tiled_mlp\.enabled|lora\.rank|lora_adapter_path|hf_config_path|exclude_modules|mtp\.enable(_\w+)?)
    |actor_rollout_ref\.hybrid_engine
    |critic\.model\.(lora_rank|lora\.rank|tiled_mlp\.enabled)
    |critic\.(forward_max_token_len_per_gpu|forward_micro_batch_size_per_gpu)
    """,
    re.VERBOSE,
)

_ENTROPY = re.compile(r"actor_rollout_ref\.actor\.(entropy_\w+|calculate_entropy)")
"""Keys of an entropy, which Megatron computes otherwise."""

_CHUNKING = "actor_rollout_ref.actor.entropy_from_logits_with_chunking"

_FREE_OVERRIDES = ("max_position_embeddings", "attn_implementation", "rope_theta", "attention_dropout")
"""Fields of the model's configuration that change no tensor."""

_MODEL = "actor_rollout_ref.model"


def effect_notes(flat: Mapping[str, object], defaults: Mapping[str, object], job: VerlJob) -> tuple[Note, ...]:
    """Return what of a configuration changes memory and is not counted.

    Args:
        flat: The keys that are stated, with dots.
        defaults: verl's.
        job: The job that they describe.
    """
    notes = [
        not_counted(f"what {key}={show(value)} changes")
        for key, value in flat.items()
        if _has_no_formula(key, job) and value is not None and not _is_default(key, value, flat, defaults)
    ]
    overrides = f"{_MODEL}.override_config."
    for key, value in flat.items():
        is_free = key.removeprefix(overrides).startswith(_FREE_OVERRIDES)
        if key.startswith(overrides) and not is_free and not _is_default(key, value, flat, defaults):
            notes.append(not_counted(f"what {key}={show(value)} changes"))
    if flat.get("reward_model.enable") is True and flat.get("reward_model.enable_resource_pool") is not True:
        path = flat.get("reward_model.model.path", defaults.get("reward_model.model.path"))
        notes.append(not_counted(f"the reward model {show(path)}"))
    critic, actor = flat.get("critic.model.path"), flat.get(f"{_MODEL}.path")
    is_stated = critic not in (None, actor, defaults.get("critic.model.path"))
    if is_stated and flat.get("algorithm.adv_estimator", "gae") == "gae":
        notes.append(not_counted(f"the size of the critic {show(critic)} (that of the actor is taken)"))
    return tuple(notes)


def _has_no_formula(key: str, job: VerlJob) -> bool:
    """Return whether a value of this key changes memory in a way that is not counted."""
    if _WITHOUT_FORMULA.fullmatch(key):
        return True
    if job.strategy is Strategy.MEGATRON:
        return _ENTROPY.fullmatch(key) is not None
    # Without torch.compile, autograd keeps every chunk until its backward.
    return key == _CHUNKING and job.entropy.in_update and not job.entropy.is_compiled


def _is_default(key: str, value: object, flat: Mapping[str, object], defaults: Mapping[str, object]) -> bool:
    """Return whether the value is verl's default, or equals that of the actor, which is counted for both."""
    if value == defaults.get(key) or value in (False, [], {}, ""):
        return True
    for other in ("actor_rollout_ref.ref.", "critic."):
        if key.startswith(other) and key.endswith(("tensor_model_parallel_size", "pipeline_model_parallel_size")):
            counted = f"actor_rollout_ref.actor.{key.removeprefix(other)}"
            return value == flat.get(counted, defaults.get(counted, 1))
        if key.startswith(other) and key.endswith(
            ("forward_max_token_len_per_gpu", "forward_micro_batch_size_per_gpu")
        ):
            counted = key.replace("forward_", "ppo_")
            return value == flat.get(counted, defaults.get(counted))
    return key.endswith("_parallel_size") and value == 1
