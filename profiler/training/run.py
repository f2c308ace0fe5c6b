"""A trial's specification becomes a trainer, which runs in a session: the only place with that order."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub import constants
from transformers import AutoTokenizer, set_seed

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import Evaluations, RowLengths, TrialSpec, Weights
from profiler.seams.patching import patched, uncounted
from profiler.training.arguments import set_evaluations
from profiler.training.data.source_data import build_tokenizer
from profiler.training.models.model import build_config, build_model
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import RealDevice, Session, TrainingObserver
from profiler.training.recipes import recipe_of
from profiler.training.recipes.recipe import AnnouncingTrainer, TrainerParts


def build_trainer(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    session: Session,
    *,
    output_dir: Path,
    rows: RowLengths | None = None,
) -> AnnouncingTrainer:
    """Build model, adapters, data and trainer by the trial's recipe, on the session's device.

    Args:
        spec: The trial.
        model_config: The fields of the model's `config.json`.
        session: Where it runs.
        output_dir: An empty folder for transformers; nothing in it is needed afterwards.
        rows: Lengths of the rows, where they are not those of `spec`.

    Raises:
        UsageError: The data set cannot be used.
        UnsupportedTrialError: transformers or trl does not support the combination.
    """
    recipe = recipe_of(spec)
    session.enter(Phase.LOAD)
    arguments = recipe.arguments(spec, session, output_dir)
    if rows is not None and rows.evaluations is not None:
        set_evaluations(arguments, rows.evaluations)
    session.adopt(arguments)
    # trl sets the seed only after the model exists.
    set_seed(spec.seed)
    tokenizer = _tokenizer(spec)
    data = recipe.data(spec, tokenizer, rows)
    evaluated = None if rows is None else _evaluated(spec, tokenizer, rows.evaluations)
    config = build_config(model_config, name=spec.model)
    return recipe.trainer(
        TrainerParts(
            spec=spec,
            session=session,
            arguments=arguments,
            tokenizer=tokenizer,
            data=data,
            evaluated=evaluated,
            referenced=None if rows is None or rows.reference is None else _data_of(spec, tokenizer, rows.reference),
            config=config,
            model=build_model(spec, config, session),
            rows=rows,
        )
    )


def _evaluated(spec: TrialSpec, tokenizer: Any, evaluations: Evaluations | None) -> Dataset | None:
    """Return the rows that are evaluated, made as those of training."""
    if evaluations is None:
        return None
    lengths = RowLengths(prompts=evaluations.prompts, completions=evaluations.completions)
    if evaluations.num_generations_eval is not None:
        prompts = len(evaluations.prompts)
        return recipe_of(spec).data(replace(spec, steps=prompts), tokenizer, lengths).select(range(prompts))
    return _data_of(spec, tokenizer, lengths)


def _data_of(spec: TrialSpec, tokenizer: Any, lengths: RowLengths) -> Dataset:
    """Return as many rows of data as there are lengths."""
    sides = 1 if spec.recipe.facts.rows_are_single else 2
    count = len(lengths.completions) // sides
    # Neighbours of a KL term are those within the micro-batches of training (`KTOTrainer.__init__` of trl 1.16).
    batches = -(-count // spec.per_device_train_batch_size)
    found = recipe_of(spec).data(replace(spec, steps=batches, gradient_accumulation_steps=1), tokenizer, lengths)
    return found.select(range(count))


def _tokenizer(spec: TrialSpec) -> Any:
    """The model's own tokenizer for pretrained weights, else one without a download."""
    if spec.weights is Weights.PRETRAINED:
        return AutoTokenizer.from_pretrained(spec.model, padding_side="left", truncation_side="left")
    return build_tokenizer()


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


def run_training(
    spec: TrialSpec, model_config: Mapping[str, Any], session: Session, *, rows: RowLengths | None = None
) -> Trained:
    """Build the trainer of `spec` in `session`, train, and count what ran.

    Args:
        spec: The trial.
        model_config: The fields of the model's `config.json`.
        session: Where it runs.
        rows: Lengths of the rows, where they are not those of `spec`.

    Raises:
        UsageError: The data set cannot be used.
        UnsupportedTrialError: transformers, trl or the session does not support the combination.
    """
    with tempfile.TemporaryDirectory() as folder, patched(uncounted(constants)), session.running():
        trainer = build_trainer(spec, model_config, session, output_dir=Path(folder), rows=rows)
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


@dataclass(frozen=True, kw_only=True)
class PlainSession(RealDevice):
    """A real device without tracing; `observer` is notified of phases and of the model."""

    observer: TrainingObserver

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self.observer.enter(phase)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave the group of processes at the end; accelerate joins it where there are several.

        After an error the group stays: to leave it, NCCL would wait for the other ranks.
        """
        yield
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def adopt(self, arguments: Any) -> None:
        """Do nothing: transformers finds the device."""

    def trainer_ready(self, trainer: Any) -> None:
        """Pass the size of the model on."""
        parameters, trainable = parameter_counts(trainer.model)
        self.observer.model_built(parameters=parameters, trainable=trainable)

    def trainer_done(self, trainer: Any) -> None:
        """Do nothing."""
