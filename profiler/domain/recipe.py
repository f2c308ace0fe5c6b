"""The recipes: which trainer a trial runs."""

from enum import StrEnum


class Recipe(StrEnum):
    """Which trainer a trial runs."""

    GRPO = "grpo"
    """trl's `GRPOTrainer`."""
    RLOO = "rloo"
    """trl's `RLOOTrainer`, with GRPO's keys."""
    SFT = "sft"
    """trl's `SFTTrainer`."""

    @property
    def generates(self) -> bool:
        """Whether training generates its own completions, in addition to reading a data set."""
        return self in (Recipe.GRPO, Recipe.RLOO)


ALL_RECIPES = frozenset(Recipe)

GENERATING = frozenset(recipe for recipe in Recipe if recipe.generates)
