"""The keys of trl 1.16's arguments, and what those without a formula do to memory."""

from collections.abc import Collection, Mapping

from profiler.config.notes import Direction, Uncounted
from profiler.config.trl_releases.facts import KEY_VERSIONS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS

_REENTRANT = Uncounted(
    what="which layers are recomputed, by which code path of torch, and where their inputs wait",
    direction=Direction.EITHER,
    neutral=({}, {"use_reentrant": False}, {"every_n_layers": 1}, {"offload": False}),
)
"""Source: `PreTrainedModel.activation_checkpointing_enable` in transformers 5.23."""

ANY_TRAINER: Mapping[str, Uncounted] = {
    "activation_checkpointing_kwargs": _REENTRANT,
    "gradient_checkpointing_kwargs": _REENTRANT,
    "liger_kernel_config": Uncounted(
        what="chooses Liger's kernels one by one", direction=Direction.EITHER, neutral=({},)
    ),
    "full_determinism": Uncounted(
        what="kernels that always add in one order need other scratch", direction=Direction.LOW, neutral=(False,)
    ),
    "mask_truncated_completions": Uncounted(
        what="completions without an end are not scored", direction=Direction.HIGH, neutral=(False,)
    ),
    "pad_to_multiple_of": Uncounted(
        what="rows are padded to a multiple of it", direction=Direction.LOW, neutral=(0, 1)
    ),
}
"""Keys of every trainer."""

OF_GENERATION: Mapping[str, Uncounted] = {
    "temperature": Uncounted(what="sampling divides the logits", direction=Direction.LOW, neutral=(1, 1.0)),
    "top_k": Uncounted(what="sampling sorts the logits", direction=Direction.LOW, neutral=(0, -1)),
    "top_p": Uncounted(what="sampling sorts the logits", direction=Direction.LOW, neutral=(1, 1.0)),
    "min_p": Uncounted(what="sampling makes probabilities of the logits", direction=Direction.LOW, neutral=(0, 0.0)),
    "repetition_penalty": Uncounted(what="sampling copies the logits", direction=Direction.LOW, neutral=(1, 1.0)),
    "generation_kwargs": Uncounted(what="changes generation", direction=Direction.EITHER, neutral=({},)),
}
"""Keys of completions that transformers generates; those of vLLM are in its own part of the card."""

OF_ENGINE: Mapping[str, Uncounted] = {
    "vllm_importance_sampling_correction": Uncounted(
        what="the policy does not score its completions again", direction=Direction.HIGH, neutral=(True,)
    ),
}
"""Keys of completions that vLLM generates."""

OF_ZERO_3: Mapping[str, Uncounted] = {
    "ds3_gather_for_generation": Uncounted(
        what="ZeRO-3 gathers weights layer by layer while it generates, not all at once",
        direction=Direction.HIGH,
        neutral=(True,),
    ),
}
"""Keys of ZeRO-3 (`unwrap_model_for_generation` in trl's `models/utils.py`)."""

OF_ROWS: Mapping[str, Uncounted] = {
    "label_smoothing_factor": Uncounted(
        what="the loss is that of all logits, in a forward of its own", direction=Direction.LOW, neutral=(0, 0.0)
    ),
}
"""Keys of `SFTTrainer.compute_loss`."""

OF_KTO: Mapping[str, Uncounted] = {
    "loss_type": Uncounted(what="without a KL term, no batch runs for it", direction=Direction.HIGH, neutral=("kto",)),
}
"""Keys of `KTOTrainer.__init__`."""

OF_FOUR_BITS: Mapping[str, Uncounted] = {
    "bnb_4bit_compute_dtype": Uncounted(
        what="4-bit weights, and what layers make of them, are float32 for a moment",
        direction=Direction.LOW,
        neutral=("bfloat16", "float16", "torch.bfloat16", "torch.float16", "auto"),
    ),
}
"""Keys of weights in 4 bits (`Linear4bit.forward` of bitsandbytes 0.49, which autocast does not reach)."""

OF_EXPERTS: Mapping[str, Uncounted] = {
    "router_aux_loss_coef": Uncounted(what="whether the loss keeps what routers computed", direction=Direction.EITHER),
}
"""Keys of mixtures of experts."""

EFFECTS: Mapping[str, Uncounted] = {
    **ANY_TRAINER,
    **OF_GENERATION,
    **OF_ENGINE,
    **OF_ZERO_3,
    **OF_ROWS,
    **OF_FOUR_BITS,
    **OF_EXPERTS,
}
"""All of them."""


