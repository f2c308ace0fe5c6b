"""What the speed of the estimate is measured on; `maintenance.bench` reads the clock."""

from collections.abc import Mapping, Sequence

from profiler.analytical.many import TrialTable, product_table
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Logprobs, TrialSpec, Tuning


def hundred_thousand_trials(architectures: Mapping[str, Architecture]) -> TrialTable:
    """100,000 trials over five models: two tunings, two log-probs, four optimizers, lengths, batches, ranks.

    Args:
        architectures: At least five models by name.
    """
    base = TrialSpec(
        backend=Backend.SIMULATED,
        gpu="h100-80gb",
        model=next(iter(architectures)),
        lora_rank=16,
        lora_alpha=32,
        lora_target_modules=(ALL_LINEAR,),
    )
    axes: dict[str, Sequence[object]] = {
        "model": tuple(architectures)[:5],
        "tuning": (Tuning.FULL, Tuning.LORA),
        "gradient_checkpointing": (True, False),
        "logprobs": (Logprobs.FUSED, Logprobs.SLICED),
        "optim": (
            Optimizer.ADAMW_TORCH_FUSED,
            Optimizer.ADAMW_8BIT,
            Optimizer.ADAMW_TORCH,
            Optimizer.ADAFACTOR,
        ),
        "max_completion_length": range(100, 2600, 100),
        "per_device_train_batch_size": (1, 2, 4, 8, 16),
        "lora_rank": (8, 16, 32, 64, 128),
    }
    return product_table(base, axes, architectures)
