"""vram-check 0.1.0: `vram_check.analyze` of the model on torch's meta device."""

from maintenance.benchmark.adapters.question import Question, Said

_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def answer(question: Question) -> Said:
    """Return its total, with the weights of frozen parameters, which it states apart."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM
    from vram_check import analyze

    job = question.job
    question.needs("recipe", "sft")
    question.needs("tuning", "full", "lora")
    question.needs("num_processes", 1)
    question.needs("optim", "adamw_torch", "adamw_torch_fused")
    config = dict(question.config)
    built = AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(built, dtype=getattr(torch, _TYPES[question.half_type]))
        if job["tuning"] == "lora":
            model = get_peft_model(model, LoraConfig(r=job["lora_rank"], target_modules=question.targets))
    found = analyze(
        model,
        batch_size=job["per_device_train_batch_size"],
        dtype=question.half_type,
        optimizer="adamw",
        seq_len=question.length,
    )
    frozen = found["frozen"]["frozen_bytes"] if found["frozen"] else 0
    return {"allocated": found["estimate"].total_bytes + frozen}