KEY_OF: Mapping[str, str] = {name: key.name for key in TRIAL_KEYS for name in key.trl_names}
"""The key of a trial by its name in trl's files. trl has no `max_prompt_length` any more, but older files do."""

LAUNCH_KEYS = ("num_processes", "accelerate_config")
"""Keys that `trl grpo --config` takes from a recipe for `accelerate launch` (`trl/cli/commands/training.py`, 1.16)."""

MODEL_KEYS = (
    *LAUNCH_KEYS,
    "use_peft",
    "disable_dropout",
    "load_in_4bit",
    "generation_batch_size",
    "packing",
    "vllm_device",
    "deepspeed",
    "fsdp",
    "fsdp_config",
)
"""Keys that have a rule of their own in `config.py`."""

CONTAINERS = ("model_init_kwargs", "env")
"""Keys of trl whose values are keys: arguments of `from_pretrained`, and variables of the environment (`TrlParser`)."""

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "use_transformers_paged": (False,),
    "use_transformers_continuous_batching": (False,),
    "cache_implementation": ("dynamic",),
    "torch_compile": (False,),
    "torch_compile_backend": (),
    "torch_compile_mode": (),
    "parallelism_config": ({},),
    "cast_lm_head_to_fp32": (False,),
    "num_iterations": (1,),
    "sync_ref_model": (False,),
    "entropy_coef": (0, 0.0),
    "use_adaptive_entropy": (False,),
    "top_entropy_quantile": (1, 1.0),
    "load_in_8bit": (False,),
    "use_dora": (False,),
    "lora_modules_to_save": ([],),
    "lora_target_parameters": ([],),
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "activation_offloading": (False,),
    "padding_free": (False,),
    "auto_find_batch_size": (False,),
    "optim_target_modules": ([],),
    "optim_args": ("",),
    "neftune_noise_alpha": (0, 0.0),
    "use_cpu": (False,),
    "use_cache": (False,),
    "adafactor": (False,),
    "no_cuda": (False,),
    "sharded_ddp": ("", [], False),
    "torchdynamo": ("",),
}
"""Keys that change memory in a way that has no formula here, with the values that change nothing, as null does."""

OF_TRANSFORMERS_4 = frozenset(
    """
    dispatch_batches evaluation_strategy fp16_backend fp16_opt_level fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap group_by_length half_precision_backend include_inputs_for_metrics
    include_tokens_per_second jit_mode_eval mp_parameters past_index per_gpu_eval_batch_size push_to_hub_model_id
    push_to_hub_organization push_to_hub_token ray_scope save_safetensors split_batches tpu_metrics_debug tpu_num_cores
    use_ipex use_legacy_prediction_loop use_mps_device xpu_backend
    """.split()  # noqa: SIM905
)
"""Arguments of transformers 4 that transformers 5 has not, and that change nothing on a GPU.

Source: `TrainingArguments` in `transformers/training_args.py`, 4.46 and 5.23.
"""

FREE_KEYS_BY_REASON: Mapping[str, frozenset[str]] = {
    "where files, logs and checkpoints go, and when": frozenset(
        """
        output_dir overwrite_output_dir logging_strategy logging_steps logging_dir logging_first_step
        log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica
        disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
        save_only_model save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
        load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip
        restore_callback_states_from_checkpoint resume_from_checkpoint debug skip_memory_metrics log_completions
        log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo
        """.split()  # noqa: SIM905
    ),
    "how long, and by which numbers, the same tensors are updated": frozenset(
        """
        num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio
        adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices max_grad_norm tf32 data_seed
        """.split()  # noqa: SIM905
    ),
    "numbers of the loss: values of some bytes per token at most": frozenset(
        """
        num_generations_eval epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos
        vespo_lambda_pos vespo_k_neg vespo_lambda_neg importance_sampling_level reward_weights
        multi_objective_aggregation scale_rewards loss_type normalize_advantages
        reward_clip_range vllm_importance_sampling_mode vllm_importance_sampling_clip_max
        vllm_importance_sampling_clip_min vllm_importance_sampling_cap off_policy_mask_threshold
        use_bias_correction_kl completion_only_loss assistant_only_loss discopop_tau f_divergence_type
        f_alpha_divergence_coef label_smoothing ld_alpha loss_weights use_weighting desirable_weight undesirable_weight
        center_rewards_coefficient
        """.split()  # noqa: SIM905
    ),
    "they belong to a key that is refused where it is on": frozenset(
        """
        ref_model_mixup_alpha ref_model_sync_steps entropy_coef_min entropy_coef_max entropy_coef_delta
        entropy_target transformers_continuous_batching_config
        """.split()  # noqa: SIM905
    ),
    "when and what is evaluated: `config.py` counts evaluation, or says that it does not": frozenset(
        """
        eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
        eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
        eval_packing do_train do_eval do_predict bf16_full_eval fp16_full_eval
        """.split()  # noqa: SIM905
    ),
    "rows and prompts on the host": frozenset(
        """
        accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
        dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
        dataloader_in_order remove_unused_columns label_names train_sampling_strategy length_column_name
        shuffle_dataset chat_template_kwargs dataset_name dataset_config dataset_train_split dataset_test_split
        dataset_streaming datasets dataset_num_proc eos_token pad_token chat_template_path truncation_mode
        packing_strategy dataset_text_field dataset_kwargs max_tool_calling_iterations
        """.split()  # noqa: SIM905
    ),
    "how processes talk; DDP's buckets hold all gradients, whatever their size": frozenset(
        """
        ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout
        local_rank ignore_bias_buffers vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
        vllm_group_port vllm_structured_outputs_regex
        """.split()  # noqa: SIM905
    ),
    "which checkpoint it is, and factors of adapters; the tensors are the same": frozenset(
        """
        trust_remote_code model_revision revision lora_task_type use_rslora bnb_4bit_quant_storage
        """.split()  # noqa: SIM905
    ),
    "`config.py` reads which rewards are models": frozenset(
        """
        reward_funcs reward_model_name_or_path
        """.split()  # noqa: SIM905
    ),
    "of transformers 4, for the host, other devices or names of the hub": OF_TRANSFORMERS_4,
}
"""Keys that change nothing on a GPU, or nothing that needs a word of its own, by the reason."""

