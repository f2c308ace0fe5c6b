"""GRPO and RLOO: what the trainers of trl need of a trial: prompts, a reward, and a reference.

The reward: a Python function that costs nothing. Memory does not depend on its values.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, RLOOConfig
from trl.trainer import grpo_trainer, rloo_trainer

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.training.arguments import common_arguments
from profiler.training.data.source_data import load_rows, missing_column, prompt_lengths_of, word
from profiler.training.models.model import reference_from_config
from profiler.training.placement import Session
from profiler.training.recipes.grpo.critic import Critic
from profiler.training.recipes.grpo.trainer import (
    Completions,
    ProfiledGeneration,
    ProfiledGRPOTrainer,
    ProfiledRLOOTrainer,
)
from profiler.training.recipes.recipe import TrainerParts
from profiler.training.rollouts import rollout_engine

_QUESTION_COLUMNS = ("prompt", "question")


def build_prompts(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set: a column `prompt`, with as many rows as the trial's steps need.

    Raises:
        UsageError: The data set has no column of prompts.
    """
    if spec.dataset is None:
        return _synthetic(spec, prompt_lengths_of(spec, lengths))
    return _from_dataset(spec, spec.dataset, tokenizer)


def _rows_needed(spec: TrialSpec) -> int:
    prompts = max(1, spec.generation_batch_size * spec.num_processes // spec.num_generations)
    return prompts * (spec.steps + 1) * _generations_per_step(spec)


def _generations_per_step(spec: TrialSpec) -> int:
    return max(1, -(-spec.gradient_accumulation_steps // spec.steps_per_generation))


def _synthetic(spec: TrialSpec, lengths: Sequence[int]) -> Dataset:
    """Prompts of these lengths, which repeat; all of them differ. With one length nothing is padded on the left."""
    prompts = [
        " ".join(word(row + position) for position in range(lengths[row % len(lengths)]))
        for row in range(_rows_needed(spec))
    ]
    return Dataset.from_dict({"prompt": prompts})


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any) -> Dataset:
    rows = load_rows(source)
    column = next((name for name in _QUESTION_COLUMNS if name in rows.column_names), None)
    if column is None:
        raise missing_column(source, rows, *_QUESTION_COLUMNS)
    needed = _rows_needed(spec)
    texts = [rows[index % len(rows)][column] for index in range(needed)]
    return Dataset.from_dict({"prompt": [_cut(text, spec.max_prompt_length, tokenizer) for text in texts]})


def _cut(text: str, max_prompt_length: int, tokenizer: Any) -> str:
    """Return the last `max_prompt_length` tokens of a prompt, as trl cut it while it had that key."""
    ids = tokenizer(text)["input_ids"]
    if len(ids) <= max_prompt_length:
        return text
    return str(tokenizer.decode(ids[-max_prompt_length:]))


def count_words(completions: list[Any], **_: Any) -> list[float]:
    """Return the number of words in each completion, a text or the messages of a conversation."""
    return [float(len(str(completion).split())) for completion in completions]


class Grpo:
    """Generates completions, scores and rewards them, and trains on them."""

    phases = (
        Phase.LOAD,
        Phase.ROLLOUT,
        Phase.SCORE,
        Phase.REWARD,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    )

    _module = grpo_trainer
    _config: type[Any] = GRPOConfig
    _trainer: type[ProfiledGeneration] = ProfiledGRPOTrainer

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return trl's configuration of the trial."""
        return self._config(
            **{
                **common_arguments(spec, use_cpu=session.use_cpu, output_dir=output_dir),
                **rollout_engine(spec, session).arguments(),
                "num_generations": spec.num_generations,
                "max_completion_length": spec.max_completion_length,
                "beta": spec.beta,
                **_batches(spec),
            }
        )

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the prompts."""
        return build_prompts(spec, tokenizer, rows)

    def trainer(self, parts: TrainerParts) -> ProfiledGeneration:
        """Return the trainer, with a reference model where `beta` needs one."""
        spec, session = parts.spec, parts.session
        rollout = rollout_engine(spec, session)
        folder = Path(parts.arguments.output_dir)
        if parts.rows is not None:
            parts.arguments.shuffle_dataset = False
        with (
            reference_from_config(spec, parts.config, session, self._module),
            rollout.starting(model=parts.model, tokenizer=parts.tokenizer, folder=folder),
        ):
            return self._trainer(
                spec=spec,
                completions=Completions(spec, parts.rows, process=parts.arguments.process_index),
                observer=session,
                rollout=rollout,
                critic=Critic(spec, parts.config, session, parts.arguments) if spec.critic else None,
                reward_funcs=count_words,
                args=parts.arguments,
                train_dataset=parts.data,
                eval_dataset=parts.evaluated,
                processing_class=parts.tokenizer,
                **parts.policy(),
            )


def _batches(spec: TrialSpec) -> dict[str, int]:
    """Return trl's sizes of batches. Rows that are split by tokens reach the loss an optimizer step at a time."""
    rows, accumulation, generation = (
        spec.per_device_train_batch_size,
        spec.gradient_accumulation_steps,
        spec.steps_per_generation,
    )
    if spec.use_dynamic_bsz:
        rows, accumulation, generation = rows * accumulation, 1, generation // accumulation
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": generation,
    }


class Rloo(Grpo):
    """As GRPO; the loss is one number per row, and the policy always scores its own completions."""

    _module = rloo_trainer
    _config = RLOOConfig
    _trainer = ProfiledRLOOTrainer
