"""The keys of verl's configurations by what they do, and those of its generated files with defaults, by release.

They are facts of verl 0.8.0.dev (b178a3c, 2026-01-29) and of the package verl 0.9.1.

Source: `verl/trainer/config/_generated_ppo_trainer.yaml` and `_generated_ppo_megatron_trainer.yaml`, read key by key.
They are data, in `defaults.json`: by release and section, and those that both have first. null is also a default that
refers to another key. Left out: sections of profilers, of Ray and of `turbo_config`, and names of classes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from profiler.config.notes import Note
from profiler.config.options.reading import FieldReader, show
from profiler.domain.errors import Fault, nearest, shortened
from profiler.domain.text import packed_text
from profiler.domain.verl import VLLM, Release, RolloutEngine, rollout_engine

VERSIONS: Mapping[Release, str] = {Release.V0_8: "0.8.0.dev", Release.V0_9_1: "0.9.1"}
"""The version of each release whose defaults are stored."""

VERL_VERSION = VERSIONS[Release.V0_8]
"""The version that is taken where no key decides."""

ENGINE = "model_engine"
"""The group of verl's configuration that names the engine of training, which 0.8.0.dev does not have."""

Sections = Mapping[str, Mapping[str, object]]

_DEFAULTS: Mapping[str, Mapping[str, Sections]] = json.loads(packed_text(Path(__file__).parent, "defaults.json"))


def engine_of(reader: FieldReader) -> RolloutEngine:
    """Return what generates the completions: vLLM where none is stated, which verl before 0.6 has by default."""
    name = reader.value(ROLLOUT_NAME)
    return VLLM if name in (None, "", "???") else rollout_engine(show(name))


def _by_key(release: Release, *parts: str) -> dict[str, object]:
    """Return the defaults of some parts of a release as ``section.key``."""
    sections = (section for part in parts for section in _DEFAULTS[release][part].items())
    return {f"{name}.{key}": default for name, keys in sections for key, default in keys.items()}


DEFAULTS: Mapping[Release, tuple[Mapping[str, object], Mapping[str, object]]] = {
    release: (_by_key(release, "both", "fsdp"), _by_key(release, "both", "megatron")) for release in Release
}
"""By release, the defaults of `ppo_trainer`, which trains with FSDP, and of `ppo_megatron_trainer`."""

FSDP_DEFAULTS, MEGATRON_DEFAULTS = DEFAULTS[Release.V0_8]

_DROPPED = re.compile(
    r"(?:actor_rollout_ref\.(?:actor|ref)|critic)\.megatron\.grad_offload"
    r"|actor_rollout_ref\.(?:actor|ref)\.router_replay\.\w+"
)
"""Keys of 0.8 that 0.9.0 still has and 0.9.1 has not, so that they tell nothing of the release.

The gradients of Megatron go to the host with the weights, in all of them.
"""


ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
ROLLOUT_NAME = f"{ROLLOUT}.name"

RECOMPUTE = "megatron.override_transformer_config.recompute"
"""The start of Megatron-Core's own keys of recomputation, in the section of a worker."""

BLOCK = "block"
"""The value of `recompute_method` by which some layers of each stage are computed again."""

