"""Names and defaults of other programs: every argument is in a table, and each row says what its source says.

`arguments.json` has the arguments of the sources that the tables name, without those of inference and export.
"""

import json

import pytest
import yaml
from rebuilt import HERE, said

from profiler.config.files.formats.axolotl import AXOLOTL
from profiler.config.files.formats.llama_factory import LLAMA_FACTORY
from profiler.config.files.formats.ms_swift import MS_SWIFT
from profiler.config.files.formats.openrlhf import OPENRLHF
from profiler.config.files.vocabulary import Vocabulary
from profiler.config.trl.argument_keys import is_trl_key

TABLES: dict[str, Vocabulary] = {
    "llama_factory": LLAMA_FACTORY,
    "ms_swift": MS_SWIFT,
    "axolotl": AXOLOTL,
    "openrlhf": OPENRLHF,
}
ARGUMENTS = json.loads((HERE / "arguments.json").read_text())

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"
ROWS = {"max_completion_length": 64}
ADAPTER = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}
ZERO_2 = {"deepspeed": "deepspeed_configs/zero2.json"}
ZERO_3 = {"deepspeed": "deepspeed_configs/zero3_bf16.json"}
LEAST = {
    "llama_factory": {"model_name_or_path": QWEN, "stage": "sft", "do_train": True, "template": "qwen", "bf16": True},
    "ms_swift": {"model": QWEN, "train_type": "lora", "max_length": 1024},
    "ms_swift grpo": {"model": QWEN, "train_type": "lora", "rlhf_type": "grpo", "per_device_train_batch_size": 8},
    "ms_swift rm": {"model": QWEN, "train_type": "full", "rlhf_type": "rm", "max_length": 1024},
    "axolotl reward": {"base_model": QWEN, "sequence_len": 1024, "reward_model": True},
    "axolotl": {
        "base_model": QWEN,
        "sequence_len": 1024,
        **ADAPTER,
    },
    "axolotl full": {"base_model": QWEN, "sequence_len": 1024, "micro_batch_size": 2},
    "axolotl grpo": {
        "base_model": QWEN,
        "sequence_len": 1024,
        "rl": "grpo",
        "micro_batch_size": 8,
        "trl": ROWS,
    },
}
"""The fewest keys of a file that is answered."""

DEFAULTS = {
    "llama_factory": {
        "recipe": "sft",
        "tuning": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": ["all-linear"],
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_length": 2048,
        "gradient_checkpointing": True,
        "attn_implementation": "sdpa",
        "dtype": "bfloat16",
        "optim": "adamw_torch_fused",
        "logprobs": "nll",
        "use_liger_kernel": False,
    },
    "ms_swift": {
        "recipe": "sft",
        "tuning": "lora",
        "lora_rank": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "lora_target_modules": ["all-linear"],
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "max_length": 1024,
        "gradient_checkpointing": True,
        "attn_implementation": "sdpa",
        "dtype": "bfloat16",
        "bf16": True,
        "optim": "adamw_torch_fused",
        "logprobs": "nll",
        "use_liger_kernel": False,
    },
    "axolotl": {
        "recipe": "sft",
        "tuning": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": ["all-linear"],
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_length": 1024,
        "lengths": "ragged",
        "gradient_checkpointing": False,
        "attn_implementation": "sdpa",
        "dtype": "bfloat16",
        "bf16": True,
        "optim": "adamw_torch_fused",
        "logprobs": "nll",
        "use_liger_kernel": False,
    },
    "ms_swift rm": {
        "recipe": "reward",
        "tuning": "full",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "max_length": 1024,
        "lengths": "ragged",
        "gradient_checkpointing": True,
        "dtype": "bfloat16",
        "optim": "adamw_torch_fused",
    },
    "axolotl reward": {
        "recipe": "reward",
        "tuning": "full",
        "per_device_train_batch_size": 1,
        "max_length": 1024,
        "lengths": "forced",
        "gradient_checkpointing": False,
        "dtype": "bfloat16",
        "use_liger_kernel": False,
    },
    "axolotl full": {"recipe": "sft", "tuning": "full", "dtype": "bfloat16_layers", "per_device_train_batch_size": 2},
    "axolotl grpo": {
        "recipe": "grpo",
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 64,
        "beta": 0.0,
        "use_vllm": False,
        "logprobs": "selective_in_place",
    },
    "ms_swift grpo": {
        "recipe": "grpo",
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 512,
        "beta": 0.04,
        "use_vllm": False,
        "logprobs": "selective_in_place",
    },
}

