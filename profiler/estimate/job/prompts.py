"""Lengths of prompts where the data set and a tokenizer are on this machine; measured in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from profiler.config.models.lookup import checkpoint
from profiler.config.notes import Note
from profiler.domain.errors import shortened
from profiler.domain.machines.child_python import safe_path_flags
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, open_regular, reason
from profiler.storage.foreign.hub_cache import cached_file
from profiler.storage.foreign.model_config import is_local

TIMEOUT_S = 120
"""Time for the imports and for 10,000 prompts."""

KEY = "max_prompt_length"

_TOKENIZER = "tokenizer_config.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, kw_only=True)
class PromptLengths:
    """Tokens of the prompts of a data set."""

    rows: int
    """That were read."""
    longest: int
    mean: int
    all_rows: int | None = None
    """Of the data set; None if all of them were read."""


class PromptsError(Exception):
    """Prompts cannot be measured; the message is the reason."""


Measure = Callable[[Path, Path], PromptLengths]
"""Returns the lengths by the tokenizer in a folder and the data; raises `PromptsError` where that fails."""


def measured_by_transformers(tokenizer: Path, dataset: Path) -> PromptLengths:
    """Return the lengths of the prompts in `dataset`.

    Raises:
        PromptsError: A library is missing, or the data have no prompts.
    """
    if find_spec("transformers") is None or find_spec("datasets") is None:
        raise PromptsError("transformers and datasets, which would read them, are not installed")
    with tempfile.TemporaryDirectory() as cache:
        offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": cache}
        try:
            found = subprocess.run(
                [sys.executable, *safe_path_flags(), "-m", "profiler.training.data.prompt_lengths"],
                input=json.dumps({"tokenizer": str(tokenizer), "dataset": str(dataset)}),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env={**os.environ, **offline},
                check=False,
            )
            values = json.loads(found.stdout)
            if "problem" in values:
                raise PromptsError(shortened(str(values["problem"]), 200))
            read, every = int(values["rows"]), int(values["all_rows"])
            return PromptLengths(
                rows=read,
                longest=int(values["longest"]),
                mean=int(values["mean"]),
                all_rows=every if every > read else None,
            )
        except subprocess.TimeoutExpired as error:
            raise PromptsError(f"they were not read within {TIMEOUT_S} s") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise PromptsError("transformers and datasets cannot read them") from error


def remembered_measure(measure: Measure) -> Measure:
    """Return `measure` with each data set measured once, also if that fails."""
    found: dict[tuple[Path, Path], PromptLengths | PromptsError] = {}

    def remembered(tokenizer: Path, dataset: Path) -> PromptLengths:
        key = (tokenizer, dataset)
        if key not in found:
            try:
                found[key] = measure(tokenizer, dataset)
            except PromptsError as error:
                found[key] = error
        result = found[key]
        if isinstance(result, PromptsError):
            raise PromptsError(str(result))
        return result

    return remembered


def prompt_note(model: object, dataset: object, measure: Measure) -> tuple[int, Note] | Note | None:
    """Return the longest prompt and a note that says so, or a note why it is not measured.

    None if the data set or its tokenizer is not on this machine.

    Args:
        model: The model, as the user names it.
        dataset: The data set, as the user names it.
        measure: Measures prompts.
    """
    if not isinstance(model, str) or not isinstance(dataset, str) or not is_local(dataset):
        return None
    tokenizer = _tokenizer_folder(model)
    if tokenizer is None:
        return None
    shown = shortened(dataset, 60)
    try:
        _check_fetched(tokenizer, expanded(dataset))
        found = measure(tokenizer, expanded(dataset))
    except PromptsError as error:
        return Note(key="", text=f"the default, because prompts of {shown} are not measured: {error}")
    read = f"{found.rows:,}" if found.all_rows is None else f"the first {found.rows:,} of {found.all_rows:,}"
    text = f"{KEY}={found.longest} (the longest of {read} prompts of {shown}; {found.mean} on average)"
    return found.longest, Note(key=KEY, text=text)


def _check_fetched(tokenizer: Path, dataset: Path) -> None:
    """Check that the files are there, and not pointers to files that were not fetched.

    Raises:
        PromptsError: One of them cannot be read.
    """
    for path in (dataset, *(tokenizer / name for name in _TOKENIZER_FILES)):
        try:
            if kind_of(path) is Kind.FILE:
                open_regular(path).close()
        except OSError as error:
            raise PromptsError(f"{shortened(path.name, 60)} cannot be read ({reason(error)})") from error


def _tokenizer_folder(model: str) -> Path | None:
    """Return the folder with the tokenizer of a model: a local one, or one of the hub's cache."""
    if is_local(model):
        folder = expanded(model)
        return folder if (folder / _TOKENIZER).is_file() else None
    cached = cached_file(checkpoint(model), _TOKENIZER)
    return cached.parent if cached is not None else None
