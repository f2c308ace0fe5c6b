"""The keys of verl's configurations by what they do, and those of its generated files with defaults.

The keys of verl's generated configurations with their defaults: facts, of verl 0.8.0.dev (b178a3c, 2026-01-29).

Source: `verl/trainer/config/_generated_ppo_trainer.yaml` and `_generated_ppo_megatron_trainer.yaml` of
https://github.com/volcengine/verl. They are data, in `defaults.json`: by section, and those that both have first. null
is also a default that refers to another key. Left out: sections of profilers and of Ray, and names of classes.

The keys of verl's `ppo_trainer` and `ppo_megatron_trainer` configurations, by what they mean for memory.

Source: verl's `trainer/config/_generated_ppo_trainer.yaml`, read key by key.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from profiler.config.notes import Note
from profiler.domain.errors import shortened

VERL_VERSION = "0.8.0.dev"

Sections = Mapping[str, Mapping[str, object]]

_DEFAULTS: Mapping[str, Sections] = json.loads(Path(__file__).with_name("defaults.json").read_text(encoding="utf-8"))


def _by_key(*parts: str) -> dict[str, object]:
    """Return the defaults of some parts of the file as ``section.key``."""
    sections = (section for part in parts for section in _DEFAULTS[part].items())
    return {f"{name}.{key}": default for name, keys in sections for key, default in keys.items()}


FSDP_DEFAULTS: Mapping[str, object] = _by_key("both", "fsdp")
"""Defaults of `ppo_trainer`, which trains with FSDP."""

MEGATRON_DEFAULTS: Mapping[str, object] = _by_key("both", "megatron")
"""Defaults of `ppo_megatron_trainer`."""


_ACTOR, _REF, _ROLLOUT, _MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))

MEMORY_KEYS = (
    f"{_MODEL}.path",
    f"{_MODEL}.enable_gradient_checkpointing",
    f"{_MODEL}.enable_activation_offload",
    f"{_MODEL}.use_fused_kernels",
    f"{_MODEL}.lora_rank",
    f"{_MODEL}.target_modules",
    f"{_ACTOR}.strategy",
    f"{_ACTOR}.use_dynamic_bsz",
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.ppo_mini_batch_size",
    f"{_ACTOR}.use_remove_padding",
    f"{_MODEL}.use_remove_padding",
    "critic.ppo_mini_batch_size",
    "critic.model.use_remove_padding",
    f"{_ACTOR}.use_kl_loss",
    f"{_ACTOR}.use_fused_kernels",
    f"{_ACTOR}.fsdp_config.param_offload",
    f"{_ACTOR}.fsdp_config.optimizer_offload",
    f"{_ACTOR}.fsdp_config.offload_policy",
    f"{_ACTOR}.fsdp_config.reshard_after_forward",
    f"{_ACTOR}.fsdp_config.fsdp_size",
    f"{_ACTOR}.fsdp_config.model_dtype",
    f"{_ACTOR}.megatron.tensor_model_parallel_size",
    f"{_ACTOR}.megatron.pipeline_model_parallel_size",
    f"{_ACTOR}.megatron.param_offload",
    f"{_ACTOR}.megatron.optimizer_offload",
    f"{_REF}.fsdp_config.param_offload",
    f"{_REF}.megatron.param_offload",
    f"{_REF}.log_prob_use_dynamic_bsz",
    f"{_REF}.log_prob_max_token_len_per_gpu",
    f"{_REF}.log_prob_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.n",
    f"{_ROLLOUT}.gpu_memory_utilization",
    f"{_ROLLOUT}.tensor_model_parallel_size",
    f"{_ROLLOUT}.free_cache_engine",
    f"{_ROLLOUT}.enable_chunked_prefill",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.enable",
    "critic.model.enable_gradient_checkpointing",
    "critic.model.enable_activation_offload",
    "critic.model.fsdp_config.param_offload",
    "critic.model.fsdp_config.optimizer_offload",
    "critic.model.fsdp_config.offload_policy",
    "critic.model.fsdp_config.model_dtype",
    "critic.megatron.param_offload",
    "critic.megatron.optimizer_offload",
    "critic.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.use_dynamic_bsz",
    f"{_ACTOR}.ulysses_sequence_parallel_size",
    f"{_REF}.ulysses_sequence_parallel_size",
    "critic.ulysses_sequence_parallel_size",
    f"{_ACTOR}.ppo_micro_batch_size",
    f"{_REF}.log_prob_micro_batch_size",
    f"{_ROLLOUT}.log_prob_micro_batch_size",
    "critic.ppo_micro_batch_size",
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.train_batch_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)
"""Keys that the estimate reads. Chunked prefill stays within the engine's pool, so it changes no figure."""

FREE_PREFIXES = (
    "hydra.",
    "global_profiler.",
    "ray_kwargs.",
    "ray_init.",
    "custom_reward_function.",
    "reward_model.model.",
    "reward_model.sandbox_fusion.",
    "reward_model.profiler.",
    "data.custom_cls.",
    "data.sampler.",
    "data.datagen.",
    "data.apply_chat_template_kwargs.",
    "algorithm.kl_ctrl.",
    "algorithm.pf_ppo.",
    "algorithm.filter_groups.",
    "algorithm.rollout_correction.",
    f"{_ACTOR}.policy_loss.",
    f"{_ACTOR}.checkpoint.",
    f"{_ACTOR}.optim.",
    f"{_ACTOR}.profiler.",
    f"{_ACTOR}.fsdp_config.wrap_policy.",
    f"{_REF}.profiler.",
    f"{_REF}.fsdp_config.wrap_policy.",
    f"{_ROLLOUT}.engine_kwargs.",
    f"{_ROLLOUT}.val_kwargs.",
    f"{_ROLLOUT}.multi_turn.",
    f"{_ROLLOUT}.agent.",
    f"{_ROLLOUT}.trace.",
    f"{_ROLLOUT}.profiler.",
    f"{_MODEL}.override_config.",
    f"{_MODEL}.fused_kernel_options.",
    "critic.optim.",
    "critic.checkpoint.",
    "critic.profiler.",
    "critic.model.override_config.",
    "critic.model.fsdp_config.wrap_policy.",
)
"""Sections in which no other key than those above needs GPU memory."""

