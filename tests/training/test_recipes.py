"""Recipes by name, and the order of a run's stages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from recipe_specs import dpo_spec, kto_spec, reward_spec, sft_spec

from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.training.recipes import RECIPES, recipe_of
from profiler.training.run import PlainSession, run_training

GRPO = TrialSpec(
    backend=Backend.CPU, gpu=None, model="tiny", max_prompt_length=6, max_completion_length=8, steps=1, beta=0.04
)
OF_DATA = (sft_spec(), dpo_spec(), kto_spec(), reward_spec())
SPECS = {spec.recipe: spec for spec in (GRPO, replace(GRPO, recipe=Recipe.RLOO, beta=0.05), *OF_DATA)}


class Notes:
    """An observer that keeps what it is notified of."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def enter(self, phase: Phase) -> None:
        if self.seen[-1] != phase.value:
            self.seen.append(phase.value)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        assert parameters == trainable
        self.seen.append("ready")


class NotingSession(PlainSession):
    """A session that keeps the order in which it is called."""

    observer: Notes

    @contextmanager
    def running(self) -> Iterator[None]:
        self.observer.seen.append("entered")
        yield
        self.observer.seen.append("left")

    def adopt(self, arguments: Any) -> None:
        assert arguments.max_steps == 1
        self.observer.seen.append("adopted")

    def trainer_done(self, trainer: Any) -> None:
        assert trainer.state.global_step == 1
        self.observer.seen.append("done")


@pytest.mark.parametrize("name", SPECS)
def test_a_recipe_is_found_by_its_name(name: str) -> None:
    assert recipe_of(SPECS[name]) is RECIPES[name]
    assert list(SPECS) == list(RECIPES)


@pytest.mark.parametrize("name", SPECS)
def test_a_run_has_its_stages_in_order_and_announces_the_recipes_phases(name: Recipe) -> None:
    notes = Notes()
    session = NotingSession(device=torch.device("cpu"), observer=notes)
    trained = run_training(SPECS[name], BUILTIN_MODELS["tiny"].config, session)
    assert notes.seen[:4] == ["entered", Phase.LOAD, "adopted", "ready"]
    assert notes.seen[-2:] == ["done", "left"]
    phases = [seen for seen in notes.seen if seen in list(Phase)]
    assert list(dict.fromkeys(phases)) == list(RECIPES[name].phases)
    # The LM head is tied, and a head of one score is not.
    assert trained.parameters == BUILTIN_MODELS["tiny"].parameters + (0 if name.facts.has_lm_head else 64)
    assert (trained.steps_run, trained.micro_batches_run) == (1, phases.count(Phase.BACKWARD))
    assert trained.train_s > 0
