"""Names of ms-swift (`swift sft`, `swift rlhf`): its arguments of SFT, reward models, preferences and GRPO.

Sources: `swift/arguments/`, `swift/trainers/arguments.py` and `swift/rlhf_trainers/` of 4.6.0.dev0 (commit 3602360,
August 2026) for names and defaults, `swift/config/` for its files of DeepSpeed. `train_type` of version 3 is read as
well: 3.3 has the same defaults, except that it evaluates 1 % of the rows.
"""

import math
from collections.abc import Iterator, Mapping

from profiler.config.files.formats.together import (
    PAIR_LOSSES,
    PREFERENCES,
    PROCESSES,
    absent_deepspeed,
    float32_adapters,
    of_pairs,
    one_process,
    only_text,
    refused,
    scaled_in_four_bits,
    shipped_deepspeed,
    words,
)
from profiler.config.files.vocabulary import RUN_IT, Vocabulary
from profiler.config.notes import Note, not_counted
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs

_NAME = "ms-swift"
_BITS = 4
_BUCKET = 200_000_000
_ROWS_PER_UPDATE = 16
"""Rows of all processes per update where `gradient_accumulation_steps` is absent (`TrainArgumentsMixin`)."""

_BETA = 0.04
_COMPLETION = 512
_OLD = words("sft_type model_id_or_path ckpt_dir batch_size use_flash_attn quantization_bit num_infer_workers")
"""Keys of ms-swift 2, and of the first releases of 3."""


def _is_grpo(leaves: Mapping[str, object]) -> bool:
    return leaves.get("rlhf_type") == Recipe.GRPO


def _is_reward(leaves: Mapping[str, object]) -> bool:
    """Return whether a model with one label is trained on pairs, as trl's (`_init_rm`, `reward_trainer.py`)."""
    return leaves.get("rlhf_type") == "rm"


def _kind(leaves: Mapping[str, object]) -> object:
    return leaves.get("tuner_type") or leaves.get("train_type") or "lora"


