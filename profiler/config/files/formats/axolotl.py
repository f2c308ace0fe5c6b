"""Names of axolotl (`axolotl train`): its YAML of supervised training, reward models, preferences and GRPO.

Sources: `src/axolotl/utils/schemas/` of 0.18.0 (commit 067b021, July 2026) for names and defaults, `utils/config/` for
what is derived of them, `loaders/model.py` for types and 4-bit weights, `core/builders/` for the trainers' arguments.
"""

from collections.abc import Iterator, Mapping

from profiler.config.files.formats.together import (
    PAIR_LOSSES,
    PREFERENCES,
    PROCESSES,
    absent_deepspeed,
    float32_adapters,
    keeps_types,
    of_axolotl,
    of_pairs,
    one_process,
    only_text,
    refused,
    said_of_types,
    scaled_in_four_bits,
    types_of_axolotl,
    words,
)
from profiler.config.files.vocabulary import RUN_IT, Vocabulary
from profiler.config.notes import Note, kernel_notes, not_counted
from profiler.config.trl_releases.facts import COPIED_ADAPTERS
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Lengths, Logprobs

_NAME = "axolotl"
_LIGER = ("liger_rope", "liger_rms_norm", "liger_fused_linear_cross_entropy")
_GATED = ("liger_glu_activation", "liger_swiglu")
_PLUGINS = ("LigerPlugin", "SwanLabPlugin")
"""Plugins that do nothing by themselves, or nothing on a GPU."""

_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
_PREFERENCES: Mapping[object, Recipe] = {**PREFERENCES, "ipo": Recipe.DPO}
"""Trainers of trl 1.8 (`core/builders/rl.py`)."""

_ATTENTION = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}


def _is_grpo(leaves: Mapping[str, object]) -> bool:
    return leaves.get("rl") == Recipe.GRPO


def _is_preferred(leaves: Mapping[str, object]) -> bool:
    return leaves.get("rl") in _PREFERENCES


def _is_reward(leaves: Mapping[str, object]) -> bool:
    """Return whether trl's reward model is trained, with its own model and collator (`core/builders/causal.py`)."""
    return not leaves.get("rl") and leaves.get("reward_model") is True


def _attention(leaves: Mapping[str, object]) -> object:
    """Return the attention: by its own key, or by the switch of each kind; None is the default of transformers."""
    stated = next((name for key, name in _ATTENTION.items() if leaves.get(key) is True), None)
    return leaves.get("attn_implementation") or stated


def _has_liger(leaves: Mapping[str, object]) -> bool:
    """Return whether all of Liger's kernels are on, as `use_liger_kernel` of transformers does; of GRPO, its loss."""
    if _is_grpo(leaves):
        return leaves.get("trl.use_liger_loss") is True
    gated = not _is_reward(leaves) and any(leaves.get(key) is True for key in _GATED)
    return gated and all(leaves.get(key) is True for key in _LIGER)


