"""A reward model: what `RewardTrainer` needs of a trial, its pairs, and its phases.

trl's `RewardTrainer` that announces its phases, unchanged in what it computes.

Seams, each checked by a test against the installed libraries: `compute_loss` of trl's trainer; the others are in
`announced_steps.py`.

Findings in trl 1.16 (`trl/trainer/reward_trainer.py` and `reward_config.py`):

- The model is transformers' for sequence classification with one label: the decoder, and a head of one score in place
  of the LM head. There is no reference.
- A pair is two rows, the chosen ones and then the rejected ones in one batch of one forward, padded to the longest of
  all. The head scores every position, and the score of the last token of a row is taken.
- The loss is a number per pair. `center_rewards_coefficient` and a column `margin` change nothing else.
- Rows longer than `max_length` are left out, not cut.
- `disable_dropout` is on, so that adapters drop nothing. Here it is off where the trial states a `lora_dropout`.
- With peft's task `SEQ_CLS`, which trl's `ModelConfig` recommends, the head is trained as a whole, in a copy. With
  `CAUSAL_LM`, its default, the random head stays as it is, and `all-linear` adapts it: some kilobytes less or more.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.training.announced_steps import AnnouncedRows
from profiler.training.arguments import arguments_of_rows
from profiler.training.data.source_data import (
    load_rows,
    missing_column,
    repeated,
    rows_needed,
    sequence_length,
    synthetic_rows,
)
from profiler.training.placement import Session
from profiler.training.recipes.recipe import TrainerParts

_PROMPT = "prompt"
_SIDES = ("chosen", "rejected")


class ProfiledRewardTrainer(AnnouncedRows, RewardTrainer):
    """A `RewardTrainer` that announces its phases to `observer`."""


def build_compared_rows(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set, with as many pairs as the trial's steps need.

    Raises:
        UsageError: The data set has no pairs, or none whose rows are short enough.
    """
    if spec.dataset is None:
        return _dataset(*synthetic_rows(spec, lengths, sides=2))
    rows, tokens, end = load_rows(spec.dataset), sequence_length(spec), [tokenizer.eos_token_id]
    if not set(_SIDES) <= set(rows.column_names):
        raise missing_column(spec.dataset, rows, " with ".join(_SIDES))
    found = []
    for row in rows.select(range(min(len(rows), rows_needed(spec)))):
        prompt = row[_PROMPT] if _PROMPT in rows.column_names else ""
        pair = [tokenizer(prompt + row[side])["input_ids"] + end for side in _SIDES]
        if max(map(len, pair)) <= tokens:
            found.append(pair)
    if not found:
        problem = f"has no pair of rows of at most max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=spec.dataset, problem=problem, hint="Raise max_length.")])
    chosen, rejected = zip(*repeated(spec, found), strict=True)
    return _dataset(list(chosen), list(rejected))


def _dataset(chosen: list[list[int]], rejected: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"chosen_ids": chosen, "rejected_ids": rejected})


class Reward:
    """Trains a model that scores rows, on pairs. Keys of generation, prompts and a reference do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `RewardConfig` of the trial."""
        return RewardConfig(
            **arguments_of_rows(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            # trl's default switches off the dropout of adapters too.
            disable_dropout=not spec.lora_dropout,
        )

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the pairs."""
        return build_compared_rows(spec, tokenizer, rows)

    def trainer(self, parts: TrainerParts) -> ProfiledRewardTrainer:
        """Return the trainer; there is no reference model."""
        return ProfiledRewardTrainer(**parts.of_trainer())