CHANGED = [
    ("llama_factory", {"lora_rank": 4}, {"lora_rank": 4, "lora_alpha": 8}),
    ("llama_factory", {"lora_alpha": 4}, {"lora_rank": 8, "lora_alpha": 4}),
    ("llama_factory", {"lora_dropout": 0.1}, {"lora_dropout": 0.1}),
    ("llama_factory", {"lora_target": "q_proj, v_proj"}, {"lora_target_modules": ["q_proj", "v_proj"]}),
    ("llama_factory", {"fp16": True, "bf16": None}, {"dtype": "float16", "bf16": False, "fp16": True}),
    ("llama_factory", {"fp16": True, "bf16": None, "finetuning_type": "full"}, {"dtype": "float32", "fp16": True}),
    ("llama_factory", {"cutoff_len": 512}, {"max_length": 512}),
    ("llama_factory", {"cutoff_len": 512, "packing": True}, {"max_length": 512, "lengths": "forced"}),
    ("llama_factory", {"max_length": 64}, {"max_length": 2048}),
    ("llama_factory", {"finetuning_type": "full"}, {"tuning": "full", "dtype": "float32", "bf16": True}),
    ("llama_factory", {"finetuning_type": "full", "pure_bf16": True}, {"dtype": "bfloat16"}),
    ("llama_factory", {"finetuning_type": "full", "bf16": False}, {"dtype": "float32", "bf16": False}),
    (
        "llama_factory",
        {"finetuning_type": "full", "deepspeed": "examples/deepspeed/ds_z3_offload_config.json"},
        {"dtype": "bfloat16", "zero_stage": 3, "offload_param_device": "cpu", "offload_optimizer_device": "cpu"},
    ),
    ("llama_factory", {"deepspeed": "examples/deepspeed/ds_z2_config.json"}, {"zero_stage": 2}),
    ("llama_factory", {"quantization_bit": 4}, {"tuning": "qlora", "bnb_4bit_use_double_quant": True}),
    ("llama_factory", {"quantization_bit": 4, "double_quantization": False}, {"bnb_4bit_use_double_quant": False}),
    ("llama_factory", {"flash_attn": "fa2"}, {"attn_implementation": "flash_attention_2"}),
    ("llama_factory", {"flash_attn": "disabled"}, {"attn_implementation": "eager"}),
    ("llama_factory", {"enable_liger_kernel": True}, {"use_liger_kernel": True, "logprobs": "fused"}),
    ("llama_factory", {"disable_gradient_checkpointing": True}, {"gradient_checkpointing": False}),
    ("llama_factory", {"gradient_checkpointing": False}, {"gradient_checkpointing": True}),
    ("ms_swift", {"train_type": None, "tuner_type": "full"}, {"tuning": "full", "dtype": "bfloat16"}),
    ("ms_swift", {"torch_dtype": "float16"}, {"dtype": "float16", "bf16": False, "fp16": True}),
    ("ms_swift", {"torch_dtype": "float32"}, {"dtype": "float32", "bf16": False, "fp16": True}),
    ("ms_swift", {"fp16": True, "bf16": False}, {"dtype": "bfloat16", "bf16": False, "fp16": True}),
    ("ms_swift", {"lora_rank": 4}, {"lora_rank": 4, "lora_alpha": 32}),
    ("ms_swift", {"lora_alpha": 4}, {"lora_rank": 8, "lora_alpha": 4}),
    ("ms_swift", {"lora_dropout": 0.0}, {"lora_dropout": 0.0}),
    ("ms_swift", {"target_modules": ["q_proj"]}, {"lora_target_modules": ["q_proj"]}),
    ("ms_swift", {"per_device_train_batch_size": 3}, {"gradient_accumulation_steps": 6}),
    ("ms_swift", {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 2}),
    ("ms_swift", {"quant_method": "bnb", "quant_bits": 4}, {"tuning": "qlora", "bnb_4bit_use_double_quant": True}),
    ("ms_swift", {"packing": True}, {"lengths": "forced", "max_length": 1024}),
    ("ms_swift", {"packing": True, "packing_length": 4096}, {"max_length": 4096}),
    ("ms_swift", {"attn_impl": "flash_attn"}, {"attn_implementation": "flash_attention_2"}),
    ("ms_swift", {"use_liger_kernel": True}, {"use_liger_kernel": True, "logprobs": "fused"}),
    ("ms_swift", {"deepspeed": "zero2_offload"}, {"zero_stage": 2, "offload_optimizer_device": "cpu"}),
    ("ms_swift grpo", {"beta": 0.0}, {"beta": 0.0}),
    ("ms_swift grpo", {"max_length": 99}, {"max_prompt_length": 99}),
    ("ms_swift grpo", {"max_new_tokens": 77}, {"max_completion_length": 77}),
    ("ms_swift grpo", {"num_generations": 4}, {"num_generations": 4}),
    ("ms_swift grpo", {"reward_model": ["Qwen/Qwen2.5-0.5B"]}, {"reward_models": ["qwen2.5-0.5b"]}),
    (
        "ms_swift grpo",
        {"use_vllm": True, "vllm_mode": "colocate", "sleep_level": 1},
        {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.9, "vllm_enable_sleep_mode": True},
    ),
    *(
        ("llama_factory", {"stage": kind, "pref_beta": 0.2, "lora_dropout": 0.1}, {"recipe": kind, "beta": 0.2})
        for kind in ("dpo", "kto")
    ),
    ("llama_factory", {"stage": "dpo"}, {"beta": 0.1, "max_length": 2048, "logprobs": "pairs_at_once"}),
    ("llama_factory", {"stage": "dpo", "lora_dropout": 0.1}, {"lora_dropout": 0.0}),
    ("llama_factory", {"stage": "kto", "per_device_train_batch_size": 1}, {"logprobs": "pairs_at_once"}),
    ("llama_factory", {"stage": "dpo", "finetuning_type": "full"}, {"tuning": "full", "dtype": "float32"}),
    ("ms_swift", {"rlhf_type": "dpo"}, {"recipe": "dpo", "beta": 0.1, "logprobs": "pairs_of_completions"}),
    (
        "ms_swift",
        {"rlhf_type": "dpo", "beta": 0.5},
        {"gradient_accumulation_steps": 16, "lora_dropout": 0.0, "beta": 0.5},
    ),
    ("ms_swift", {"rlhf_type": "kto", "loss_type": "kto"}, {"recipe": "kto", "logprobs": "pairs_of_completions"}),
    ("ms_swift rm", {"train_type": "lora", "lora_dropout": 0.1}, {"recipe": "reward", "lora_dropout": 0.0}),
    ("ms_swift rm", {"per_device_train_batch_size": 4}, {"gradient_accumulation_steps": 4}),
    ("axolotl reward", {"pad_to_sequence_len": False}, {"lengths": "ragged"}),
    ("axolotl", {"reward_model": False}, {"recipe": "sft"}),
    ("axolotl", {"rl": "dpo"}, {"recipe": "dpo", "beta": 0.1, "max_length": 1024, "logprobs": "pairs_of_rows"}),
    ("axolotl", {"rl": "ipo", "rl_beta": 0.2}, {"recipe": "dpo", "beta": 0.2, "lengths": "ragged"}),
    ("axolotl", {"rl": "dpo", "trl": {"beta": 0.3}, "rl_beta": 0.2}, {"beta": 0.3}),
    ("axolotl", {"rl": "dpo", "precompute_ref_log_probs": True}, {"precompute_ref_log_probs": True}),
    ("axolotl", {"rl": "dpo", "pad_to_sequence_len": True, "dpo_loss_type": ["hinge"]}, {"lengths": "ragged"}),
    ("axolotl", {"rl": "kto", "micro_batch_size": 2}, {"recipe": "kto", "logprobs": "pairs_of_rows"}),
    ("axolotl full", {"rl": "dpo"}, {"dtype": "bfloat16_layers", "logprobs": "pairs_of_rows"}),
    ("axolotl full", {"flash_attention": True}, {"dtype": "bfloat16", "bf16": True}),
    ("axolotl full", {"deepspeed": "zero1.json"}, {"dtype": "bfloat16", "bf16": True}),
    ("axolotl full", {"deepspeed": "zero3.json"}, {"dtype": "bfloat16", "bf16": True}),
    ("axolotl full", {"reward_model": True}, {"dtype": "bfloat16", "bf16": True}),
    ("axolotl", {"micro_batch_size": 4}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}),
    ("axolotl", {"micro_batch_size": 4, "batch_size": 32}, {"gradient_accumulation_steps": 8}),
    ("axolotl", {"lora_r": 4}, {"lora_rank": 4, "lora_alpha": 16}),
    ("axolotl", {"lora_target_linear": False, "lora_target_modules": ["k_proj"]}, {"lora_target_modules": ["k_proj"]}),
    ("axolotl", {"adapter": "qlora", "load_in_4bit": True}, {"tuning": "qlora", "bnb_4bit_use_double_quant": True}),
    ("axolotl", {"gradient_checkpointing": True}, {"gradient_checkpointing": True}),
    ("axolotl", {"flash_attention": True}, {"attn_implementation": "flash_attention_2"}),
    ("axolotl", {"attn_implementation": "eager"}, {"attn_implementation": "eager"}),
    ("axolotl", {"sample_packing": True}, {"lengths": "forced", "max_length": 1024}),
    ("axolotl", {"pad_to_sequence_len": True}, {"lengths": "forced"}),
    ("axolotl", {"optimizer": "adamw_bnb_8bit"}, {"optim": "adamw_8bit"}),
    (
        "axolotl",
        dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_swiglu", "liger_fused_linear_cross_entropy"), True),
        {"use_liger_kernel": True, "logprobs": "fused"},
    ),
    ("axolotl full", {"bf16": False}, {"dtype": "float32", "bf16": False}),
    ("axolotl full", {"bf16": "full"}, {"dtype": "bfloat16", "bf16": False}),
    ("axolotl", {"bf16": "auto", "fp16": True}, {"dtype": "float16", "bf16": False, "fp16": True}),
    ("axolotl", {"bf16": False, "fp16": True}, {"dtype": "float16", "bf16": False, "fp16": True}),
    ("axolotl", {"bf16": True, "fp16": True}, {"dtype": "bfloat16", "bf16": True, "fp16": False}),
    ("axolotl grpo", {"rl_beta": 0.1}, {"beta": 0.1}),
    (
        "axolotl grpo",
        {"trl": {"max_completion_length": 64, "use_liger_loss": True}},
        {"use_liger_kernel": True, "logprobs": "fused"},
    ),
    ("axolotl grpo", {"trl": {"max_completion_length": 64, "beta": 0.2}}, {"beta": 0.2}),
    (
        "axolotl grpo",
        {"trl": {"max_completion_length": 64, "use_vllm": True, "vllm_mode": "colocate"}},
        {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.9, "vllm_tensor_parallel_size": 1},
    ),
    ("ms_swift grpo", {"use_vllm": True, "vllm_server_host": "127.0.0.1"}, {"vllm_mode": "server"}),
]

