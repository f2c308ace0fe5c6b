"""Trials of the recipe `sft` for tests."""

from typing import Any

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec


def sft_spec(**keys: Any) -> TrialSpec:
    """Return a trial on the CPU that takes seconds."""
    defaults: dict[str, Any] = {
        "backend": Backend.CPU,
        "gpu": None,
        "model": "tiny",
        "recipe": Recipe.SFT,
        "max_length": 24,
        "gradient_accumulation_steps": 2,
        "steps": 1,
    }
    return TrialSpec(**(defaults | keys))
