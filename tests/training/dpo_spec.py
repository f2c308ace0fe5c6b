"""Trials of the recipe `dpo` for tests."""

from typing import Any

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec


def dpo_spec(**keys: Any) -> TrialSpec:
    """Return a trial on the CPU that takes seconds: 4 pairs of at most 8 + 16 tokens."""
    defaults: dict[str, Any] = {
        "backend": Backend.CPU,
        "gpu": None,
        "model": "tiny",
        "recipe": Recipe.DPO,
        "beta": 0.1,
        "max_length": 24,
        "max_prompt_length": 8,
        "gradient_accumulation_steps": 2,
        "steps": 1,
    }
    return TrialSpec(**(defaults | keys))
