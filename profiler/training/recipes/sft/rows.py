"""Training rows as tokens: synthetic ones of `max_length` tokens and shorter, or a data set's, cut to that length."""

from typing import Any

from datasets import Dataset

from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import TrialSpec, completion_lengths
from profiler.training.data.source_data import load_rows, missing_column
from profiler.training.data.tokenizer import token

_TEXT = "text"
_PAIRS = (("prompt", "completion"), ("question", "answer"))

_NO_LABEL = -100
"""The label of a token that is no part of the loss, in transformers and trl."""


def sequence_length(spec: TrialSpec) -> int:
    """Return the tokens of the longest row, `max_length`."""
    if spec.max_length is None:
        raise ValueError("a trial of the recipe sft has max_length")
    return spec.max_length


def build_rows(spec: TrialSpec, tokenizer: Any) -> Dataset:
    """Return the training set: columns `input_ids` and `labels`, with as many rows as the trial's steps need.

    Raises:
        UsageError: The data set has no column of texts, or no token of it has a label.
    """
    if spec.dataset is None:
        return _synthetic(spec)
    return _from_dataset(spec, spec.dataset, tokenizer)


def _rows_needed(spec: TrialSpec) -> int:
    micro_batch = spec.per_device_train_batch_size * spec.num_processes
    return micro_batch * spec.gradient_accumulation_steps * spec.steps


def _synthetic(spec: TrialSpec) -> Dataset:
    """Rows that differ. In every micro-batch the first row has the full length; `lengths` decides the others."""
    lengths = completion_lengths(
        lengths=spec.lengths, rows=spec.per_device_train_batch_size, max_completion_length=sequence_length(spec)
    )
    rows = [
        [token(row + position) for position in range(lengths[row % len(lengths)])] for row in range(_rows_needed(spec))
    ]
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any) -> Dataset:
    """Rows of a data set, repeated as often as needed. Rows without a label after the cut are left out, as in trl."""
    rows = load_rows(source)
    pair = next((pair for pair in _PAIRS if set(pair) <= set(rows.column_names)), None)
    if pair is None and _TEXT not in rows.column_names:
        raise missing_column(source, rows, _TEXT, *(" with ".join(pair) for pair in _PAIRS))
    tokens = sequence_length(spec)
    end = [tokenizer.eos_token_id]
    found: list[tuple[list[int], list[int]]] = []
    for row in rows.select(range(min(len(rows), _rows_needed(spec)))):
        prompt = [] if pair is None else tokenizer(row[pair[0]])["input_ids"]
        completion = tokenizer(row[_TEXT if pair is None else pair[1]])["input_ids"] + end
        labels = [_NO_LABEL] * len(prompt) + completion
        if len(prompt) < tokens:
            found.append(((prompt + completion)[:tokens], labels[:tokens]))
    if not found:
        problem = f"has no row whose completion begins within max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=source, problem=problem, hint="Raise max_length.")])
    used = [found[index % len(found)] for index in range(_rows_needed(spec))]
    return Dataset.from_dict({"input_ids": [ids for ids, _ in used], "labels": [labels for _, labels in used]})
