"""What is specific to one trainer of trl, by the value of the key `recipe`: one module or folder per recipe."""

from collections.abc import Mapping

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TrialSpec
from profiler.training.recipes.dpo import Dpo, Kto
from profiler.training.recipes.grpo.recipe import Grpo, Rloo
from profiler.training.recipes.recipe import TrainerRecipe
from profiler.training.recipes.sft import Reward, Sft

RECIPES: Mapping[Recipe, TrainerRecipe] = {
    Recipe.GRPO: Grpo(),
    Recipe.RLOO: Rloo(),
    Recipe.SFT: Sft(),
    Recipe.DPO: Dpo(),
    Recipe.KTO: Kto(),
    Recipe.REWARD: Reward(),
}


def recipe_of(spec: TrialSpec) -> TrainerRecipe:
    """Return the trial's recipe."""
    return RECIPES[spec.recipe]
