"""Prompts: synthetic ones of exactly `max_prompt_length` tokens, or a data set's, cut to that length."""

from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from profiler.domain.errors import Fault, UsageError
from profiler.domain.trial import TrialSpec
from profiler.training.tokenizer import word

_QUESTION_COLUMNS = ("prompt", "question")
_FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def build_prompts(spec: TrialSpec, tokenizer: Any) -> Dataset:
    """The training set: a column `prompt`, as many rows as the trial's steps need.

    Raises:
        UsageError: the data set has no column of prompts.
    """
    if spec.dataset is None:
        return _synthetic(spec)
    return _from_dataset(spec, spec.dataset, tokenizer)


def _rows_needed(spec: TrialSpec) -> int:
    return max(1, spec.generation_batch_size // spec.num_generations) * (spec.steps + 1) * _generations_per_step(spec)


def _generations_per_step(spec: TrialSpec) -> int:
    return max(1, -(-spec.gradient_accumulation_steps // spec.steps_per_generation))


def _synthetic(spec: TrialSpec) -> Dataset:
    """Every prompt at the full length, so that nothing is padded on the left; no two alike."""
    prompts = [
        " ".join(word(row + position) for position in range(spec.max_prompt_length))
        for row in range(_rows_needed(spec))
    ]
    return Dataset.from_dict({"prompt": prompts})


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any) -> Dataset:
    """A local file or folder, or a hub id (GSM8K is ``openai/gsm8k`` with its configuration ``main``)."""
    rows = _load(source)
    column = next((name for name in _QUESTION_COLUMNS if name in rows.column_names), None)
    if column is None:
        raise UsageError(
            [
                Fault(
                    key="dataset",
                    found=source,
                    problem=f"needs a column {' or '.join(_QUESTION_COLUMNS)}; it has {', '.join(rows.column_names)}",
                )
            ]
        )
    needed = _rows_needed(spec)
    texts = [rows[index % len(rows)][column] for index in range(needed)]
    return Dataset.from_dict({"prompt": [_cut(text, spec.max_prompt_length, tokenizer) for text in texts]})


def _load(source: str) -> Dataset:
    path = Path(source)
    if path.is_file() and path.suffix in _FORMATS:
        return load_dataset(_FORMATS[path.suffix], data_files=str(path), split="train")
    if source == "openai/gsm8k":
        return load_dataset(source, "main", split="train")
    return load_dataset(source, split="train")


def _cut(text: str, max_prompt_length: int, tokenizer: Any) -> str:
    """The last `max_prompt_length` tokens of a prompt, as trl cut it while it had that key."""
    ids = tokenizer(text)["input_ids"]
    if len(ids) <= max_prompt_length:
        return text
    return str(tokenizer.decode(ids[-max_prompt_length:]))
