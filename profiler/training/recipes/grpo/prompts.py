"""Prompts: synthetic ones of exactly `max_prompt_length` tokens, or a data set's, cut to that length."""

from typing import Any

from datasets import Dataset

from profiler.domain.trials.trial import TrialSpec
from profiler.training.data.source_data import load_rows, missing_column
from profiler.training.data.tokenizer import word

_QUESTION_COLUMNS = ("prompt", "question")


def build_prompts(spec: TrialSpec, tokenizer: Any) -> Dataset:
    """Return the training set: a column `prompt`, with as many rows as the trial's steps need.

    Raises:
        UsageError: The data set has no column of prompts.
    """
    if spec.dataset is None:
        return _synthetic(spec)
    return _from_dataset(spec, spec.dataset, tokenizer)


def _rows_needed(spec: TrialSpec) -> int:
    prompts = max(1, spec.generation_batch_size * spec.num_processes // spec.num_generations)
    return prompts * (spec.steps + 1) * _generations_per_step(spec)


def _generations_per_step(spec: TrialSpec) -> int:
    return max(1, -(-spec.gradient_accumulation_steps // spec.steps_per_generation))


def _synthetic(spec: TrialSpec) -> Dataset:
    """Prompts of the full length, so that nothing is padded on the left; all of them differ."""
    prompts = [
        " ".join(word(row + position) for position in range(spec.max_prompt_length))
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
