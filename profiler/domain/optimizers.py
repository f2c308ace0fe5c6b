"""The optimizers the profiler knows, by transformers' names (`TrainingArguments.optim`)."""

from enum import StrEnum


class Optimizer(StrEnum):
    """Values of `optim`."""

    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
