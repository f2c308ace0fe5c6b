"""fitcheck-llm 0.3.1: `fitcheck.estimate`."""

from maintenance.benchmark.adapters.question import MIB, NotCoveredError, Question, Said

_CARDS = {"t4-16gb": "t4", "a100-40gb": "a100-40", "a100-80gb": "a100-80", "h100-80gb": "h100", "h200-141gb": "h200",
          "l40s-48gb": "l40s", "rtx-4090-24gb": "4090", "rtx-5090-32gb": "5090", "b200-180gb": "b200"}  # fmt: skip
_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_8bit": "adam8bit", "sgd": "sgd",
               "paged_adamw_8bit": "adam8bit"}  # fmt: skip


def answer(question: Question) -> Said:
    """Return tensors, and memory of the process: its total, with the overhead."""
    from fitcheck import ModelConfig, TrainingConfig, UnsupportedModelError, estimate, get_gpu

    job, config, (heads, kv_heads, head_dim) = question.job, question.config, question.heads
    question.needs("recipe", "sft")
    question.needs("num_processes", 1)
    question.needs("optim", *_OPTIMIZERS)
    if "num_local_experts" in config or "num_experts" in config:
        raise NotCoveredError("mixture of experts")
    model = ModelConfig(
        name=job["model"],
        num_params=question.parameters,
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        head_dim=head_dim,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
    is_quantized, is_full = job["tuning"] == "qlora", job["tuning"] == "full"
    training = TrainingConfig(
        precision=question.half_type,
        quantization="nf4" if is_quantized else "none",
        double_quant=is_quantized and job["bnb_4bit_use_double_quant"],
        optimizer=_OPTIMIZERS[job["optim"]],
        batch_size=job["per_device_train_batch_size"],
        seq_len=question.length,
        lora_rank=None if is_full else job["lora_rank"],
        **({} if is_full else {"lora_targets": question.targets}),
        grad_checkpoint=job["gradient_checkpointing"],
        flash_attn=job["attn_implementation"] != "eager",
    )
    known = _CARDS.get(job["gpu"])
    card = get_gpu(known) if known else get_gpu(question.card, question.card_bytes // MIB)
    try:
        report = estimate(model, training, card)
    except (UnsupportedModelError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    tensors = report.total_mib - report.overhead_mib
    return {"allocated": int(tensors * MIB), "device": int(report.total_mib * MIB)}