_FREE_NAMES: Mapping[str, str] = {
    _ACTOR: """_target_ clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode
        entropy_coeff use_torch_compile kl_loss_coef kl_loss_type ppo_epochs shuffle grad_clip
        entropy_from_logits_with_chunking entropy_checkpointing fsdp_config._target_ fsdp_config.forward_prefetch
        megatron.sequence_parallel megatron.use_distributed_optimizer megatron.seed""",
    _REF: """_target_ strategy use_torch_compile log_prob_micro_batch_size model fsdp_config._target_
        fsdp_config.reshard_after_forward fsdp_config.forward_prefetch fsdp_config.fsdp_size
        entropy_from_logits_with_chunking entropy_checkpointing megatron.tensor_model_parallel_size
        megatron.pipeline_model_parallel_size megatron.seed""",
    _ROLLOUT: """_target_ name mode temperature top_k top_p prompt_length response_length dtype ignore_eos
        enforce_eager cudagraph_capture_sizes max_num_batched_tokens max_model_len max_num_seqs
        log_prob_micro_batch_size disable_log_stats do_sample over_sample_rate multi_stage_wake_up
        calculate_log_probs update_weights_bucket_megabytes skip_rollout skip_dump_dir load_format layered_summon
        use_fire_sampling""",
    _MODEL: """_target_ custom_chat_template use_shm external_lib lora_alpha exclude_modules
        use_liger trust_remote_code tokenizer_path""",
    "critic": """_target_ rollout_n strategy ppo_micro_batch_size forward_max_token_len_per_gpu
        forward_micro_batch_size forward_micro_batch_size_per_gpu ppo_epochs shuffle cliprange_value loss_agg_mode
        grad_clip model.path model.tokenizer_path model.external_lib model.trust_remote_code model._target_
        model.use_shm model.fsdp_config._target_ model.fsdp_config.reshard_after_forward
        model.fsdp_config.fsdp_size model.fsdp_config.forward_prefetch model.lora_alpha model.target_modules""",
    "data": """tokenizer use_shm train_files val_files prompt_key reward_fn_key val_batch_size return_raw_input_ids
        return_raw_chat return_full_prompt shuffle dataloader_num_workers validation_shuffle filter_overlong_prompts
        filter_overlong_prompts_workers truncation image_key video_key trust_remote_code return_multi_modal_inputs
        gen_batch_size seed train_max_samples val_max_samples apply_chat_template_kwargs""",
    "algorithm": """_target_ gamma lam norm_adv_by_std_in_grpo kl_penalty use_pf_ppo""",
    "trainer": """balance_batch total_epochs total_training_steps project_name experiment_name logger
        log_val_generations rollout_data_dir validation_data_dir save_freq esi_redundant_time resume_mode
        resume_from_path val_before_train val_only test_freq critic_warmup default_hdfs_dir
        del_local_ckpt_after_load default_local_dir max_actor_ckpt_to_keep max_critic_ckpt_to_keep
        ray_wait_register_center_timeout device use_legacy_worker_impl""",
    "reward_model": """strategy micro_batch_size micro_batch_size_per_gpu max_length use_dynamic_bsz
        forward_max_token_len_per_gpu reward_manager launch_reward_fn_async ulysses_sequence_parallel_size""",
}

FREE_KEYS = frozenset(
    ["actor_rollout_ref.nccl_timeout", "actor_rollout_ref._target_", "defaults"]
    + [f"{section}.{name}" for section, names in _FREE_NAMES.items() for name in names.split()]
)
"""Keys that need no GPU memory in this estimate, which assumes that the critic has the actor's model."""


_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select:\s*)?([A-Za-z_][\w.]*)\s*(?:,.*)?\}", re.DOTALL)

_MOST_STEPS = 10

_LONGEST_SHOWN = 60


def resolved(flat: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with references to other keys that are stated replaced, and without all other references.

    ``${...}`` to a key that is not stated is verl's own default, ``???`` is on its command line.
    """
    found = {key: _followed(value, flat) for key, value in flat.items()}
    return {key: value for key, value in found.items() if not _is_reference(value)}


def unresolved_notes(flat: Mapping[str, object]) -> Iterator[Note]:
    """Return a note per key that decides memory and whose value only the machine knows, as of ``${oc.env:NAME}``."""
    for key in MEMORY_KEYS:
        value = _followed(flat.get(key), flat)
        if isinstance(value, str) and "${" in value and not _REFERENCE.fullmatch(value):
            spelled = shortened(value, _LONGEST_SHOWN)
            yield Note(key="", text=f"verl's default of {key} ({spelled} is not read)")


def _followed(value: object, flat: Mapping[str, object]) -> object:
    for _ in range(_MOST_STEPS):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] not in flat:
            break
        value = flat[match[1]]
    return value


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")
