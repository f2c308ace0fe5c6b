"""The order in which trials are shown: as a reader would list the methods, not as hashes fall."""

from collections.abc import Mapping
from enum import StrEnum

import pandas as pd

from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Attention, Dtype, Lengths, Logprobs, Rollout, Tuning, Weights

SHOWN_KEYS = (
    "tuning",
    "lora_rank",
    "lora_alpha",
    "lora_target_modules",
    "optim",
    "num_generations",
    "max_prompt_length",
    "max_completion_length",
    "lengths",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "gradient_checkpointing",
    "beta",
    "attn_implementation",
    "dtype",
    "bf16",
    "logprobs",
    "rollout",
    "steps",
    "alloc_conf",
    "weights",
    "dataset",
    "seed",
)
"""Keys of a specification that a row can stand for (the others are columns or sections), the weightiest first."""

_KINDS: Mapping[str, type[StrEnum]] = {
    "tuning": Tuning,
    "optim": Optimizer,
    "lengths": Lengths,
    "attn_implementation": Attention,
    "dtype": Dtype,
    "logprobs": Logprobs,
    "rollout": Rollout,
    "weights": Weights,
}


def in_reading_order(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `runs` sorted by their specification: closed sets in their own order, numbers by size."""
    keys = pd.DataFrame({name: _ranks(runs[name], _KINDS.get(name)) for name in SHOWN_KEYS}, index=runs.index)
    keys["model"] = runs["model"].astype(str)
    keys["trial_id"] = runs["trial_id"].astype(str)
    return runs.loc[keys.sort_values([*SHOWN_KEYS, "model", "trial_id"]).index]


def _ranks(values: pd.Series, kind: type[StrEnum] | None) -> list[int]:
    # Ranks instead of values: columns mix kinds, and null has to come first in all of them.
    known = [None if value is pd.NA or value != value else value for value in values.tolist()]
    ordered = [str(member) for member in kind] if kind else sorted({value for value in known if value is not None})
    rank = {value: position for position, value in enumerate(ordered)}
    return [-1 if value is None else rank[value] for value in known]
