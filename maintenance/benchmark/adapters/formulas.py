"""Formulas stated by their authors, where their package cannot be called without a GPU or a download."""

from maintenance.benchmark.adapters.question import NotCoveredError, Question, Said

_ADAM = ("adamw_torch", "adamw_torch_fused")


def deepspeed(question: Question) -> Said:
    """Return `estimate_zero2_model_states_mem_needs` and `estimate_zero3_...` of DeepSpeed 0.19.8: model states."""
    job, count = question.job, question.parameters
    question.needs("distributed_type", "deepspeed")
    question.needs("zero_stage", 2, 3)
    question.needs("tuning", "full")
    question.needs("optim", *_ADAM)
    is_offloaded, is_param_offloaded = (
        job[key] == "cpu" for key in ("offload_optimizer_device", "offload_param_device")
    )
    gpus = job["num_processes"]
    if job["zero_stage"] == 2:
        return {"allocated": 2 * count if is_offloaded else 2 * count + 18 * count // gpus}
    largest = 4 * question.config["vocab_size"] * question.config["hidden_size"]
    if not is_offloaded:
        return {"allocated": largest + 18 * count // gpus}
    return {"allocated": largest if is_param_offloaded else largest + 2 * count // gpus}


def training_hub(question: Question) -> Said:
    """Return the expected value of `BasicEstimator`, `LoRAEstimator` or `QLoRAEstimator` of training-hub 0.11.2.

    Its parameters are those of `AutoModel`, without the LM head. Its default targets of adapters are all projections.
    """
    job, config = question.job, question.config
    question.needs("recipe", "sft")
    question.needs("optim", *_ADAM)
    question.needs("distributed_type", "no", "fsdp")
    gpus, is_full = job["num_processes"], job["tuning"] == "full"
    head = 0 if config.get("tie_word_embeddings") else config["vocab_size"] * config["hidden_size"]
    count = question.parameters - head
    tokens = job["per_device_train_batch_size"] * question.length
    size = 4 if is_full else 2
    activations = tokens * size * config["num_hidden_layers"] * config["hidden_size"]
    outputs = 0 if job["use_liger_kernel"] else tokens * size * config["vocab_size"]
    if is_full:
        return _with_overhead(4 * 4 * count / gpus + activations + outputs * 8 / 3)
    adapted = _adapted(question) * job["lora_rank"]
    weights = {"lora": 2.0, "qlora": 0.5}[job["tuning"]]
    sizes = (count * weights + adapted * 4) / gpus + size * 2 * adapted / gpus
    total = sizes + activations + max(size * adapted / gpus, outputs * 2)
    if job["tuning"] == "qlora":
        total = max(total, count / gpus)
    return _with_overhead(total)


def _with_overhead(total: float) -> Said:
    """Return its sum, and the expected value: 10 % more."""
    return {"allocated": int(total), "device": int(1.1 * total)}


def _adapted(question: Question) -> int:
    """Return inputs and outputs of the projections of all layers, added up."""
    hidden, inner = question.config["hidden_size"], question.config["intermediate_size"]
    heads, kv_heads, size = question.heads
    if "num_local_experts" in question.config or "num_experts" in question.config:
        raise NotCoveredError("mixture of experts")
    attention = 2 * (hidden + heads * size) + 2 * (hidden + kv_heads * size)
    return int(question.config["num_hidden_layers"] * (attention + 3 * (hidden + inner)))
