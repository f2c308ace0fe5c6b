"""Recipes by the value of the key `recipe`."""

from collections.abc import Mapping

from profiler.domain.trials.recipe import Recipe as Name
from profiler.domain.trials.trial import TrialSpec
from profiler.training.recipes.grpo.recipe import Grpo, Rloo
from profiler.training.recipes.recipe import Recipe
from profiler.training.recipes.sft.recipe import Sft

RECIPES: Mapping[Name, Recipe] = {Name.GRPO: Grpo(), Name.RLOO: Rloo(), Name.SFT: Sft()}


def recipe_of(spec: TrialSpec) -> Recipe:
    """Return the trial's recipe."""
    return RECIPES[spec.recipe]
