"""Reading of the keys of a trial as their declarations say, and keys that belong to some recipes only."""

from dataclasses import replace

import pytest

from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import ADDED_KEYS, labels, spec_from_mapping, spec_to_mapping
from profiler.config.trials.key_values import DEFAULTS, other_recipe_faults, without_other_recipes
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import UsageError
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SPEC_KEYS, Backend, TrialSpec, key_named

SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="tiny")

NOWHERE = frozenset()
"""The recipes of a key that the only recipe does not have."""


def keys_of_no_recipe(*names):
    return tuple(replace(key_named(name), recipes=NOWHERE) for name in names)


def test_a_key_that_the_recipe_does_not_have_is_null_or_its_default():
    values = {"beta": 0.04, "dataset": "data.json", "steps": 9}
    found = without_other_recipes(values, Recipe.GRPO, keys_of_no_recipe("beta", "dataset"))
    assert found == {"beta": 0.0, "dataset": None, "steps": 9}


def test_a_value_for_a_key_that_the_recipe_does_not_have_is_one_fault():
    (key,) = keys_of_no_recipe("beta")
    key = replace(key, recipes=frozenset(Recipe))
    assert other_recipe_faults({"beta": 0.04}, Recipe.GRPO, (key,)) == []
    missing = replace(key, recipes=NOWHERE)
    (fault,) = other_recipe_faults({"beta": 0.04, "steps": 9}, Recipe.GRPO, (missing,))
    assert fault.sentence().startswith("beta=0.04: has no meaning with recipe=grpo.")


@pytest.mark.parametrize("values", [{}, {"beta": None}, {"beta": 0.0}])
def test_a_default_for_a_key_that_the_recipe_does_not_have_is_no_fault(values):
    assert other_recipe_faults(values, Recipe.GRPO, keys_of_no_recipe("beta")) == []


def test_the_recipe_is_grpo_unless_stated():
    assert DEFAULTS["recipe"] is Recipe.GRPO
    point = {"backend": "simulated", "model": "tiny"}
    assert parse_point(point, architecture_of=builtin_architecture).recipe is Recipe.GRPO
    with pytest.raises(UsageError, match="recipe=grop: must be one of grpo, rloo, sft"):
        parse_point({**point, "recipe": "grop"}, architecture_of=builtin_architecture)


def test_a_stored_specification_without_a_recipe_is_one_of_grpo():
    values = spec_to_mapping(SPEC)
    assert values.pop("recipe") == ADDED_KEYS["recipe"] == "grpo"
    assert spec_from_mapping(values) == SPEC


def test_labels_do_not_state_a_recipe_that_all_trials_have():
    assert labels([SPEC, replace(SPEC, seed=1)]) == ["full + checkpointing, seed=0", "full + checkpointing, seed=1"]


@pytest.mark.parametrize("name", SPEC_KEYS)
def test_a_key_that_is_left_out_has_its_declared_default(name):
    key = key_named(name)
    assert (name in DEFAULTS) == (not key.required or bool(key.null_given))
    if not key.required:
        assert getattr(SPEC, name) == key.default
