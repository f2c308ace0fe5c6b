"""Names of LLaMA-Factory (`llamafactory-cli train`): its arguments of supervised training, DPO and KTO.

Sources: `src/llamafactory/hparams/` of 0.9.6.dev0 (commit ff6d4d1, August 2026) for names and defaults,
`model/adapter.py` for the types of weights, `model/model_utils/checkpointing.py` for checkpoints, `examples/deepspeed/`
for its files, `train/dpo/trainer.py` and `train/kto/trainer.py` of 0.9.5 for the loss of preferences.
"""

from collections.abc import Iterator, Mapping

from profiler.config.files.formats.together import (
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
    split,
    words,
)
from profiler.config.files.vocabulary import RUN_IT, Vocabulary
from profiler.config.notes import Note
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs

_NAME = "LLaMA-Factory"
_RANK = 8
_BUCKET = 500_000_000
_BITS = 4
_WITHOUT_REFERENCE = ("orpo", "simpo")


def _tuning(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the adapter: `LoraArguments`, where alpha is twice the rank and all linear layers are adapted."""
    if (leaves.get("finetuning_type") or "lora") != "lora":
        return {"use_peft": False}
    rank = leaves.get("lora_rank") or _RANK
    target = split(leaves.get("lora_target") or "all")
    found: dict[str, object] = {
        "use_peft": True,
        "lora_r": rank,
        "lora_alpha": leaves.get("lora_alpha") or (rank * 2 if isinstance(rank, int) else rank),
        "lora_dropout": leaves.get("lora_dropout") or 0.0,
        "lora_target_modules": "all-linear" if target == ["all"] else target,
    }
    if leaves.get("quantization_bit") == _BITS:
        nested = leaves.get("double_quantization")
        found.update(load_in_4bit=True, use_bnb_nested_quant=True if nested is None else nested)
    elif leaves.get("quantization_bit") is not None:
        found["load_in_8bit"] = True
    return found


def _types(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return the types: trained weights are float32, unless `pure_bf16` or DeepSpeed's own copy says otherwise.

    Others are of the type of autocast (`compute_dtype` in `hparams/parser.py`).
    """
    is_mixed, is_scaled = (leaves.get(key) is True for key in ("bf16", "fp16"))
    is_full = leaves.get("finetuning_type") == "full"
    keeps = leaves.get("pure_bf16") is True or leaves.get("deepspeed") is not None
    half = "float16" if is_scaled and not is_mixed else "bfloat16"
    return {"bf16": is_mixed, "fp16": is_scaled, "dtype": "float32" if is_full and not keeps else half}


def _checkpointing(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return whether layers are recomputed: by LLaMA-Factory, and over that by transformers where it is asked to."""
    by_trainer = leaves.get("gradient_checkpointing") is True
    if leaves.get("disable_gradient_checkpointing") is True and not by_trainer:
        return {"gradient_checkpointing": False}
    own = {"use_reentrant": by_trainer or leaves.get("use_reentrant_gc") is not False}
    stated = leaves.get("gradient_checkpointing_kwargs") if by_trainer else None
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": stated or own}


def _shipped(value: object) -> Mapping[str, object] | None:
    return shipped_deepspeed(value, _BUCKET)


def _sharding(leaves: Mapping[str, object]) -> Mapping[str, object]:
    shipped = _shipped(leaves.get("deepspeed"))
    return {} if shipped is None else {"deepspeed": shipped}


def _has_liger(leaves: Mapping[str, object]) -> bool:
    return leaves.get("enable_liger_kernel") is True or leaves.get("use_liger_kernel") is True


def _rows(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return what only rows with labels, or only preferences have; `FinetuningArguments` has the default of beta."""
    if leaves.get("stage") not in PREFERENCES:
        return {"packing": leaves.get("packing") is True}
    beta = leaves.get("pref_beta")
    return {"beta": 0.1 if beta is None else beta}


def _trial(leaves: Mapping[str, object]) -> Mapping[str, object]:
    """Return how the loss is computed: `CustomSeq2SeqTrainer` leaves it to transformers."""
    if leaves.get("stage") in PREFERENCES:
        return {"logprobs": Logprobs.PAIRS_AT_ONCE.value}
    return {} if _has_liger(leaves) else {"logprobs": Logprobs.NLL.value}


def _is_training(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    if "model_class" in leaves:
        problem = f"is a key of {_NAME} 1, and the names of 0.9 are read"
        yield refused("model_class", leaves["model_class"], problem)
    elif leaves.get("do_train") is not True:
        problem = f"is not true, so {_NAME} does not train, and only uses or exports the model"
        yield refused("do_train", leaves.get("do_train"), problem, "Write do_train: true into it if it is to train.")


def _is_read(leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    kind = leaves.get("finetuning_type") or "lora"
    if kind not in ("lora", "full"):
        yield refused("finetuning_type", kind, "has no formula here; only lora or full")
    if kind == "lora" and leaves.get("quantization_bit") == _BITS and leaves.get("deepspeed") is None:
        yield float32_adapters(_NAME)
        yield from scaled_in_four_bits(_NAME, _types(leaves))
    model = str(leaves.get("model_name_or_path", "")).lower()
    if "gemma-2-" in model and leaves.get("flash_attn") in (None, "auto"):
        problem = f"is {_NAME}'s choice for Gemma 2 (flash_attention_2 where it is installed, else eager)"
        yield refused("attn_implementation", "auto", problem, "Give attn_implementation= as well.")
    if leaves.get("stage") in PREFERENCES:
        yield from of_pairs(_NAME, Logprobs.PAIRS_AT_ONCE, has_liger=_has_liger(leaves))
        if leaves.get("stage") == Recipe.DPO and leaves.get("pref_loss") in _WITHOUT_REFERENCE:
            yield refused("pref_loss", leaves["pref_loss"], "has no reference, and no formula here", RUN_IT)
    elif not _has_liger(leaves):
        yield Note(key="logprobs", text=f"logprobs={Logprobs.NLL} (in {_NAME} the loss is that of transformers)")


LLAMA_FACTORY = Vocabulary(
    version="LLaMA-Factory 0.9.6",
    names={
        "cutoff_len": "max_length",
        "flash_attn": "attn_implementation",
        "enable_liger_kernel": "use_liger_kernel",
        "moe_aux_loss_coef": "router_aux_loss_coef",
        "quantization_type": "bnb_4bit_quant_type",
        "additional_target": "lora_modules_to_save",
    },
    values={
        "attn_implementation": {
            "auto": "sdpa",
            "disabled": "eager",
            "fa2": "flash_attention_2",
            "fa3": "flash_attention_3",
        },
        "lora_modules_to_save": {"": None},
    },
    defaults={
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_length": 2048,
        "attn_implementation": "sdpa",
        "use_liger_kernel": False,
        "optim": "adamw_torch_fused",
    },
    recipe_key="stage",
    recipes={"sft": Recipe.SFT, **PREFERENCES},
    unread={
        # `PairwiseTrainer` on `AutoModelForCausalLMWithValueHead`, whose forward is that of the causal model.
        "rm": "scores rows by a head next to the LM head, and makes the logits of all tokens too, without a formula",
    },
    trainer="sft",
    rules=(_tuning, _types, _checkpointing, _sharding, _rows),
    trial=(_trial,),
    by_rule=words(
        f"""
        finetuning_type lora_rank lora_alpha lora_dropout lora_target quantization_bit double_quantization bf16
        pure_bf16 disable_gradient_checkpointing gradient_checkpointing gradient_checkpointing_kwargs use_reentrant_gc
        do_train model_class packing pref_beta pref_loss {PROCESSES}
        """
    ),
    checks=(
        lambda leaves: absent_deepspeed(_NAME, _shipped, leaves),
        _is_training,
        _is_read,
        lambda leaves: only_text("model_name_or_path", _NAME, leaves),
        lambda leaves: one_process(_NAME, leaves),
    ),
    ignored=frozenset({"model_type"}),
    free=words(
        """
        template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history streaming buffer_size
        mix_strategy interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers max_samples
        eval_num_beams ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format default_system
        enable_thinking preserve_thinking tokenized_path data_shared_file_system cache_dir use_fast_tokenizer
        split_special_tokens low_cpu_mem_usage rope_scaling infer_backend infer_dtype offload_folder use_kv_cache
        hf_hub_token ms_hub_token om_hub_token print_param_status image_max_pixels image_min_pixels
        image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels video_fps video_maxlen
        use_audio_in_video audio_sampling_rate image_resolution video_resolution vllm_maxlen vllm_gpu_util
        vllm_enforce_eager vllm_max_lora_rank vllm_config freeze_trainable_layers freeze_trainable_modules
        freeze_extra_modules freeze_vision_tower freeze_multi_modal_projector freeze_language_model train_mm_proj_only
        loraplus_lr_ratio loraplus_lr_embedding pissa_iter pissa_convert create_new_adapter module_dropout galore_target
        galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target apollo_rank
        apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise
        apollo_scale_front badam_mode badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio
        badam_mask_mode badam_verbose use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode
        swanlab_api_key swanlab_logdir compute_accuracy disable_shuffling early_stopping_steps plot_loss
        include_effective_tokens_per_second include_tokens_per_second do_sample top_p top_k num_beams max_length
        max_new_tokens repetition_penalty length_penalty skip_special_tokens predict_with_generate pref_ftx
        dpo_label_smoothing ray_run_name ray_storage_path ray_storage_filesystem resources_per_worker
        placement_strategy ray_init_kwargs master_addr master_port generation_max_length generation_num_beams
        adapter_folder asft_alpha eaft_alpha eval_dataset_size export_legacy_format fp8_backend
        fp8_enable_fsdp_float8_all_gather hyper_parallel_args init_special_tokens kto_chosen_weight kto_rejected_weight
        ld_alpha oft_block_size oft_rank oft_target ppo_buffer_size ppo_epochs ppo_score_norm ppo_target
        ppo_whiten_rewards pref_bco_weight profile_modules profiler_active_steps profiler_output_dir
        profiler_profile_memory profiler_record_shapes profiler_repeat profiler_wait_steps profiler_warmup_steps
        profiler_with_stack ref_model_adapters ref_model_quantization_bit reward_model_adapters
        reward_model_quantization_bit reward_model_type simpo_gamma swanlab_lark_secret swanlab_lark_webhook_url
        """
    ),
    changes={
        "adapter_name_or_path": (),
        "resize_vocab": (False,),
        "add_tokens": (),
        "add_special_tokens": (),
        "new_special_tokens_config": (),
        "shift_attn": (False,),
        "mixture_of_depths": (),
        "use_unsloth": (False,),
        "use_unsloth_gc": (False,),
        "use_v1_kernels": (False,),
        "upcast_layernorm": (False,),
        "upcast_lmhead_output": (False,),
        "train_from_scratch": (False,),
        "use_kt": (False,),
        "quantization_method": ("bnb", "bitsandbytes"),
        "quantization_device_map": (),
        "neat_packing": (False,),
        "pissa_init": (False,),
        "use_galore": (False,),
        "use_apollo": (False,),
        "use_badam": (False,),
        "use_llama_pro": (False,),
        "use_adam_mini": (False,),
        "use_muon": (False,),
        "use_mca": (False,),
        "use_megatron_bridge": (False,),
        "use_hyper_parallel": (False,),
        "hyper_parallel_cp_size": (1,),
        "use_dft_loss": (False,),
        "use_asft_loss": (False,),
        "use_eaft_loss": (False,),
        "fp8": (False,),
        "ray_num_workers": (1,),
        "enable_torch_profiler": (False,),
        "sequence_parallel_size": (1,),
        "ref_model": (),
        "reward_model": (),
    },
)
"""Its table."""
