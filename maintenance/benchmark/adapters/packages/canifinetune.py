"""canifinetune 0.4.1: `canifinetune.estimator.estimate`."""

from maintenance.benchmark.adapters.question import GIB, NotCoveredError, Question, Said

_SCOPES = {4: "attention", 7: "all_linear"}


def answer(question: Question) -> Said:
    """Return its planning budget without the safety margin, which it states apart: peak reserved memory."""
    from canifinetune.estimator.memory import EstimateRequest, estimate

    job = question.job
    question.needs("recipe", "sft")
    question.needs("num_processes", 1)
    question.needs("optim", "paged_adamw_8bit", "adamw_8bit", "adamw_torch", "adamw_torch_fused", "sgd")
    adapted = {} if job["tuning"] == "full" else {"lora_rank": job["lora_rank"], "lora_target_scope": _scope(question)}
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
             "vocab_size", "tie_word_embeddings", "num_local_experts", "num_experts_per_tok")  # fmt: skip
    given = {name: question.config[name] for name in names if question.config.get(name) is not None}
    is_double = job["bnb_4bit_use_double_quant"]
    try:
        found = estimate(
            EstimateRequest(
                model_id=job["model"],
                method=job["tuning"],
                seq_len=question.length,
                micro_batch_size=job["per_device_train_batch_size"],
                base_dtype=question.half_type,
                quantization="nf4_double_quant" if is_double else "nf4",
                optimizer=job["optim"],
                gradient_checkpointing=job["gradient_checkpointing"],
                attention_implementation=job["attn_implementation"],
                gpu_vram_gb=question.card_bytes / GIB,
                override={**given, "family": question.config["model_type"], "total_params": question.parameters},
                use_network=False,
                **adapted,
            )
        )
    except ValueError as error:
        raise NotCoveredError(str(error).splitlines()[0]) from error
    return {"reserved": int((found.memory.total_estimated_gb - found.memory.safety_margin_gb) * GIB)}


def _scope(question: Question) -> str:
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for count, scope in _SCOPES.items():
        if question.targets == every[:count]:
            return scope
    raise NotCoveredError(f"lora_target_modules={question.targets}")