OFF = {
    "llama_factory": """
        shift_attn use_unsloth use_unsloth_gc upcast_layernorm upcast_lmhead_output use_kt neat_packing pissa_init
        use_galore use_apollo use_badam use_llama_pro use_adam_mini use_muon use_mca use_megatron_bridge
        use_hyper_parallel use_dft_loss use_asft_loss use_eaft_loss fp8 use_dora resize_vocab train_from_scratch
        use_v1_kernels
        """.split(),  # noqa: SIM905
    "ms_swift": """
        padding_free freeze_llm use_swift_lora use_galore enable_dft_loss enable_channel_loss use_tiled_mlp
        activation_cpu_offload use_ray use_dora
        """.split(),  # noqa: SIM905
    "axolotl": """
        resize_token_embeddings_to_32x process_reward_model fp8 activation_offloading layer_offloading use_pose
        xformers_attention flex_attention sage_attention s2_attention flash_attn_cross_entropy flash_attn_rms_norm
        flash_attn_fuse_mlp chunked_cross_entropy cut_cross_entropy use_eaft tiled_mlp deepcompile fp32_norms gptq
        relora use_kernels peft_use_dora liger_rope load_in_8bit dpo_use_liger_kernel dpo_use_weighting
        rl_adapter_ref_model
        """.split(),  # noqa: SIM905
    "ms_swift grpo": """
        vllm_enable_lora async_generate offload_optimizer offload_model use_gym_env log_entropy sync_ref_model
        """.split(),  # noqa: SIM905
}
"""Keys that change memory where they are true."""

