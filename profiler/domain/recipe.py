"""The recipes: which trainer a trial runs."""

from enum import StrEnum


class Recipe(StrEnum):
    """Which trainer a trial runs."""

    GRPO = "grpo"
    """trl's `GRPOTrainer`."""


ALL_RECIPES = frozenset(Recipe)