def _tuning(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the adapter (`TunerArguments`)."""
    if _kind(leaves) != "lora":
        return {"use_peft": False}
    target = leaves.get("target_modules") or "all-linear"
    rank, alpha, dropout = (leaves.get(key) for key in ("lora_rank", "lora_alpha", "lora_dropout"))
    found: dict[str, object] = {
        "use_peft": True,
        "lora_r": 8 if rank is None else rank,
        "lora_alpha": 32 if alpha is None else alpha,
        "lora_dropout": 0.05 if dropout is None else dropout,
        "lora_target_modules": "all-linear" if target in (["all-linear"], "all-linear") else target,
    }
    if leaves.get("quant_method") == "bnb":
        nested = leaves.get("bnb_4bit_use_double_quant")
        is_four = leaves.get("quant_bits") == _BITS
        found.update({"load_in_4bit": True} if is_four else {"load_in_8bit": True})
        found["use_bnb_nested_quant"] = True if nested is None else nested
    return found


def _types(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the types: bfloat16 as the checkpoint, and float16 autocast for other types (`_init_mixed_precision`)."""
    stated = leaves.get("torch_dtype") or "bfloat16"
    is_bfloat16 = stated == "bfloat16"
    flags = {key: leaves.get(key) for key in ("bf16", "fp16")}
    return {
        "dtype": stated,
        "bf16": is_bfloat16 if flags["bf16"] is None else flags["bf16"],
        "fp16": (not is_bfloat16) if flags["fp16"] is None else flags["fp16"],
    }


def _accumulation(leaves: Mapping[str, object]) -> Mapping[str, object]:
    if leaves.get("gradient_accumulation_steps") is not None:
        return {}
    rows, processes = leaves.get("per_device_train_batch_size") or 1, leaves.get(PROCESSES) or 1
    if _is_grpo(leaves) or not isinstance(rows, int) or not isinstance(processes, int):
        return {"gradient_accumulation_steps": 1}
    return {"gradient_accumulation_steps": max(1, math.ceil(_ROWS_PER_UPDATE / rows / processes))}


def _grpo(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return keys of GRPO (`GRPOArgumentsMixin`, `_init_grpo`, `_init_max_completion_length`)."""
    if not _is_grpo(leaves):
        return {}
    lengths = ("response_length", "max_new_tokens", "max_completion_length")
    beta = leaves.get("beta")
    found: dict[str, object] = {
        "beta": _BETA if beta is None else beta,
        "num_generations": leaves.get("num_generations") or 8,
        "max_completion_length": next((leaves[key] for key in lengths if leaves.get(key)), 512),
    }
    if leaves.get("reward_model") is not None:
        found["reward_model_name_or_path"] = leaves["reward_model"]
    return {**found, **(_engine(leaves) if leaves.get("use_vllm") is True else {})}


def _engine(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return keys of vLLM (`VllmArguments`); before version 3.6 its mode followed from the server's address."""
    server = leaves.get("vllm_server_host") or leaves.get("vllm_server_base_url")
    mode = leaves.get("vllm_mode") or ("server" if server else "colocate")
    if mode == "server":
        return {"vllm_mode": mode}
    share = leaves.get("vllm_gpu_memory_utilization")
    return {
        "vllm_mode": mode,
        "vllm_gpu_memory_utilization": 0.9 if share is None else share,
        "vllm_enable_sleep_mode": leaves.get("sleep_level") not in (None, 0),
    }


def _rows(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return how long rows of data are, and whether those of supervised training are packed to that length."""
    if _is_grpo(leaves):
        return {}
    packed = leaves.get("packing") is True
    length = (leaves.get("packing_length") if packed else None) or leaves.get("max_length")
    found: dict[str, object] = {} if length is None else {"max_length": length}
    if leaves.get("rlhf_type") in PREFERENCES:
        return {"beta": 0.1 if leaves.get("beta") is None else leaves["beta"], **found}
    return found if _is_reward(leaves) else {"packing": packed, **found}


def _evaluation(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return whether there is an evaluation: `eval_strategy` is that of saving, if there are rows for it."""
    ratio = leaves.get("split_dataset_ratio")
    if not leaves.get("val_dataset") and ratio in (None, 0, 0.0):
        return {"eval_strategy": "no"}
    return {"eval_strategy": leaves.get("eval_strategy") or leaves.get("save_strategy") or "steps"}


def _shipped(value: object) -> Mapping[str, object] | None:
    return shipped_deepspeed(value, _BUCKET)


def _sharding(leaves: Mapping[str, object]) -> Mapping[str, object]:
    shipped = _shipped(leaves.get("deepspeed"))
    return {} if shipped is None else {"deepspeed": shipped}


def _checkpointing(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return how layers are recomputed: `use_reentrant` unless DDP alone shards (`_fix_gradient_checkpointing`)."""
    stated = leaves.get("gradient_checkpointing_kwargs")
    if leaves.get("gradient_checkpointing") is False:
        return {}
    several = leaves.get(PROCESSES) is not None and leaves.get("deepspeed") is None and leaves.get("fsdp") is None
    own = {"use_reentrant": not several}
    return {"gradient_checkpointing_kwargs": {**own, **stated} if isinstance(stated, Mapping) else own}


def _trial(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return how its trainers compute losses, and the longest prompt, which trl's keys no longer state."""
    found: dict[str, object] = {}
    if leaves.get("rlhf_type") in PREFERENCES:
        found["logprobs"] = Logprobs.PAIRS_OF_COMPLETIONS.value
    elif leaves.get("use_liger_kernel") is not True and not _is_reward(leaves):
        found["logprobs"] = (Logprobs.SELECTIVE_IN_PLACE if _is_grpo(leaves) else Logprobs.NLL).value
    if _is_grpo(leaves) and leaves.get("max_length") is not None:
        found["max_prompt_length"] = _longest_prompt(leaves)
    return found


def _longest_prompt(leaves: Mapping[str, object]) -> object:
    """Return the longest prompt of GRPO: `max_length`, or what completions leave of the engine's rows that it fills."""
    longest, row = leaves["max_length"], leaves.get("vllm_max_model_len")
    made = leaves.get("max_completion_length", _COMPLETION)
    if isinstance(longest, int) and isinstance(row, int) and isinstance(made, int) and made < row <= longest:
        return row - made
    return longest


def _is_read(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    for key in sorted(_OLD):
        if key in leaves:
            problem = f"is a key of earlier versions of {_NAME}, whose other names and defaults are not known here"
            yield refused(key, leaves[key], problem)
    kind = _kind(leaves)
    if kind not in ("lora", "full"):
        yield refused("tuner_type", kind, "has no formula here; only lora or full")
    if leaves.get("quant_method") not in (None, "bnb"):
        yield refused("quant_method", leaves["quant_method"], "has no formula here; only bnb")
    if leaves.get("fsdp") not in (None, False, ""):
        problem = f"is a file of {_NAME} with its own checkpointing, and is not read"
        yield refused("distributed_type", leaves["fsdp"], problem, "Give distributed_type=fsdp as well.")


def _is_open(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Return what the file leaves open, and what is not counted."""
    if leaves.get("quant_method") == "bnb" and leaves.get("deepspeed") is None:
        yield float32_adapters(_NAME)
        yield from scaled_in_four_bits(_NAME, _types(leaves))
    if _is_grpo(leaves):
        if leaves.get("max_length") is not None:
            prompt = _longest_prompt(leaves)
            why = "max_length" if prompt == leaves["max_length"] else "vllm_max_model_len less max_completion_length"
            yield Note(key="max_prompt_length", text=f"max_prompt_length={prompt} ({_NAME}'s {why})")
        if leaves.get("use_liger_kernel") is not True:
            text = f"logprobs={Logprobs.SELECTIVE_IN_PLACE} (in {_NAME}, as in trl 1.0)"
            yield Note(key="logprobs", text=text)
        return
    if leaves.get("rlhf_type") not in (None, Recipe.SFT, *PREFERENCES) and not _is_reward(leaves):
        return
    if _is_reward(leaves) and leaves.get("packing") is True:
        yield refused("packing", True, f"is refused by {_NAME} for a reward model", "Set packing to false.")
    if leaves.get("max_length") is None:
        problem = f"is absent, and then {_NAME} cuts rows at the longest that the model allows"
        yield refused("max_length", None, problem, "Give max_length= as well: that of your longest row.")
    if leaves.get("gradient_accumulation_steps") is None:
        count = _accumulation(leaves)["gradient_accumulation_steps"]
        text = f"gradient_accumulation_steps={count} ({_NAME} makes about {_ROWS_PER_UPDATE} rows per update)"
        yield Note(key="gradient_accumulation_steps", text=text)
    if leaves.get("rlhf_type") in PREFERENCES:
        yield from of_pairs(_NAME, Logprobs.PAIRS_OF_COMPLETIONS, has_liger=leaves.get("use_liger_kernel") is True)
        for key in ("packing", "use_logits_to_keep"):
            if leaves.get(key) is (key == "packing"):
                yield refused(key, leaves[key], f"has no formula here with preferences in {_NAME}", RUN_IT)
    elif leaves.get("use_liger_kernel") is not True and not _is_reward(leaves):
        yield Note(key="logprobs", text=f"logprobs={Logprobs.NLL} (in {_NAME} the loss is that of transformers)")
        if leaves.get("use_logits_to_keep") is not False:
            yield not_counted(f"that {_NAME} makes no logits of prompts (the figure may be too high)")


def _says_processes(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Refuse a process with several GPUs, over which transformers spreads the layers (`is_mp`)."""
    visible, count = leaves.get("CUDA_VISIBLE_DEVICES"), leaves.get(PROCESSES)
    processes = 1 if count is None else count
    if isinstance(visible, str) and isinstance(processes, int) and len(visible.split(",")) >= 2 * processes:
        problem = f"with {PROCESSES}={processes} spreads layers of a model over several GPUs, which has no formula here"
        hint = "Give num_processes= as well, for one model per GPU."
        yield Fault(key="num_processes", found=f"CUDA_VISIBLE_DEVICES={visible}", problem=problem, hint=hint)
    elif not _is_grpo(leaves):
        yield from one_process(_NAME, leaves)


MS_SWIFT = Vocabulary(
    version="ms-swift 4.6",
    names={
        "model": "model_name_or_path",
        "attn_impl": "attn_implementation",
        "modules_to_save": "lora_modules_to_save",
        "target_parameters": "lora_target_parameters",
        "vllm_max_model_len": "vllm_max_model_length",
    },
    values={"attn_implementation": {"flash_attn": "flash_attention_2"}},
    defaults={
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "gradient_checkpointing": True,
        "use_liger_kernel": False,
        "use_vllm": False,
        "optim": "adamw_torch_fused",
    },
    recipe_key="rlhf_type",
    recipes={"grpo": Recipe.GRPO, "sft": Recipe.SFT, "rm": Recipe.REWARD, **PREFERENCES},
    unread={
        **dict.fromkeys(("cpo", "orpo", "simpo"), "trains on pairs without a reference, which has no formula here"),
        **dict.fromkeys(("ppo", "gkd"), "keeps a value model or a teacher as well, which has no formula here"),
    },
    trainer="sft",
    rules=(_tuning, _types, _accumulation, _grpo, _rows, _evaluation, _sharding, _checkpointing),
    trial=(_trial,),
    by_rule=words(
        f"""
        tuner_type train_type lora_rank lora_alpha lora_dropout target_modules quant_method quant_bits
        bnb_4bit_use_double_quant torch_dtype bf16 fp16 beta num_generations max_completion_length max_new_tokens
        response_length reward_funcs reward_model vllm_mode vllm_gpu_memory_utilization sleep_level packing
        packing_length max_length val_dataset split_dataset_ratio eval_strategy gradient_checkpointing_kwargs fsdp
        use_logits_to_keep {PROCESSES} CUDA_VISIBLE_DEVICES {" ".join(_OLD)}
        """
    ),
    checks=(
        lambda leaves: absent_deepspeed(_NAME, _shipped, leaves),
        _is_read,
        _is_open,
        _says_processes,
        lambda leaves: only_text("model", _NAME, leaves),
    ),
    free=words(
        """
        model_type model_revision dataset cached_dataset cached_val_dataset dataset_num_proc load_from_cache_file
        dataset_shuffle val_dataset_shuffle streaming interleave_prob stopping_strategy shuffle_buffer_size
        download_mode columns strict disable_auto_column_mapping model_name model_author custom_dataset_info
        external_plugins custom_register_path model_kwargs enable_npu_model_patch load_args load_data_args
        packing_num_proc lazy_tokenize use_hf ignore_args_error template system truncation_strategy max_pixels
        agent_template norm_bbox use_chat_template padding_side loss_scale is_binary_loss_scale template_backend
        response_prefix enable_thinking preserve_thinking add_non_thinking_prefix disable_ignore_empty_think
        local_repo_path init_strategy rope_scaling max_model_len num_labels problem_type hqq_axis
        freeze_vit freeze_aligner lorap_lr_ratio create_checkpoint_symlink add_version logprobs top_logprobs num_beams
        stream stop_words structured_outputs_regex logging_first_step safe_serialization max_shard_size check_model
        acc_strategy train_dataloader_shuffle group_by_length max_epochs aligner_lr vit_lr vit_gradient_checkpointing
        resume_only_model eval_metric early_stop_interval eval_use_evalscope eval_dataset eval_dataset_args eval_limit
        eval_generation_config extra_eval_args use_flash_ckpt metric_warmup_step num_train_epochs swanlab_token
        swanlab_project swanlab_workspace swanlab_exp_name swanlab_notification_method swanlab_webhook_url
        swanlab_secret swanlab_sender_email swanlab_receiver_email swanlab_smtp_server swanlab_smtp_port
        swanlab_email_language swanlab_mode reward_model_type reward_model_revision reward_template reward_adapters
        teacher_model_type teacher_model_revision epsilon_high cosine_min_len_value_wrong cosine_max_len_value_wrong
        cosine_min_len_value_correct cosine_max_len_value_correct cosine_max_len repetition_n_grams
        repetition_max_penalty dynamic_sample max_resample_times overlong_filter soft_max_length soft_cache_length
        tau_pos tau_neg advantage_estimator kl_in_reward teacher_kl_coef rlsd_lambda rlsd_reweight_clip_range
        rlsd_lambda_warmup_steps rlsd_lambda_decay_steps rlsd_negative_only sdar_gate_beta real_tau fipo_decay_rate
        fipo_clip_range fipo_clip_high_only fipo_safety_threshold rollout_importance_sampling_mode
        rollout_importance_sampling_threshold log_rollout_offpolicy_metrics off_policy_sequence_mask_delta
        wandb_log_unique_prompts vllm_max_num_seqs vllm_disable_custom_all_reduce vllm_enforce_eager
        vllm_limit_mm_per_prompt vllm_enable_prefix_caching vllm_use_async_engine vllm_reasoning_parser
        vllm_disable_cascade_attn vllm_mm_processor_cache_gb vllm_max_lora_rank vllm_server_group_port
        vllm_server_pass_dataset enable_flattened_weight_sync teacher_tag_key completion_length_limit_scope max_turns
        rpo_alpha ld_alpha discopop_tau loss_weights cpo_alpha simpo_gamma desirable_weight undesirable_weight
        center_rewards_coefficient sft_alpha lmbda seq_kd gkd_logits_topk num_ppo_epochs whiten_rewards kl_coef
        cliprange vf_coef cliprange_value gamma lam num_mini_batches local_rollout_forward_batch_size
        num_sample_generations missing_eos_penalty label_smoothing lora_ga_batch_size lora_ga_iters lora_ga_max_length
        lora_ga_direction lora_ga_scale lora_ga_stable_gamma galore_target_modules galore_rank galore_update_proj_gap
        galore_scale galore_proj_type galore_optim_per_parameter galore_with_embedding galore_quantization
        galore_proj_quant galore_proj_bits galore_proj_group_size galore_cos_threshold galore_gamma_proj
        galore_queue_size lisa_step_interval fourier_n_frequency fourier_scaling boft_block_size boft_block_num
        boft_n_butterfly_factor boft_dropout vera_rank vera_projection_prng_key vera_dropout vera_d_initial adapter_act
        adapter_length adalora_target_r adalora_init_r adalora_tinit adalora_tfinal adalora_deltaT adalora_beta1
        adalora_beta2 adalora_orth_reg_weight llamapro_num_new_blocks llamapro_num_groups reft_layer_key reft_layers
        reft_rank reft_intervention_type reft_args ref_model_type ref_model_revision gc_collect_after_offload
        chord_enable_phi_function chord_mu_warmup_steps chord_mu_decay_steps chord_mu_peak chord_mu_valley
        chord_sft_per_device_train_batch_size mrl_dims gym_env
        """
    ),
    changes={
        **dict.fromkeys(
            words(
                """
                experts_impl device_map max_memory freeze_parameters_regex trainable_parameters_regex target_regex
                optimizer tiled_mlp_num_shards ref_model teacher_model teacher_deepspeed teacher_model_server
                reward_model_plugin vllm_device vllm_quantization vllm_speculative_config vllm_engine_kwargs
                move_model_batches multi_turn_scheduler advantage_reweight
                """
            ),
            (),
        ),
        "adapters": ([],),
        "new_special_tokens": ([],),
        "task_type": ("causal_lm",),
        "padding_free": (False,),
        "sequence_parallel_size": (1,),
        "freeze_parameters": ([],),
        "freeze_parameters_ratio": (0, 0.0),
        "trainable_parameters": ([],),
        "freeze_llm": (False,),
        "lora_bias": ("none",),
        "lora_dtype": ("float32",),
        "init_weights": (True, "true", "gaussian"),
        "use_swift_lora": (False,),
        "tuner_backend": ("peft",),
        "use_galore": (False,),
        "lisa_activated_layers": (0,),
        "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", *PAIR_LOSSES),
        "callbacks": ([],),
        "enable_dft_loss": (False,),
        "enable_channel_loss": (False,),
        "zero_hpz_partition_size": (1,),
        "deepspeed_autotp_size": (1,),
        "use_tiled_mlp": (False,),
        "activation_cpu_offload": (False,),
        "use_ray": (False,),
        "ref_adapters": ([],),
        "teacher_adapters": ([],),
        "num_iterations": (1,),
        "offload_teacher_model": (False,),
        "vllm_pipeline_parallel_size": (1,),
        "vllm_enable_expert_parallel": (False,),
        "vllm_data_parallel_size": (1,),
        "vllm_enable_lora": (False,),
        "async_generate": (False,),
        "offload_optimizer": (False,),
        "offload_model": (False,),
        "use_gym_env": (False,),
        "log_entropy": (False,),
        "chord_sft_dataset": ([],),
        "sdar_loss_coef": (0, 0.0),
        "tensor_parallel_size": (1,),
        "use_async_engine": (False,),
    },
)
"""Its table."""
