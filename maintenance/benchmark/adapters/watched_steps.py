"""The script that a tracker of torch watches: a model and a step as trl's SFTTrainer makes them, on fake tensors.

Runs where torch, transformers and trl are; imports them within its functions.
"""

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maintenance.benchmark.adapters.question import Question, Said

if TYPE_CHECKING:
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import PreTrainedModel


def refuse(question: Question) -> None:
    """Refuse what this step is not. A tracker puts a hook on each parameter, which torch refuses for a frozen one.

    Raises:
        NotCoveredError: By the key.
    """
    question.needs("recipe", "sft")
    question.needs("tuning", "full")
    question.needs("optim", "adamw_torch", "adamw_torch_fused", "sgd")
    for key in ("fp16", "use_liger_kernel", "activation_offloading"):
        question.needs(key, False)


def model_of(question: Question, data_type: "torch.dtype") -> "PreTrainedModel":
    """Return the model with trl's LM head. FlashAttention 2 is torch's SDPA, which keeps the same tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights
    from trl.trainer.utils import add_fused_lm_head

    job, config = question.job, dict(question.config)
    built = AutoConfig.for_model(config.pop("model_type"), **config)
    attention = "eager" if job["attn_implementation"] == "eager" else "sdpa"
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(built, dtype=data_type, attn_implementation=attention)
    model.tie_weights()  # A model without initial weights is not tied yet.
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    model.train()
    if job["gradient_checkpointing"] or job["fsdp_activation_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def prepare(question: Question, optimizer: "torch.optim.Optimizer") -> None:
    """Make what a later step finds: states of the optimizer, and gradients of earlier micro-batches if it has any."""
    import torch

    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    if question.job["gradient_accumulation_steps"] == 1:
        optimizer.zero_grad()


def peak_of_step(
    question: Question, model: "PreTrainedModel", optimizer: "torch.optim.Optimizer", tracker: "MemTracker"
) -> Said:
    """Return the peak of a step on tensors of the CPU: a torch without CUDA has no fake ones of a card.

    The kernels of trl's LM head take no fake tensors and allocate nothing: they are left out. In their place trl would
    run operations on the CPU that make tensors of a tile, which no card has.
    """
    import torch
    from trl.kernels import chunked_logprob

    job = question.job
    rows = torch.zeros((job["per_device_train_batch_size"], question.length), dtype=torch.long)
    head = {"fused_lm_head": True} if job["logprobs"] == "fused" else {}
    # In place of its dictionary of weak references, which takes most of the time.
    tracker.memory_tracking = {}  # type: ignore[assignment]
    kernels: dict[str, Any] = dict.fromkeys(("_forward_tile", "_backward_tile", "_addmm_fp32"), lambda *_, **__: None)
    with patch.multiple(chunked_logprob, **kernels), tracker:
        with torch.autocast("cpu", torch.bfloat16, enabled=job["bf16"]):
            loss = model(input_ids=rows, labels=rows, use_cache=False, **head).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"allocated": sum(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values())}
