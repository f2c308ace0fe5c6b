"""The recipes: which trainer a trial runs, and what of a step each of them has."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


@dataclass(frozen=True, kw_only=True)
class RecipeFacts:
    """What a recipe's steps have. None of it follows from another, so that each recipe states all of it."""

    has_rollout: bool
    """Whether training generates its own completions, in addition to reading a data set."""
    has_scoring: bool
    """Whether completions get rewards."""
    has_prompts: bool
    """Whether rows are a prompt and a completion, with a length each."""
    has_reference_pass: bool
    """Whether a reference model computes the rows as well, if `beta` is not 0."""
    rows_are_single: bool
    """Whether one row of the data set, or one completion, is one row of a forward pass; false for pairs."""
    has_lm_head: bool
    """Whether the model predicts tokens; false for one whose head scores a row."""
    has_shifted_rows: bool
    """Whether each prompt runs with the completion of its neighbour too, for a KL term."""


class Recipe(StrEnum):
    """Which trainer a trial runs."""

    GRPO = "grpo"
    """trl's `GRPOTrainer`."""
    RLOO = "rloo"
    """trl's `RLOOTrainer`, with GRPO's keys."""
    SFT = "sft"
    """trl's `SFTTrainer`."""
    DPO = "dpo"
    """trl's `DPOTrainer`, on pairs of a chosen and a rejected completion."""
    KTO = "kto"
    """trl's `KTOTrainer`, on single completions that are good or not."""
    REWARD = "reward"
    """trl's `RewardTrainer`: a model with a head of one score, on pairs."""

    @property
    def in_classes(self) -> str:
        """Its name in those of trl's classes: `GRPOConfig`, but `RewardConfig`."""
        return "Reward" if self is Recipe.REWARD else self.value.upper()

    @property
    def facts(self) -> RecipeFacts:
        """What its steps have."""
        match self:
            case Recipe.GRPO | Recipe.RLOO:
                return ONLINE
            case Recipe.SFT:
                return LABELLED
            case Recipe.DPO:
                return PAIRED
            case Recipe.KTO:
                return JUDGED
            case Recipe.REWARD:
                return COMPARED
            case _:
                assert_never(self)


ONLINE = RecipeFacts(
    has_rollout=True,
    has_scoring=True,
    has_prompts=True,
    has_reference_pass=True,
    rows_are_single=True,
    has_lm_head=True,
    has_shifted_rows=False,
)
"""Reinforcement learning on completions of the model itself."""

LABELLED = RecipeFacts(
    has_rollout=False,
    has_scoring=False,
    has_prompts=False,
    has_reference_pass=False,
    rows_are_single=True,
    has_lm_head=True,
    has_shifted_rows=False,
)
"""Training on rows with labels."""

PAIRED = RecipeFacts(
    has_rollout=False,
    has_scoring=False,
    has_prompts=True,
    has_reference_pass=True,
    rows_are_single=False,
    has_lm_head=True,
    has_shifted_rows=False,
)
"""Training on prompts with two completions each, of which one is better."""

JUDGED = RecipeFacts(
    has_rollout=False,
    has_scoring=False,
    has_prompts=True,
    has_reference_pass=True,
    rows_are_single=True,
    has_lm_head=True,
    has_shifted_rows=True,
)
"""Training on prompts with one completion each, which is good or not."""

COMPARED = RecipeFacts(
    has_rollout=False,
    has_scoring=False,
    has_prompts=False,
    has_reference_pass=False,
    rows_are_single=False,
    has_lm_head=False,
    has_shifted_rows=False,
)
"""Training of a model that scores rows, on pairs of which one row is better."""

ALL_RECIPES = frozenset(Recipe)

GENERATING = frozenset(recipe for recipe in Recipe if recipe.facts.has_rollout)
SCORED = frozenset(recipe for recipe in Recipe if recipe.facts.has_scoring)
WITH_PROMPTS = frozenset(recipe for recipe in Recipe if recipe.facts.has_prompts)
OF_DATA = frozenset(recipe for recipe in Recipe if not recipe.facts.has_rollout)
WITH_REFERENCE = frozenset(recipe for recipe in Recipe if recipe.facts.has_reference_pass)
"""Recipes by the value of the key `recipe`."""