MEMORY_KEYS = (
    f"{MODEL}.path",
    f"{MODEL}.enable_gradient_checkpointing",
    f"{MODEL}.enable_activation_offload",
    f"{MODEL}.use_fused_kernels",
    f"{MODEL}.lora_rank",
    f"{MODEL}.target_modules",
    f"{ACTOR}.strategy",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.use_remove_padding",
    f"{MODEL}.use_remove_padding",
    "critic.ppo_mini_batch_size",
    "critic.model.use_remove_padding",
    f"{ACTOR}.use_kl_loss",
    f"{ACTOR}.use_fused_kernels",
    f"{ACTOR}.fsdp_config.param_offload",
    f"{ACTOR}.fsdp_config.optimizer_offload",
    f"{ACTOR}.fsdp_config.offload_policy",
    f"{ACTOR}.fsdp_config.reshard_after_forward",
    f"{ACTOR}.fsdp_config.fsdp_size",
    f"{ACTOR}.fsdp_config.model_dtype",
    f"{ACTOR}.megatron.tensor_model_parallel_size",
    f"{ACTOR}.megatron.pipeline_model_parallel_size",
    f"{ACTOR}.megatron.param_offload",
    f"{ACTOR}.megatron.optimizer_offload",
    f"{ACTOR}.{RECOMPUTE}_granularity",
    f"{ACTOR}.{RECOMPUTE}_method",
    f"{REF}.fsdp_config.param_offload",
    f"{REF}.megatron.param_offload",
    f"{REF}.log_prob_use_dynamic_bsz",
    f"{REF}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.gpu_memory_utilization",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.free_cache_engine",
    f"{ROLLOUT}.enable_chunked_prefill",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.enable",
    "critic.model.enable_gradient_checkpointing",
    "critic.model.enable_activation_offload",
    "critic.model.fsdp_config.param_offload",
    "critic.model.fsdp_config.optimizer_offload",
    "critic.model.fsdp_config.offload_policy",
    "critic.model.fsdp_config.model_dtype",
    "critic.megatron.param_offload",
    "critic.megatron.optimizer_offload",
    f"critic.{RECOMPUTE}_granularity",
    f"critic.{RECOMPUTE}_method",
    "critic.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.use_dynamic_bsz",
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{REF}.ulysses_sequence_parallel_size",
    "critic.ulysses_sequence_parallel_size",
    f"{ACTOR}.ppo_micro_batch_size",
    f"{REF}.log_prob_micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size",
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

LATER_MEMORY_KEYS = (
    *(
        f"critic.fsdp.{name}"
        for name in (
            *("param_offload", "optimizer_offload", "offload_policy", "model_dtype"),
            "ulysses_sequence_parallel_size",
        )
    ),
    *(f"{worker}.fsdp_config.ulysses_sequence_parallel_size" for worker in (ACTOR, REF)),
    *(
        f"{ACTOR}.fsdp_config.{name}"
        for name in (
            *("use_torch_compile", "entropy_checkpointing", "entropy_from_logits_with_chunking"),
            "entropy_from_logits_chunk_size",
        )
    ),
    f"{ACTOR}.entropy_from_logits_chunk_size",
    *(
        f"{ACTOR}.megatron.{name}"
        for name in ("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size")
    ),
    f"{ROLLOUT}.temperature",
    f"{ROLLOUT}.load_format",
    f"{ROLLOUT}.layered_summon",
    f"{ROLLOUT}.checkpoint_engine.backend",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
    f"{MODEL}.lora.merge",
    "reward.reward_model.enable",
    "reward.reward_model.enable_resource_pool",
    "reward.reward_model.rollout.gpu_memory_utilization",
    "reward.reward_model.rollout.free_cache_engine",
)
"""Further keys that the estimate reads with the defaults of 0.9.1."""

FREE_PREFIXES = (
    "hydra.",
    "global_profiler.",
    "ray_kwargs.",
    "ray_init.",
    "custom_reward_function.",
    "reward_model.model.",
    "reward_model.reward_kwargs.",
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
    f"{ACTOR}.policy_loss.",
    f"{ACTOR}.checkpoint.",
    f"{ACTOR}.optim.",
    f"{ACTOR}.profiler.",
    f"{ACTOR}.fsdp_config.wrap_policy.",
    f"{REF}.profiler.",
    f"{REF}.fsdp_config.wrap_policy.",
    f"{ROLLOUT}.engine_kwargs.",
    f"{ROLLOUT}.val_kwargs.",
    f"{ROLLOUT}.multi_turn.",
    f"{ROLLOUT}.agent.",
    f"{ROLLOUT}.trace.",
    f"{ROLLOUT}.profiler.",
    f"{MODEL}.override_config.",
    f"{MODEL}.fused_kernel_options.",
    "critic.optim.",
    "critic.checkpoint.",
    "critic.profiler.",
    "critic.model.override_config.",
    "critic.model.fsdp_config.wrap_policy.",
)
"""Sections in which no other key than those above needs GPU memory."""

_FREE_NAMES: Mapping[str, str] = {
    ACTOR: """_target_ clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode
        entropy_coeff use_torch_compile kl_loss_coef kl_loss_type ppo_epochs shuffle grad_clip
        entropy_from_logits_with_chunking entropy_checkpointing fsdp_config._target_ fsdp_config.forward_prefetch
        megatron.sequence_parallel megatron.use_distributed_optimizer megatron.seed""",
    REF: """_target_ strategy use_torch_compile log_prob_micro_batch_size model fsdp_config._target_
        fsdp_config.reshard_after_forward fsdp_config.forward_prefetch fsdp_config.fsdp_size
        entropy_from_logits_with_chunking entropy_checkpointing megatron.tensor_model_parallel_size
        megatron.pipeline_model_parallel_size megatron.seed""",
    ROLLOUT: """_target_ name mode temperature top_k top_p prompt_length response_length dtype ignore_eos
        enforce_eager cudagraph_capture_sizes max_num_batched_tokens max_model_len max_num_seqs
        log_prob_micro_batch_size disable_log_stats do_sample over_sample_rate multi_stage_wake_up
        calculate_log_probs update_weights_bucket_megabytes skip_rollout skip_dump_dir load_format layered_summon
        use_fire_sampling""",
    MODEL: """_target_ custom_chat_template use_shm external_lib lora_alpha exclude_modules
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


def unresolved_notes(flat: Mapping[str, object], release: Release) -> Iterator[Note]:
    """Return a note per key that decides memory and whose value only the machine knows, as of ``${oc.env:NAME}``."""
    for key in memory_keys(release):
        value = _followed(flat.get(key), flat)
        if isinstance(value, str) and "${" in value and not _REFERENCE.fullmatch(value):
            spelled = shortened(value, _LONGEST_SHOWN)
            yield unstated(key, f"{spelled} is not read")


VERLS_DEFAULT = "verl's default of "
"""How the note of such a value begins."""


def unstated(name: str, why: str, *, key: str = "") -> Note:
    """Return the note that verl's default stands for a value that a job passes on and that is not known here."""
    return Note(key=key, text=f"{VERLS_DEFAULT}{name} ({why})", is_counted=name in LATER_MEMORY_KEYS)


def _followed(value: object, flat: Mapping[str, object]) -> object:
    for _ in range(_MOST_STEPS):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] not in flat:
            break
        value = flat[match[1]]
    return value


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")


_GENERATED = {release: {**fsdp, **megatron} for release, (fsdp, megatron) in DEFAULTS.items()}

_OPEN = (
    *(f"{worker}.profiler." for worker in (ACTOR, REF, ROLLOUT, "critic", "reward_model")),
    *(f"{engine}.turbo_config." for engine in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")),
    "reward_model.reward_kwargs.",
    "actor_rollout_ref.nccl_timeout",
)
"""Sections that are left out of the stored defaults."""

_FIELDS_OF_MEGATRON = tuple(f"{worker}.megatron.override_transformer_config." for worker in (ACTOR, REF, "critic"))
"""Sections for any field of Megatron-Core's configuration, of which `defaults.json` has those that verl states."""

_GENERATED_PREFIXES = {
    release: (
        *(f"{key}." for key, value in defaults.items() if value in ({}, None)),
        *(() if release is Release.V0_8 else _FIELDS_OF_MEGATRON),
    )
    for release, defaults in _GENERATED.items()
}
"""Sections that verl leaves open."""


def memory_keys(release: Release) -> tuple[str, ...]:
    """Return the keys that the estimate reads with the defaults of a release."""
    if release is Release.V0_8:
        return MEMORY_KEYS
    return tuple(key for key in (*MEMORY_KEYS, *LATER_MEMORY_KEYS) if is_known(key, release))


def is_known(key: str, release: Release) -> bool:
    """Return whether a release has the key, or leaves its section open."""
    if _has(key, release) or key.startswith(_OPEN) or key.endswith("._target_"):
        return True
    if release is not Release.V0_8 and key in _GENERATED[Release.V0_8]:
        return _DROPPED.fullmatch(key) is not None
    return _is_read_of_any(key)


def keys_of_one_release(stated: Mapping[str, object], *, added: frozenset[str]) -> dict[Release, list[str]]:
    """Return the stated keys that one release alone has, by release.

    Args:
        stated: The keys.
        added: Those that are added by ``+`` to a configuration that lacks them, which tell nothing.
    """
    found: dict[Release, list[str]] = {release: [] for release in Release}
    for key in stated:
        having = [release for release in Release if _has(key, release)]
        if len(having) != 1 or key in added or _DROPPED.fullmatch(key):
            continue
        if having[0] is Release.V0_8 or not _is_read_of_any(key):
            found[having[0]].append(key)
    return found


def _has(key: str, release: Release) -> bool:
    return key in _GENERATED[release] or key.startswith(_GENERATED_PREFIXES[release])


def _is_read_of_any(key: str) -> bool:
    """Return whether a key is read, or known to need no memory, whatever the stored defaults have."""
    return key in MEMORY_KEYS or key in FREE_KEYS or key.startswith(FREE_PREFIXES)


_OF_EARLIER = "grad_offload"
"""A key of FSDP before verl 0.3: later releases free the gradients that it moved to the host between updates."""


def unknown_faults(key: str, stated: Mapping[str, object], release: Release, *, strict: bool) -> list[Fault]:
    """Return a fault for an unknown key that resembles one that matters, and for any if `strict`.

    A key that is stated as well was meant by its own name: the unknown one is of a fork, or of an older release.
    """
    section, _, name = key.rpartition(".")
    if name == _OF_EARLIER and not strict:
        return []
    value, known = stated[key], [each for each in memory_keys(release) if each not in stated or strict]
    siblings = [each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == section]
    hint = nearest(name, siblings).replace("'", f"'{section}.", 1)
    problem = f"is unknown in verl's configuration (of {VERSIONS[release]})"
    return [Fault(key=key, found=show(value), problem=problem, hint=hint)] if hint or strict else []