FREE_KEYS = frozenset(key for keys in FREE_KEYS_BY_REASON.values() for key in keys) | EFFECTS.keys()
"""Keys without a formula: those that need no GPU memory, and those that `argument_keys.py` or `config.py` names."""


def is_trl_key(key: str) -> bool:
    """Return whether a recipe of trl may have `key` at its top level, in any version that is read."""
    is_todays = key in KEY_OF or key in FREE_KEYS or key in MODEL_KEYS or key in NEUTRAL_VALUES or key in CONTAINERS
    return is_todays or any(key in keys for keys in KEY_VERSIONS.values())


BITSANDBYTES = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_compute_dtype": "bnb_4bit_compute_dtype",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""trl's names of the fields of `BitsAndBytesConfig`."""

LOADED = {
    "pretrained_model_name_or_path": "model_name_or_path",
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
"""trl's names of the arguments of `from_pretrained`."""

OF_EARLY_TRAINERS = {
    key: key
    for key in (
        "max_seq_length",
        "packing",
        "max_length",
        "max_prompt_length",
        "beta",
        "loss_type",
        "precompute_ref_log_probs",
    )
}
"""trl's names of arguments that trainers before 0.16 took themselves; today those of their configurations."""

OF_OLD_TRAINERS = (*OF_EARLY_TRAINERS, "tokenizer", "max_target_length", "label_smoothing", "is_encoder_decoder")
"""Arguments of trainers of preferences before 0.16."""

_GRPO, _RLOO, _SFT = Recipe.GRPO, Recipe.RLOO, Recipe.SFT
_DPO, _KTO, _REWARD = Recipe.DPO, Recipe.KTO, Recipe.REWARD

KEYS_OF_SOME: Mapping[tuple[Recipe, ...], frozenset[str]] = {
    (_GRPO, _RLOO): frozenset(
        """
        cache_implementation chat_template_kwargs ds3_gather_for_generation epsilon epsilon_high generation_batch_size
        generation_kwargs log_completions log_multimodal log_unique_prompts mask_truncated_completions
        max_completion_length min_p num_completions_to_print num_generations num_generations_eval num_iterations
        repetition_penalty reward_funcs reward_model_name_or_path reward_weights steps_per_generation temperature
        top_k top_p transformers_continuous_batching_config use_transformers_continuous_batching
        use_transformers_paged use_vllm vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port
        vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port
        vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size
        """.split()  # noqa: SIM905
    ),
    (_GRPO,): frozenset(
        """
        cast_lm_head_to_fp32 delta entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
        importance_sampling_level log_completions_hub_repo max_tool_calling_iterations multi_objective_aggregation
        off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos scale_rewards top_entropy_quantile
        use_adaptive_entropy use_bias_correction_kl vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
        vllm_importance_sampling_cap vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
        vllm_importance_sampling_correction vllm_importance_sampling_mode
        """.split()  # noqa: SIM905
    ),
    (_SFT,): frozenset(
        """
        assistant_only_loss completion_only_loss dataset_kwargs dataset_text_field eval_packing packing
        packing_strategy
        """.split()  # noqa: SIM905
    ),
    (_DPO,): frozenset(
        """
        discopop_tau f_alpha_divergence_coef f_divergence_type label_smoothing ld_alpha loss_weights use_weighting
        """.split()  # noqa: SIM905
    ),
    (_GRPO, _RLOO, _DPO, _KTO): frozenset("beta ref_model_mixup_alpha ref_model_sync_steps sync_ref_model".split()),  # noqa: SIM905
    (_SFT, _DPO, _KTO, _REWARD): frozenset("activation_offloading dataset_num_proc max_length".split()),  # noqa: SIM905
    (_SFT, _REWARD): frozenset("chat_template_path eos_token".split()),  # noqa: SIM905
    (_SFT, _DPO): frozenset("padding_free truncation_mode".split()),  # noqa: SIM905
    (_DPO, _KTO): frozenset("precompute_ref_batch_size precompute_ref_log_probs".split()),  # noqa: SIM905
    (_RLOO,): frozenset("normalize_advantages reward_clip_range".split()),  # noqa: SIM905
    (_KTO,): frozenset("desirable_weight undesirable_weight".split()),  # noqa: SIM905
    (_GRPO, _SFT, _DPO, _KTO): frozenset("loss_type".split()),  # noqa: SIM905
    (_SFT, _DPO, _REWARD): frozenset("pad_token".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _DPO, _KTO, _REWARD): frozenset("disable_dropout".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _SFT, _DPO, _KTO): frozenset("router_aux_loss_coef".split()),  # noqa: SIM905
    (_REWARD,): frozenset("center_rewards_coefficient".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _SFT): frozenset("shuffle_dataset".split()),  # noqa: SIM905
}
"""Keys that the arguments of some trainers have, with those of their scripts, by the trainers that have them.

Source: the fields of `GRPOConfig`, `RLOOConfig`, `SFTConfig`, `DPOConfig`, `KTOConfig` and `RewardConfig` of trl 1.16.
"""


READ_BY_TRL = {
    "get_peft_config": frozenset[str](),
    "get_kbit_device_map": frozenset[str](),
    "get_quantization_config": frozenset({"load_in_4bit", "load_in_8bit", "use_bnb_nested_quant"}),
}
"""Functions of trl that get a `ModelConfig`, with what they read of how a model is loaded."""

OF_LOADING = {
    "dtype": ("dtype", "torch_dtype"),
    "torch_dtype": ("dtype", "torch_dtype"),
    "attn_implementation": ("attn_implementation",),
    "load_in_4bit": ("load_in_4bit",),
    "load_in_8bit": ("load_in_8bit",),
    "use_bnb_nested_quant": ("use_bnb_nested_quant",),
}
"""Fields of `ModelConfig` that say how a model is loaded, with the names by which a script reads them."""


_OTHER_CONFIGS = frozenset(
    """
    PPOConfig ORPOConfig CPOConfig BCOConfig OnlineDPOConfig GKDConfig
    NashMDConfig XPOConfig PRMConfig AsyncGRPOConfig AsyncGRPOTrainer A2POConfig GMPOConfig GOLDConfig IWOPDConfig
    SDFTConfig SDPOConfig TPOConfig DistillationConfig ServerDistillationConfig AsyncDistillationConfig
    """.split()  # noqa: SIM905
)
"""Arguments of trl's trainers that have no recipe here."""

_OTHERS_DO = dict.fromkeys(
    ("AsyncGRPOConfig", "AsyncGRPOTrainer"),
    ", because it packs completions into rows of token_budget tokens, with other kernels",
)
"""What some of them do that no recipe does. Source: `trl/experimental/async_grpo/async_grpo_trainer.py` of trl 1.16."""


def other_configs(called: Collection[str]) -> list[str]:
    """Return what is wrong with the calls of a script that configure trainers of trl without a recipe.

    Args:
        called: The names of what it calls and does not declare itself or take from other modules.
    """
    return [
        f"calls {each}, whose trainer has no recipe here{_OTHERS_DO.get(each, '')}; the recipes are {', '.join(Recipe)}"
        for each in called
        if each in _OTHER_CONFIGS
    ]


def evaluates(flat: Mapping[str, object]) -> bool:
    """Return whether there are evaluations: transformers derives `do_eval` from `eval_strategy`."""
    strategy = flat.get("eval_strategy", flat.get("evaluation_strategy"))
    return strategy not in (None, "no", False) or flat.get("eval_on_start") is True
