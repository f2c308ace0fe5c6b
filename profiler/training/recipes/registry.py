"""Recipes by the value of the key `recipe`."""

from collections.abc import Mapping

from profiler.domain.trial import TrialSpec
from profiler.training.recipes.grpo.recipe import Grpo
from profiler.training.recipes.recipe import Recipe

RECIPES: Mapping[str, Recipe] = {"grpo": Grpo()}


def recipe_of(spec: TrialSpec) -> Recipe:
    """Return the trial's recipe."""
    return RECIPES[str(getattr(spec, "recipe", "grpo"))]
