"""Arguments of transformers' trainer that every recipe shares, and peft's `LoraConfig`."""

import sys
from pathlib import Path
from typing import Any

from accelerate.parallelism_config import ParallelismConfig
from peft import LoraConfig

from profiler.domain.trials.trial import ALL_LINEAR, DistributedType, Evaluations, TrialSpec, Tuning
from profiler.training.data.source_data import sequence_length


def common_arguments(spec: TrialSpec, *, use_cpu: bool, output_dir: Path) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments` that `spec` decides, and those that keep a run free of output.

    Nothing is saved, logged or reported. Every other argument keeps the default of trl's configuration.
    """
    return {
        "output_dir": str(output_dir),
        "use_cpu": use_cpu,
        "bf16": spec.bf16,
        "fp16": spec.fp16,
        "seed": spec.seed,
        "optim": spec.optim.value,
        "weight_decay": spec.weight_decay,
        "per_device_train_batch_size": spec.per_device_train_batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation_steps,
        "gradient_checkpointing": spec.gradient_checkpointing,
        "torch_empty_cache_steps": spec.torch_empty_cache_steps,
        "max_steps": spec.steps,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **({"use_liger_kernel": True} if spec.use_liger_kernel else {}),
        **_sharding(spec),
    }


def arguments_of_rows(spec: TrialSpec, *, use_cpu: bool, output_dir: Path) -> dict[str, Any]:
    """Return the arguments that trainers on rows of a data set share.

    Rows are used in their order and not shuffled, so that every micro-batch has a row of the full length.
    """
    return {
        **common_arguments(spec, use_cpu=use_cpu, output_dir=output_dir),
        "max_length": sequence_length(spec),
        "activation_offloading": spec.activation_offloading,
        "train_sampling_strategy": "sequential",
    }


def set_evaluations(arguments: Any, evaluations: Evaluations) -> None:
    """Let transformers' arguments evaluate."""
    arguments.set_evaluate(
        strategy="no" if evaluations.eval_steps is None else "steps",
        steps=evaluations.eval_steps or 1,
        batch_size=evaluations.per_device_eval_batch_size,
        accumulation_steps=evaluations.eval_accumulation_steps,
        delay=evaluations.eval_delay,
    )
    arguments.eval_on_start = evaluations.eval_on_start
    if evaluations.num_generations_eval is not None:
        arguments.num_generations_eval = evaluations.num_generations_eval


def _sharding(spec: TrialSpec) -> dict[str, Any]:
    """Return the arguments of FSDP or DeepSpeed; DDP has none, as accelerate takes it where there are processes."""
    if spec.distributed_type is DistributedType.DEEPSPEED:
        return {"deepspeed": _deepspeed(spec)}
    if spec.distributed_type is not DistributedType.FSDP:
        return {}
    reshard: bool | str = bool(spec.fsdp_reshard_after_forward)
    if spec.fsdp_version == 1:
        reshard = "full_shard" if reshard else "shard_grad_op"
    config = {
        "version": spec.fsdp_version,
        "reshard_after_forward": reshard,
        "cpu_offload": spec.fsdp_offload_params,
        "activation_checkpointing": spec.fsdp_activation_checkpointing,
        "cpu_ram_efficient_loading": spec.fsdp_cpu_ram_efficient_loading,
    }
    return {"fsdp": True, "fsdp_config": config, **_split_rows(spec)}


def _split_rows(spec: TrialSpec) -> dict[str, Any]:
    """Return how accelerate splits each row over GPUs; nothing where it does not."""
    if spec.cp_size in (None, 1):
        return {}
    shards = spec.num_processes // (spec.cp_size or 1)
    return {"parallelism_config": ParallelismConfig(cp_size=spec.cp_size, dp_shard_size=shards)}


def _deepspeed(spec: TrialSpec) -> dict[str, Any]:
    """Return the configuration that accelerate's `DeepSpeedPlugin` makes of the same keys, without a JSON file."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False},
        "steps_per_print": sys.maxsize,
        "zero_optimization": {
            "stage": spec.zero_stage,
            "offload_optimizer": {"device": str(spec.offload_optimizer_device)},
            "offload_param": {"device": str(spec.offload_param_device)},
        },
    }


def lora_config(spec: TrialSpec) -> Any | None:
    """Return peft's configuration of the adapters; None for full fine-tuning."""
    if spec.tuning is Tuning.FULL or spec.lora_target_modules is None:
        return None
    targets = spec.lora_target_modules
    return LoraConfig(
        # peft trains a head of scores as a whole, and gives it no adapter.
        task_type="CAUSAL_LM" if spec.recipe.facts.has_lm_head else "SEQ_CLS",
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        lora_dropout=spec.lora_dropout,
        target_modules=ALL_LINEAR if targets == (ALL_LINEAR,) else list(targets),
    )
