"""The reference model of a trial with random weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl.trainer import grpo_trainer, rloo_trainer

from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TrialSpec, Weights
from profiler.training.models.model import random_model
from profiler.training.placement import Placement


@contextmanager
def reference_from_config(spec: TrialSpec, config: Any, placement: Placement) -> Iterator[None]:
    """While active, trl's trainer makes its reference model from the configuration and not from a checkpoint."""
    trainer = rloo_trainer if spec.recipe is Recipe.RLOO else grpo_trainer
    from_path = trainer.create_model_from_path
    if spec.weights is Weights.RANDOM:
        trainer.create_model_from_path = lambda *_, **__: random_model(spec, config, placement)
    try:
        yield
    finally:
        trainer.create_model_from_path = from_path
