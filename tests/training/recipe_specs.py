"""Trials of recipes on rows of a data set, for tests: each takes seconds on the CPU."""

from typing import Any

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec

_PREFERENCES: dict[str, Any] = {"beta": 0.1, "max_prompt_length": 8}


def _spec(recipe: Recipe, keys: dict[str, Any]) -> TrialSpec:
    defaults: dict[str, Any] = {
        "backend": Backend.CPU,
        "gpu": None,
        "model": "tiny",
        "recipe": recipe,
        "max_length": 24,
        "gradient_accumulation_steps": 2,
        "steps": 1,
    }
    return TrialSpec(**(defaults | keys))


def sft_spec(**keys: Any) -> TrialSpec:
    """Return a trial of 4 rows of at most 24 tokens."""
    return _spec(Recipe.SFT, keys)


def dpo_spec(**keys: Any) -> TrialSpec:
    """Return a trial of 4 pairs of at most 8 + 16 tokens."""
    return _spec(Recipe.DPO, _PREFERENCES | keys)


def kto_spec(**keys: Any) -> TrialSpec:
    """Return a trial of 4 completions of at most 16 tokens after prompts of 8."""
    return _spec(Recipe.KTO, _PREFERENCES | keys)


def reward_spec(**keys: Any) -> TrialSpec:
    """Return a trial of 4 pairs of at most 24 tokens."""
    return _spec(Recipe.REWARD, keys)
