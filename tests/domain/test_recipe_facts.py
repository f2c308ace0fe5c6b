"""A recipe states each fact about its steps by itself, and no other recipe's numbers answer for it."""

import re
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from enum import StrEnum
from pathlib import Path

import builders
import pytest

from profiler.analytical.timeline.recipes import registry
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trl.yaml import _OTHERS
from profiler.domain.errors import UsageError
from profiler.domain.trials import recipe as recipes
from profiler.domain.trials.recipe import COMPARED, JUDGED, LABELLED, ONLINE, PAIRED, Recipe, RecipeFacts
from profiler.domain.trials.trial import TRIAL_KEYS
from profiler.training.recipes import RECIPES

ORPO = RecipeFacts(
    has_rollout=False,
    has_scoring=False,
    has_prompts=True,
    has_reference_pass=False,
    rows_are_single=False,
    has_lm_head=True,
    has_shifted_rows=False,
)


class Added(StrEnum):
    """A recipe that is declared by its facts and a borrowed step."""

    ORPO = "orpo"

    @property
    def facts(self):
        return ORPO


def test_no_fact_has_a_default():
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(RecipeFacts))


@pytest.mark.parametrize("table", [RECIPES, registry._STEPS, _OTHERS], ids=["trainer", "step", "file"])
def test_every_recipe_is_in_every_table(table):
    assert set(table) == set(Recipe)


@pytest.mark.parametrize("borrowed", [Recipe.SFT, Recipe.GRPO, Recipe.DPO, Recipe.KTO, Recipe.REWARD])
def test_a_recipe_with_a_borrowed_step_is_refused(borrowed, monkeypatch):
    monkeypatch.setattr(registry, "_STEPS", {**registry._STEPS, Added.ORPO: registry._STEPS[borrowed]})
    spec, architecture = replace(builders.spec(), recipe=Added.ORPO), builtin_architecture("qwen2.5-0.5b")
    for read in (registry.micro_batch, lambda each: registry.trial_instants(each, architecture)):
        with pytest.raises(UsageError, match="recipe=orpo: has no closed form"):
            read(spec)


def test_each_fact_differs_from_what_a_step_holds_for():
    """No single fact may be ignored: a recipe that differs in one of them is refused, too."""
    for facts in (ONLINE, LABELLED, PAIRED, JUDGED, COMPARED):
        changed = {replace(facts, **{each.name: not getattr(facts, each.name)}) for each in fields(facts)}
        assert facts not in changed
        assert len(changed) == len(fields(facts))


@pytest.mark.slow
def test_a_recipe_without_facts_does_not_pass_mypy(tmp_path):
    text = Path(recipes.__file__).read_text()
    file = tmp_path / "recipe.py"
    file.write_text(text)
    assert strict(file).returncode == 0
    file.write_text(re.sub(r'(    SFT = "sft"\n)', r'\1    ORPO = "orpo"\n', text))
    checked = strict(file)
    assert checked.returncode == 1
    assert "assert_never" in checked.stdout


def strict(file: Path) -> subprocess.CompletedProcess[str]:
    """Check a file by mypy, in a process of its own: mypy gives what this one froze back to the garbage collector."""
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_keys_follow_the_fact_that_they_belong_to():
    by_name = {key.name: key for key in TRIAL_KEYS}
    assert by_name["beta"].recipes == recipes.WITH_REFERENCE
    assert by_name["max_prompt_length"].recipes == by_name["images_per_prompt"].recipes == recipes.WITH_PROMPTS
    assert by_name["max_completion_length"].recipes == recipes.GENERATING
    assert by_name["max_length"].recipes == recipes.OF_DATA
    assert by_name["precompute_ref_log_probs"].recipes == {Recipe.DPO, Recipe.KTO}
    assert by_name["reward_models"].recipes == recipes.SCORED
    assert by_name["use_vllm"].recipes == by_name["num_generations"].recipes == recipes.GENERATING
