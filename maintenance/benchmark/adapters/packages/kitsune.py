"""torch-kitsune 0.4.0: `kitsune.predict.predict_memory` of the model on torch's meta device, as `predict_hf_memory`."""

from maintenance.benchmark.adapters.question import Question, Said

_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def answer(question: Question) -> Said:
    """Return its sum without and with its overhead of 15 %: tensors, and memory of the device."""
    import torch
    from kitsune.predict import predict_memory
    from transformers import AutoConfig, AutoModelForCausalLM

    job = question.job
    question.needs("recipe", "sft")
    question.needs("tuning", "full")
    question.needs("num_processes", 1)
    question.needs("gradient_checkpointing", False)
    question.needs("optim", *_OPTIMIZERS)
    config = dict(question.config)
    built = AutoConfig.for_model(config.pop("model_type"), **config)
    data_type = getattr(torch, _TYPES[question.half_type])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(built, dtype=data_type)
    found = predict_memory(
        model,
        input_shape=(question.length,),
        batch_size=job["per_device_train_batch_size"],
        dtype=data_type,
        optimizer=_OPTIMIZERS[job["optim"]],
        training=True,
    )
    return {"allocated": found.total_bytes - found.overhead_bytes, "device": found.total_bytes}
