"""One run of a trial's trainer in a session: the only place with the order of its stages."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.domain.trials.trial import TrialSpec
from profiler.training.build import build_trainer
from profiler.training.models.sizes import parameter_counts
from profiler.training.recipes.recipe import AnnouncingTrainer
from profiler.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run."""

    trainer: AnnouncingTrainer
    """Keep it until the session's trace is read: when it is freed, so are the model and the optimizer states."""
    parameters: int
    trainable_parameters: int
    steps_run: int
    micro_batches_run: int
    train_s: float
    """Without building the trainer."""


def run_training(spec: TrialSpec, model_config: Mapping[str, Any], session: Session) -> Trained:
    """Build the trainer of `spec` in `session`, train, and count what ran.

    Args:
        spec: The trial.
        model_config: The fields of the model's `config.json`.
        session: Where it runs.

    Raises:
        UsageError: The data set cannot be used.
        UnsupportedTrialError: transformers, trl or the session does not support the combination.
    """
    with tempfile.TemporaryDirectory() as folder, session.running():
        trainer = build_trainer(spec, model_config, session, output_dir=Path(folder))
        session.trainer_ready(trainer)
        started_s = time.monotonic()
        trainer.train()
        train_s = time.monotonic() - started_s
        session.trainer_done(trainer)
    parameters, trainable = parameter_counts(trainer.model)
    return Trained(
        trainer=trainer,
        parameters=parameters,
        trainable_parameters=trainable,
        steps_run=int(trainer.state.global_step),
        micro_batches_run=trainer.micro_batches_run,
        train_s=train_s,
    )