REFUSED = [
    ("axolotl", {"rl": "orpo"}, "rl=orpo: is a trainer of axolotl 0.18 that is not read; those that are: grpo, sft, "),
    ("axolotl", {"rl": "kto"}, "per_device_train_batch_size=1: must be at least 2 with recipe=kto"),
    ("axolotl full", {"rl": "kto"}, "rl=kto: makes a float32 reference in full fine-tuning, without a formula here. "),
    ("axolotl", {"rl": "dpo", "sample_packing": True}, "sample_packing=true: does not go with rl=dpo in axolotl"),
    ("axolotl", {"rl": "dpo", "dpo_loss_type": ["sigmoid", "sft"]}, "dpo_loss_type=[sigmoid,sft]: of"),
    (
        "axolotl",
        {"rl": "dpo", **dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_swiglu"), True)}
        | {"liger_fused_linear_cross_entropy": True},
        "use_liger_kernel=true: has no formula here with preferences in axolotl",
    ),
    ("axolotl reward", {"sample_packing": True}, "sample_packing=true: does not go with reward_model=true"),
    ("axolotl grpo", {"reward_model": True}, "rl=grpo: does not go with reward_model=true in axolotl"),
    ("axolotl reward", {"liger_rms_norm": True, "liger_rope": True}, "liger_rope=true: has no formula here"),
    (
        "axolotl reward",
        dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_swiglu", "liger_fused_linear_cross_entropy"), True),
        "liger_rope=true: has no formula here, unless all of Liger's kernels are on in SFT",
    ),
    ("axolotl", {"adapter": "llama-adapter"}, "adapter=llama-adapter: has no formula here"),
    ("axolotl", {"load_in_4bit": True}, "load_in_4bit=true: does not go with adapter=lora in axolotl"),
    ("axolotl", {"lora_r": None}, "lora_r=null: is absent"),
    ("axolotl", {"lora_target_linear": None}, "lora_target_modules=null: is absent"),
    ("axolotl", {"gradient_checkpointing": "offload"}, "gradient_checkpointing=offload: moves activations"),
    ("axolotl", {"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, "is a plugin without a formula here"),
    ("axolotl", {"fsdp": ["full_shard", "auto_wrap"]}, "fsdp=[full_shard,auto_wrap]: of"),
    ("axolotl", {"peft": {"loftq_config": {"loftq_bits": 4}}}, "peft.loftq_config.loftq_bits=4: of"),
    ("axolotl", {"context_parallel_size": 2}, "context_parallel_size=2: of"),
    ("axolotl", {"lora_model_dir": "out"}, "lora_model_dir=out: of"),
    ("axolotl", {"attn_implementation": "flex_attention"}, "attn_implementation=flex_attention: has no formula here"),
    ("axolotl", {"unfrozen_parameters": ["lm_head"]}, "unfrozen_parameters=[lm_head]: of"),
    ("axolotl grpo", {"liger_rms_norm": True}, "liger_rms_norm=true: has no formula here"),
    ("axolotl grpo", {"trl": {}}, "max_completion_length=null: is absent"),
    (
        "llama_factory",
        {"stage": "ppo"},
        "stage=ppo: is a trainer of LLaMA-Factory 0.9.6 that is not read; those that are: sft",
    ),
    ("llama_factory", {"stage": "rm"}, "because it scores rows by a head next to the LM head, and makes the logits of"),
    ("llama_factory", {"stage": "dpo", "pref_loss": "orpo"}, "pref_loss=orpo: has no reference, and no formula here. "),
    ("llama_factory", {"stage": "dpo", "pref_loss": "simpo"}, "python -m profiler.run gpus=1xCARD runs the command"),
    ("llama_factory", {"stage": "dpo", "enable_liger_kernel": True}, "use_liger_kernel=true: has no formula here with"),
    ("llama_factory", {"stage": "dpo", "ref_model": "a/b"}, "ref_model=a/b: of"),
    ("llama_factory", {"do_train": None}, "do_train=null: is not true"),
    ("llama_factory", {"model_class": "llm"}, "model_class=llm: is a key of LLaMA-Factory 1"),
    ("llama_factory", {"finetuning_type": "freeze"}, "finetuning_type=freeze: has no formula here"),
    ("llama_factory", {"quantization_bit": 8}, "load_in_8bit=true: changes memory"),
    ("llama_factory", {"quantization_bit": 4, "quantization_method": "hqq"}, "quantization_method=hqq: of"),
    ("llama_factory", {"fp16": True}, "fp16=true: is not combined with bf16=true"),
    ("llama_factory", {"fp16": True, "bf16": None, "quantization_bit": 4}, "of float32 adapters over 4-bit weights in"),
    ("llama_factory", {"adapter_name_or_path": "a"}, "adapter_name_or_path=a: of"),
    ("llama_factory", {"additional_target": "lm_head"}, "lora_modules_to_save=lm_head: changes memory"),
    ("llama_factory", {"model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"}, "sees images or hears"),
    ("llama_factory", {"model_name_or_path": "google/gemma-2-2b-it"}, "is LLaMA-Factory's choice for Gemma 2"),
    ("llama_factory", {"mini_batch": 3}, "is mini_batch in f.yaml, and trl has no key of that name"),
    ("ms_swift", {"max_length": None}, "max_length=null: is absent"),
    (
        "ms_swift",
        {"torch_dtype": "float16", "train_type": None, "tuner_type": "full"},
        "trains weights in dtype=float16",
    ),
    ("ms_swift", {"torch_dtype": "float16", "quant_method": "bnb", "quant_bits": 4}, "of float32 adapters over 4-bit"),
    ("ms_swift", {"train_type": "adalora"}, "tuner_type=adalora: has no formula here"),
    ("ms_swift", {"quant_method": "hqq", "quant_bits": 4}, "quant_method=hqq: has no formula here"),
    ("ms_swift", {"quant_method": "bnb", "quant_bits": 8}, "load_in_8bit=true: changes memory"),
    ("ms_swift", {"sequence_parallel_size": 2}, "sequence_parallel_size=2: of"),
    ("ms_swift", {"tuner_backend": "unsloth"}, "tuner_backend=unsloth: of"),
    ("ms_swift", {"init_weights": "pissa"}, "init_weights=pissa: of"),
    ("ms_swift", {"lora_bias": "all"}, "lora_bias=all: of"),
    ("ms_swift", {"freeze_parameters_ratio": 0.5}, "freeze_parameters_ratio=0.5: of"),
    ("ms_swift", {"task_type": "seq_cls"}, "task_type=seq_cls: of"),
    ("ms_swift", {"fsdp": "fsdp2"}, "distributed_type=fsdp2: is a file of ms-swift"),
    ("ms_swift", {"sft_type": "lora"}, "sft_type=lora: is a key of earlier versions"),
    (
        "ms_swift",
        {"rlhf_type": "cpo"},
        "rlhf_type=cpo: is a trainer of ms-swift 4.6 that is not read, because it trains on pairs without a reference, "
        "which has no formula here; those that are: grpo, sft, rm, dpo, kto. "
        "python -m profiler.run gpus=1xCARD runs the command itself on an emulated card (docs/scripts.md).",
    ),
    ("ms_swift", {"rlhf_type": "dpo", "use_liger_kernel": True}, "use_liger_kernel=true: has no formula here with"),
    (
        "ms_swift",
        {"rlhf_type": "dpo", "packing": True},
        "packing=true: has no formula here with preferences in ms-swif",
    ),
    ("ms_swift", {"rlhf_type": "dpo", "use_logits_to_keep": False}, "use_logits_to_keep=false: has no formula here"),
    ("ms_swift", {"rlhf_type": "kto", "loss_type": "apo_zero_unpaired"}, "loss_type=apo_zero_unpaired: of"),
    ("ms_swift", {"rlhf_type": "dpo", "max_length": None}, "max_length=null: is absent"),
    ("ms_swift rm", {"max_length": None}, "max_length=null: is absent"),
    ("ms_swift rm", {"packing": True}, "packing=true: is refused by ms-swift for a reward model"),
    ("ms_swift grpo", {"multi_turn_scheduler": "a"}, "multi_turn_scheduler=a: of"),
    ("ms_swift grpo", {"teacher_model": "a/b"}, "teacher_model=a/b: of"),
    ("ms_swift grpo", {"num_iterations": 2}, "num_iterations=2: of "),
]


def _said(folder, name, *words, **changed):
    values = {**LEAST[name], **changed}
    (folder / "f.yaml").write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return said(f"config={folder / 'f.yaml'}", *words)


SHIPPED = {
    "deepspeed_configs/zero1.json": (1, "none", "none"),
    "deepspeed/zero2.json": (2, "cpu", "none"),
    "deepspeed_configs/zero3.json": (3, "none", "none"),
    "zero3_bf16.json": (3, "none", "none"),
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": (3, "cpu", "cpu"),
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": (3, "none", "cpu"),
}
"""What axolotl's files of DeepSpeed say: stage, and where the optimizer's states and the weights are."""


@pytest.mark.parametrize("file", SHIPPED)
def test_files_that_axolotl_ships_are_known_by_name(tmp_path, file):
    answer = _said(tmp_path, "axolotl", "num_processes=4", deepspeed=file)
    keys = ("zero_stage", "offload_optimizer_device", "offload_param_device")
    assert tuple(answer.trial[key] for key in keys) == SHIPPED[file]
    assert f"deepspeed={file} as axolotl ships it" in answer.notes


@pytest.mark.parametrize("name", ["axolotl", "llama_factory", "ms_swift"])
def test_a_file_of_deepspeed_that_is_absent_is_asked_for(tmp_path, name):
    answer = _said(tmp_path, name, "num_processes=4", deepspeed="conf/own.json")
    assert answer.trial is None
    assert "deepspeed=conf/own.json: is not here, and says how memory is shared" in " ".join(answer.errors)
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    found = _said(tmp_path, name, "num_processes=4", f"config={own}", deepspeed="conf/own.json")
    assert found.trial["zero_stage"] == 2


def test_a_section_that_axolotl_has_not_is_named(tmp_path):
    own = {"deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4}}
    plain, found = _said(tmp_path, "axolotl"), _said(tmp_path, "axolotl", **own)
    assert found.trial == plain.trial
    assert "no effect of deepspeed_config: axolotl 0.18 has no such key" in found.notes


@pytest.mark.parametrize("name", TABLES)
def test_every_argument_of_the_source_is_in_a_table(name):
    table = TABLES[name]
    known = {*table.names, *table.by_rule, *table.free, *table.changes, table.recipe_key}
    last = {key: key.rpartition(".")[2] for key in ARGUMENTS[name]}
    open_keys = [key for key in last if key not in known and last[key] not in table.free and not is_trl_key(last[key])]
    assert open_keys == []


@pytest.mark.parametrize("name", TABLES)
def test_a_key_is_in_one_table(name):
    table = TABLES[name]
    rows = [*table.names, *table.by_rule, *table.free, *table.changes]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_file_leaves_open_has_its_programs_default(tmp_path, name):
    answer = _said(tmp_path, name)
    assert answer.trial is not None, answer.errors
    assert {key: answer.trial[key] for key in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize(("name", "changed", "trial"), CHANGED)
def test_a_name_is_read_as_its_source_says(tmp_path, name, changed, trial):
    answer = _said(tmp_path, name, *(["num_processes=2"] if "zero_stage" in trial else []), **changed)
    assert answer.trial is not None, answer.errors
    assert {key: answer.trial[key] for key in trial} == trial


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in OFF.items() for key in keys])
def test_what_changes_memory_is_refused_by_name(tmp_path, name, key):
    answer = _said(tmp_path, name, **{key: True})
    assert answer.trial is None
    assert any(error.startswith(f"{key.removeprefix('peft_')}=true: ") for error in answer.errors)
    assert _said(tmp_path, name, **{key: False}).trial is not None


@pytest.mark.parametrize(
    ("name", "changed"),
    [("ms_swift", {"rlhf_type": "cpo"}), ("axolotl", {"rl": "orpo"}), ("llama_factory", {"stage": "rm"})],
)
def test_of_another_trainer_nothing_else_is_said(tmp_path, name, changed):
    (error,) = _said(tmp_path, name, "max_length=512", **changed).errors
    assert "that is not read" in error
    answer = _said(tmp_path, name, "max_length=512", "max_completion_length=64")
    assert "max_completion_length=64: has no meaning with recipe=sft" in " ".join(answer.errors)


@pytest.mark.parametrize(("name", "changed", "problem"), REFUSED)
def test_what_has_no_equal_is_refused_with_its_reason(tmp_path, name, changed, problem):
    answer = _said(tmp_path, name, **changed)
    assert answer.trial is None
    assert problem in " ".join(answer.errors)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("llama_factory", {"quantization_bit": 4}),
        ("ms_swift", {"quant_method": "bnb", "quant_bits": 4}),
        ("axolotl", {"adapter": "qlora", "load_in_4bit": True}),
    ],
)
def test_float32_adapters_over_4_bit_weights_are_named(tmp_path, name, bits):
    assert "optimizer state are float32 over 4-bit weights" in _said(tmp_path, name, **bits).notes


@pytest.mark.parametrize(
    ("name", "changed", "note"),
    [
        ("axolotl", {}, "kernels of LoRA save (the figure may be too high)"),
        ("axolotl full", {}, "dtype=bfloat16_layers (axolotl keeps embeddings, LM head and norms in float32)"),
        ("axolotl full", {"reward_model": True}, "embeddings and norms in float32 (the figure may be too low)"),
        ("axolotl full", {"deepspeed": "zero3.json"}, "embeddings and norms in float32 (the figure may be too low)"),
        ("axolotl full", {"deepspeed": "zero3.json"}, "stage3_max_live_parameters=0 of f.yaml"),
        ("axolotl grpo", {}, "embeddings and norms in float32 (the figure may be too low)"),
        ("axolotl", {"gradient_checkpointing": True}, "gradient_checkpointing_kwargs={use_reentrant:true}"),
        ("llama_factory", {}, "gradient_checkpointing_kwargs={use_reentrant:true}"),
        ("ms_swift", {}, "makes no logits of prompts (the figure may be too high)"),
    ],
)
def test_what_is_not_counted_is_named(tmp_path, name, changed, note):
    assert note in _said(tmp_path, name, **changed).notes


@pytest.mark.parametrize(
    ("changed", "is_copied"),
    [
        (ADAPTER, False),
        ({"rl_beta": 0.1}, False),
        ({**ADAPTER, "rl_beta": 0.1}, True),
        ({**ADAPTER, "trl": {"beta": 0.1, **ROWS}}, True),
        ({**ADAPTER, "rl_beta": 0.1, **ZERO_2}, True),
        ({**ADAPTER, "rl_beta": 0.1, **ZERO_3}, False),
    ],
)
def test_axolotl_copies_adapters_for_a_reference_only(tmp_path, changed, is_copied):
    said_of_it = _said(tmp_path, "axolotl grpo", **changed)
    assert said_of_it.trial is not None
    assert said_of_it.trial["ref_adapter"] is is_copied


def test_a_float32_copy_is_named_for_a_reference_only(tmp_path):
    for beta, is_named in ((0.1, True), (0.0, False)):
        found = _said(tmp_path, "axolotl grpo", **ADAPTER, rl_beta=beta, **ZERO_3)
        assert ("copy of the adapters as reference" in found.notes) is is_named


@pytest.mark.parametrize(
    ("line", "trial"),
    [
        (f"NPROC_PER_NODE=2 swift sft --model {QWEN} --max_length 64", (2, 8, "lora")),
        (f"export NPROC_PER_NODE=4; swift sft --model {QWEN} --max_length 64 --train_type full", (4, 4, "full")),
        (f"NPROC_PER_NODE=4\nswift sft --model {QWEN} --max_length 64", (1, 16, "lora")),
        ("NPROC_PER_NODE=2 NNODES=2 swift sft --config f.yaml --max_length 64", (4, 4, "lora")),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train f.yaml gradient_accumulation_steps=3", (2, 3, "lora")),
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train f.yaml", (8, 1, "lora")),
        ("CUDA_VISIBLE_DEVICES=0,1,2 axolotl train f.yaml --gradient-accumulation-steps 4", (3, 4, "lora")),
        (f"llamafactory-cli train --do_train --finetuning_type full --model_name_or_path {QWEN}", (1, 1, "full")),
    ],
)
def test_a_command_states_processes_and_arguments(tmp_path, line, trial):
    kind = "llama_factory" if "llamafactory" in line else "axolotl" if "axolotl" in line else "ms_swift"
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(LEAST[kind]))
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{line}\n")
    answer = said(f"config={tmp_path / 'run.sh'}")
    assert answer.trial is not None, answer.errors
    keys = ("num_processes", "gradient_accumulation_steps", "tuning")
    assert tuple(answer.trial[key] for key in keys) == trial


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "CUDA_VISIBLE_DEVICES=0,1 swift sft --model a/b --max_length 64",
            "spreads layers of a model over several GPUs",
        ),
        (
            f"swift rlhf --model {QWEN}",
            "max_length=null: is absent, and then ms-swift cuts rows at the longest that the model allows",
        ),
        ("swift rlhf --rlhf_type gkd --model a/b --max_length 64", "rlhf_type=gkd: is a trainer of ms-swift 4.6"),
        ("swift sft --model a/b --max_length $LONGEST", "is max_length in run.sh, which does not say what it is"),
        (f"swift sft --model {QWEN} --max_length 64 --lora_rank $RANK", "is lora_rank in run.sh, which does not say"),
        (
            f"llamafactory-cli train --do_train --stage $KIND --model_name_or_path {QWEN}",
            "is stage in run.sh, which does",
        ),
        (f"swift rlhf --rlhf_type $KIND --model {QWEN}", "is rlhf_type in run.sh, which does not say what it is"),
        ("llamafactory-cli train missing.yaml", "is the recipe of llamafactory-cli train, and there is no such file"),
        (
            "llamafactory-cli export f.yaml",
            "runs LLaMA-Factory (llamafactory-cli), and this way to start it is not read",
        ),
    ],
)
def test_a_command_is_refused_with_its_reason(tmp_path, line, problem):
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{line}\n")
    answer = said(f"config={tmp_path / 'run.sh'}")
    assert answer.trial is None
    assert problem in " ".join(answer.errors)


def test_a_launch_may_be_of_another_program():
    answer = said(f"launch=NPROC_PER_NODE=2 swift sft --model {QWEN} --max_length 64")
    assert answer.trial is not None, answer.errors
    assert answer.trial["num_processes"] == 2
