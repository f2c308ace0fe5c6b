"""agilerl-arena 1.29.0: `agilerl.arena.memory.estimate_training`, which `arena memory` calls."""

from maintenance.benchmark.adapters.question import NotCoveredError, Question, Said


def answer(question: Question) -> Said:
    """Return the peak of the training phase: tensors, and memory of the device with its context and the allocator."""
    from agilerl.arena.memory import DeviceSpec, ModelArch, ModelSpec, TrainingSettings, estimate_training

    job = question.job
    question.needs("recipe", "sft", "grpo", "dpo")
    question.needs("tuning", "lora")
    question.needs("num_processes", 1)
    question.needs("optim", "adamw_torch", "adamw_torch_fused")
    arch = ModelArch.from_hf_config({"model_type": "llama", **question.config})
    try:
        settings = TrainingSettings(
            algorithm=job["recipe"],
            group_size=job["num_generations"],
            max_model_len=question.length,
            lora_rank=job["lora_rank"],
            lora_target_scope=_scope(question),
            lora_dropout=job["lora_dropout"],
            beta=job["beta"] or 0.0,
            use_separate_reference_adapter=False,
            weight_dtype=question.half_type,
            gradient_checkpointing=job["gradient_checkpointing"],
            micro_batch_size=job["per_device_train_batch_size"],
        )
    except ValueError as error:
        raise NotCoveredError(str(error).splitlines()[0]) from error
    found = estimate_training(
        ModelSpec(model_id=job["model"], arch=arch, n_params=question.parameters),
        DeviceSpec(total_bytes=question.card_bytes),
        settings,
    )
    around = sum(part.n_bytes for part in found.components if part.key in ("overhead", "allocator_reserve"))
    return {"allocated": found.total_bytes - around, "device": found.total_bytes}


def _scope(question: Question) -> str:
    if question.targets == ["q_proj", "k_proj", "v_proj", "o_proj"]:
        return "attention-only"
    if "down_proj" in question.targets and "q_proj" in question.targets and "gate_proj" in question.targets:
        return "all-linear"
    raise NotCoveredError(f"lora_target_modules={question.targets}")
