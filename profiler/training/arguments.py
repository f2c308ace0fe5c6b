"""From a trial's specification to trl's GRPOConfig and peft's LoraConfig."""

from pathlib import Path
from typing import Any

from peft import LoraConfig
from trl import GRPOConfig

from profiler.domain.trial import ALL_LINEAR, TrialSpec, Tuning

_NEVER_SAMPLED = 2**31 - 1
"""Above every vocabulary. With None transformers takes the model's own id, and rows would end there."""


def grpo_config(spec: TrialSpec, *, use_cpu: bool, output_dir: Path) -> Any:
    """Trl's configuration of the trial. What the spec does not name stays at trl's default.

    Nothing is saved, logged or reported. Generation never stops early: the lengths of completions are the spec's, so
    only a token that is never sampled ends a row, in generation only.
    """
    return GRPOConfig(
        output_dir=str(output_dir),
        use_cpu=use_cpu,
        bf16=spec.bf16,
        seed=spec.seed,
        optim=spec.optim.value,
        num_generations=spec.num_generations,
        max_completion_length=spec.max_completion_length,
        per_device_train_batch_size=spec.per_device_train_batch_size,
        gradient_accumulation_steps=spec.gradient_accumulation_steps,
        steps_per_generation=spec.steps_per_generation,
        gradient_checkpointing=spec.gradient_checkpointing,
        beta=spec.beta,
        max_steps=spec.steps,
        generation_kwargs={"eos_token_id": _NEVER_SAMPLED},
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def lora_config(spec: TrialSpec) -> Any | None:
    """Peft's configuration of the adapters; None for full fine-tuning."""
    if spec.tuning is Tuning.FULL or spec.lora_target_modules is None:
        return None
    targets = spec.lora_target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        target_modules=ALL_LINEAR if targets == (ALL_LINEAR,) else list(targets),
    )