def _tuning(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the adapter; its 4-bit weights have a nested quantisation."""
    if leaves.get("adapter") not in ("lora", "qlora"):
        return {"use_peft": False}
    targets = "all-linear" if leaves.get("lora_target_linear") is True else leaves.get("lora_target_modules")
    found: dict[str, object] = {"use_peft": True, **({"lora_target_modules": targets} if targets else {})}
    if leaves.get("adapter") == "qlora":
        found.update(load_in_4bit=True, use_bnb_nested_quant=True)
    return found


def _types(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the types: ``bf16: auto`` is true on every card that is answered, and ``full`` has no autocast.

    The weights have the type of autocast. ``fp16`` takes the place of ``auto`` (`resolve_dtype`).
    """
    stated = leaves.get("bf16", leaves.get("bfloat16", "auto"))
    is_on = stated in (True, "true", "full") or (stated == "auto" and leaves.get("fp16") is not True)
    is_scaled = leaves.get("fp16") is True and not is_on
    dtype = "bfloat16" if is_on else "float16" if is_scaled else "float32"
    types = {"dtype": dtype, "bf16": is_on and stated != "full", "fp16": is_scaled}
    counts = not (_is_grpo(leaves) or _is_reward(leaves) or _has_liger(leaves))
    return types_of_axolotl(leaves, types, _attention(leaves), counts=counts)


def _checkpointing(leaves: Mapping[str, object]) -> Mapping[str, object]:
    if leaves.get("gradient_checkpointing") is not True:
        return {"gradient_checkpointing": False}
    inner = leaves.get("gradient_checkpointing_kwargs") or {"use_reentrant": not _is_grpo(leaves)}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": inner}


def _sharding(leaves: Mapping[str, object]) -> Mapping[str, object]:
    shipped = of_axolotl(leaves.get("deepspeed"))
    return {} if shipped is None else {"deepspeed": shipped}


def _rows(leaves: Mapping[str, object]) -> Mapping[str, object]:
    found: dict[str, object] = {"attn_implementation": _attention(leaves), "use_liger_kernel": _has_liger(leaves)}
    rows, batch = leaves.get("micro_batch_size") or 1, leaves.get("batch_size")
    if leaves.get("gradient_accumulation_steps") is None and isinstance(batch, int) and isinstance(rows, int):
        found["gradient_accumulation_steps"] = batch // rows
    if not _is_grpo(leaves):
        found["max_length"] = leaves.get("sequence_len") or 512
        if _is_preferred(leaves):
            found["beta"] = next((leaves[key] for key in ("trl.beta", "rl_beta") if leaves.get(key) is not None), 0.1)
        elif not _is_reward(leaves):
            found["packing"] = leaves.get("sample_packing") is True
    elif leaves.get("trl.beta") is None:
        found["beta"] = leaves.get("rl_beta") or 0.0
    return found


def _evaluation(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return whether there is an evaluation, in batches as large as those of training."""
    if not leaves.get("val_set_size") and not leaves.get("test_datasets"):
        return {"eval_strategy": "no"}
    rows = leaves.get("eval_batch_size") or leaves.get("micro_batch_size") or 1
    return {"eval_strategy": "steps", "per_device_eval_batch_size": rows}


def _engine(leaves: Mapping[str, object]) -> Mapping[str, object]:
    if not _is_grpo(leaves) or leaves.get("trl.use_vllm") is not True or leaves.get("trl.vllm_mode") != "colocate":
        return {}
    share, gpus = leaves.get("vllm.gpu_memory_utilization"), leaves.get("vllm.tensor_parallel_size")
    return {"vllm_gpu_memory_utilization": 0.9 if share is None else share, "vllm_tensor_parallel_size": gpus or 1}


def _trial(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return how the loss is computed (GRPO is that of trl 1.8), and whether rows are padded to the longest.

    Those of a reward model are unless `pad_to_sequence_len` is false (`hint_reward_model_pad`), and it has no LM head.
    """
    if _is_grpo(leaves):
        made = {} if _has_liger(leaves) else {"logprobs": Logprobs.SELECTIVE_IN_PLACE.value}
        return {**made, "ref_adapter": not keeps_types(leaves)}
    if _is_preferred(leaves):
        return {"logprobs": Logprobs.PAIRS_OF_ROWS.value}
    pads = leaves.get("pad_to_sequence_len")
    if _is_reward(leaves):
        return {} if pads is False else {"lengths": Lengths.FORCED.value}
    found: dict[str, object] = {} if _has_liger(leaves) else {"logprobs": Logprobs.NLL.value}
    if pads is True or leaves.get("sample_packing") is True:
        found["lengths"] = Lengths.FORCED.value
    return found


def _is_read(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    adapter, bits = leaves.get("adapter"), leaves.get("load_in_4bit") is True
    if adapter not in (None, "", "lora", "qlora"):
        yield refused("adapter", adapter, "has no formula here; only lora, qlora or none")
    elif bits != (adapter == "qlora"):
        problem = f"does not go with adapter={adapter} in {_NAME}, which quantises with qlora alone"
        yield refused("load_in_4bit", leaves.get("load_in_4bit"), problem, "Change one of them.")
    if adapter in ("lora", "qlora"):
        for key in ("lora_r", "lora_alpha"):
            if leaves.get(key) is None:
                yield refused(key, None, f"is absent, and {_NAME} has no default of it", f"State {key}.")
        if leaves.get("lora_target_linear") is not True and not leaves.get("lora_target_modules"):
            yield refused("lora_target_modules", None, f"is absent, and {_NAME} has no default of it", "State it.")
    attention = _attention(leaves)
    if attention not in (None, *_ATTENTION.values()) and not any(kernel_notes({"attn_implementation": attention})):
        yield refused("attn_implementation", attention, "has no formula here", "Give attn_implementation= as well.")
    if leaves.get("gradient_checkpointing") not in (None, True, False):
        problem = f"moves activations to the host in {_NAME}, which has no formula here; only true or false"
        yield refused("gradient_checkpointing", leaves["gradient_checkpointing"], problem)
    plugins = leaves.get("plugins") or []
    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        if not str(plugin).endswith(_PLUGINS):
            yield refused("plugins", plugin, "is a plugin without a formula here")
    on = [key for key in (*_LIGER, *_GATED, "liger_cross_entropy", "liger_layer_norm") if leaves.get(key) is True]
    if on and (_is_grpo(leaves) or not _has_liger(leaves)):
        yield refused(on[0], True, "has no formula here, unless all of Liger's kernels are on in SFT")
    if leaves.get("reward_model") is True and (leaves.get("rl") or leaves.get("sample_packing") is True):
        key = "rl" if leaves.get("rl") else "sample_packing"
        yield refused(key, leaves[key], f"does not go with reward_model=true in {_NAME}")
    if _is_grpo(leaves) and leaves.get("trl.max_completion_length") is None:
        yield refused(
            "max_completion_length", None, "is absent, and completions have no bound then", "Give it as well."
        )


def _is_open(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Return what is not counted, and what its trainers do."""
    is_full = leaves.get("adapter") not in ("lora", "qlora")
    yield from said_of_types(leaves, _types(leaves), _attention(leaves))
    has_kernels = leaves.get("trust_remote_code") is not True and any(leaves.get(key) is not False for key in _KERNELS)
    if not is_full and leaves.get("lora_dropout") in (None, 0, 0.0) and has_kernels:
        yield not_counted(f"what {_NAME}'s own kernels of LoRA save (the figure may be too high)")
    if leaves.get("adapter") == "qlora" and leaves.get("deepspeed") is None and not _is_preferred(leaves):
        yield float32_adapters(_NAME)
        yield from scaled_in_four_bits(_NAME, _types(leaves))
    if _is_preferred(leaves):
        yield from of_pairs(_NAME, Logprobs.PAIRS_OF_ROWS, has_liger=_has_liger(leaves))
        if leaves["rl"] == Recipe.KTO and is_full:
            yield refused("rl", "kto", "makes a float32 reference in full fine-tuning, without a formula here", RUN_IT)
        if leaves.get("sample_packing") is True:
            yield refused("sample_packing", True, f"does not go with rl={leaves['rl']} in {_NAME}")
    elif not _has_liger(leaves) and not _is_reward(leaves):
        said = "as in trl 1.8" if _is_grpo(leaves) else "the loss is that of transformers"
        yield Note(key="logprobs", text=f"logprobs={_trial(leaves)['logprobs']} (in {_NAME} {said})")
    if not _is_grpo(leaves):
        yield from one_process(_NAME, leaves)
    elif not is_full and keeps_types(leaves) and (leaves.get("trl.beta") or leaves.get("rl_beta")):
        yield not_counted(f"{COPIED_ADAPTERS}, both in float32 under ZeRO-3 (the figure is too low)")


AXOLOTL = Vocabulary(
    version="axolotl 0.18",
    names={
        "base_model": "model_name_or_path",
        "micro_batch_size": "per_device_train_batch_size",
        "optimizer": "optim",
        "num_epochs": "num_train_epochs",
        "lr_scheduler": "lr_scheduler_type",
        "peft_use_dora": "use_dora",
        "peft_use_rslora": "use_rslora",
        "vllm.max_model_len": "vllm_max_model_length",
    },
    values={"optim": {"adamw_bnb_8bit": "adamw_8bit"}},
    defaults={
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "lora_dropout": 0.0,
        "optim": "adamw_torch_fused",
        "use_vllm": False,
    },
    recipe_key="rl",
    recipes={"grpo": Recipe.GRPO, "sft": Recipe.SFT, "reward_model": Recipe.REWARD, **_PREFERENCES},
    switches={"reward_model": "reward_model"},
    trainer="sft",
    rules=(_tuning, _types, _checkpointing, _sharding, _rows, _evaluation, _engine),
    trial=(_trial,),
    by_rule=words(
        f"""
        adapter load_in_4bit trl.use_liger_loss lora_target_linear lora_target_modules bf16 bfloat16
        gradient_checkpointing gradient_checkpointing_kwargs attn_implementation sequence_len sample_packing
        pad_to_sequence_len batch_size rl_beta val_set_size test_datasets eval_batch_size plugins {PROCESSES}
        vllm.gpu_memory_utilization vllm.tensor_parallel_size {" ".join(_ATTENTION)} {" ".join(_LIGER)}
        {" ".join(_GATED)} {" ".join(_KERNELS)} liger_cross_entropy liger_layer_norm eval_strategy reward_model
        """
    ),
    checks=(
        _is_read,
        _is_open,
        lambda leaves: absent_deepspeed(_NAME, of_axolotl, leaves),
        lambda leaves: only_text("base_model", _NAME, leaves),
    ),
    ignored=frozenset({"deepspeed_config"}),
    free=words(
        """
        strict auto_resume_from_checkpoints mean_resizing_embeddings shrink_embeddings datasets shuffle_merged_datasets
        shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx skip_prepare_dataset
        num_dataset_shards_to_save dataset_processes dataset_exact_deduplication dataset_keep_in_memory
        push_dataset_to_hub hf_use_auth_token device world_size ddp do_causal_lm_eval eval_causal_lm_metrics
        do_bench_eval bench_dataset bench_split loss_watchdog_threshold loss_watchdog_patience gc_steps gc_collect_steps
        excess_length_strategy eval_sequence_len min_sample_len max_prompt_len sample_packing_group_size
        sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method eval_sample_packing
        curriculum_sampling multipack_real_batches pose_split_on_token_ids pose_max_context_len pose_num_chunks
        pretrain_multipack_buffer_size pretrain_multipack_attn streaming streaming_multipack_buffer_size
        chunked_cross_entropy_num_chunks eaft_alpha eaft_k tiled_mlp_num_shards tiled_mlp_use_original_mlp
        heads_k_stride ring_attn_func evals_per_epoch saves_per_epoch save_first_step early_stopping_patience
        use_tensorboard include_tokens_per_second include_tkps orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight
        kto_undesirable_weight chat_template chat_template_jinja eot_tokens default_system_message is_preprocess
        preprocess_iterable total_num_tokens total_supervised_tokens sample_packing_eff_est axolotl_config_path
        is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model generate_samples
        num_generation_samples generation_max_new_tokens generation_temperature generation_top_p generation_top_k
        generation_prompt_ratio generation_do_sample base_model_config cls_model_config tokenizer_config
        tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common tokenizer_type processor_type processor_kwargs
        tokenizer_save_jinja_files model_type experimental_skip_move_to_device save_safetensors bos_token eos_token
        pad_token unk_token additional_special_tokens lora_fan_in_fan_out lora_rank_pattern lora_alpha_pattern
        peft_ensure_weight_tying loraplus_lr_ratio loraplus_lr_embedding merge_lora merge_method relora_prune_ratio
        relora_prune_method train_on_inputs group_by_length embedding_lr embedding_lr_scale torchdistx_path
        lr_quadratic_warmup cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor adam_epsilon2 adam_beta3 dion_lr
        dion_momentum dion_rank_fraction dion_rank_multiple_of use_mlflow mlflow_tracking_uri mlflow_experiment_name
        mlflow_run_name hf_mlflow_log_artifacts use_wandb wandb_name wandb_run_id wandb_mode wandb_project wandb_entity
        wandb_watch wandb_log_model use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key
        comet_mode comet_online gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens
        gradio_temperature ray_run_name use_otel_metrics otel_metrics_host otel_metrics_port use_trackio
        trackio_project_name trackio_run_name low_cpu_mem_usage lora_on_cpu dpo_label_smoothing dpo_padding_free
        dpo_loss_weights float32 float16 profiler_steps_start special_tokens dataloader_pin_memory lisa_step_interval
        lisa_layers_attribute num_labels center_rewards_coefficient comet_experiment_config flex_attn_compile_kwargs
        fp32_norm_classes fp8_enable_fsdp_float8_all_gather fsdp_final_state_dict_type model_quantization_config_kwargs
        pretraining_sample_concatenation qgalore_cos_threshold qgalore_gamma_proj qgalore_proj_bits
        qgalore_proj_group_size qgalore_proj_quant qgalore_proj_type qgalore_queue_size qgalore_rank qgalore_scale
        qgalore_update_proj_gap resources_per_worker scaling_softmax_bias scaling_softmax_factor torch_compile_options
        prefetch_depth replay_recompute_logps reroll_max_groups reroll_start_fraction reward_num_workers
        skip_zero_advantage_batches streaming_min_groups streaming_partial_batch vllm_sync_interval
        enable_prefix_caching enable_reasoning enforce_eager host port reasoning_parser serve_module
        worker_extension_cls GPU
        """
    ),
    changes={
        "resize_token_embeddings_to_32x": (False,),
        "embeddings_skip_upcast": (False,),
        "reinit_weights": (False,),
        "trainer_cls": (),
        "ebft": (),
        "qat": (),
        "quantization": (),
        "process_reward_model": (False,),
        "dynamic_checkpoint": (),
        "pretraining_dataset": (),
        "device_map": ("auto", 0),
        "fp8": (False,),
        "selective_checkpointing": (),
        "activation_offloading": (False,),
        "layer_offloading": (False,),
        "freeze_mm_modules": (False,),
        "unfrozen_parameters": ([],),
        "batch_flattening": (False, "auto"),
        "use_pose": (False,),
        "xformers_attention": (False,),
        "flex_attention": (False,),
        "sage_attention": (False,),
        "flash_optimum": (False,),
        "s2_attention": (False,),
        "flash_attn_cross_entropy": (False,),
        "flash_attn_rms_norm": (False,),
        "flash_attn_fuse_qkv": (False,),
        "flash_attn_fuse_mlp": (False,),
        "fused_attn_kernel": (False,),
        "experts_implementation": (),
        "quantize_moe_experts": (False,),
        "scaling_softmax": (False,),
        "chunked_cross_entropy": (False,),
        "cut_cross_entropy": (False,),
        "use_eaft": (False,),
        "tiled_mlp": (False,),
        "deepcompile": (False,),
        "fsdp": ([],),
        "fsdp_config": (),
        "*.fsdp_config": (),
        "fsdp_version": (),
        "fp32_norms": (False,),
        "dp_shard_size": (1,),
        "dp_replicate_size": (1,),
        "sequence_parallel_degree": (1,),
        "context_parallel_size": (1,),
        "tensor_parallel_size": (1,),
        "tokens": ([],),
        "added_tokens_overrides": (),
        "neftune_noise_alpha": (0,),
        "max_memory": (),
        "gpu_memory_limit": (),
        "fix_untrained_tokens": (),
        "model_quantization_config": (),
        "use_kernels": (False,),
        "use_onebitllms": (False,),
        "lora_model_dir": (),
        "dpo_loss_type": (*PAIR_LOSSES, *([each] for each in PAIR_LOSSES)),
        "dpo_use_liger_kernel": (False,),
        "dpo_use_weighting": (False,),
        "rl_adapter_ref_model": (False,),
        "lora_target_parameters": ([],),
        "peft_layers_to_transform": (),
        "peft_layers_pattern": (),
        "peft": (),
        "peft_layer_replication": (),
        "peft_init_lora_weights": (True, "gaussian"),
        "peft_trainable_token_indices": (),
        "peft_autocast_adapter_dtype": (True,),
        "qlora_sharded_model_loading": (False,),
        "gptq": (False,),
        "bnb_config_kwargs": (),
        "relora": (False,),
        "relora_steps": (),
        "relora_cpu_offload": (False,),
        "lr_groups": (),
        "use_ray": (False,),
        "lisa_n_layers": (),
        "profiler_steps": (),
        "flash_attn_d512": (False,),
        "large_head_attention": (False,),
        "sdpa_varlen": (False,),
        "gemma4_hybrid_attn_impl": (False,),
        "llama4_linearized_experts": (False,),
        "ray_num_workers": (1,),
        "vllm.data_parallel_size": (1,),
        "vllm.dtype": ("auto",),
        "trl.async_prefetch": (False,),
        "trl.use_data_producer": (False,),
        "trl.rollout_func": (),
        "trl.replay_buffer_size": (0,),
        "trl.vllm_lora_sync": (False,),
    },
)
"""Its table."""
