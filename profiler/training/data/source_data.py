"""Rows of a user's data set: a local file or folder, or a hub id."""

from pathlib import Path

from datasets import Dataset, load_dataset

from profiler.domain.errors import Fault, UsageError

_FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def load_rows(source: str) -> Dataset:
    """Load the training split of a local file or folder, or of a hub id.

    GSM8K is ``openai/gsm8k`` with its configuration ``main``.
    """
    path = Path(source)
    if path.is_file() and path.suffix in _FORMATS:
        return load_dataset(_FORMATS[path.suffix], data_files=str(path), split="train")
    if source == "openai/gsm8k":
        return load_dataset(source, "main", split="train")
    return load_dataset(source, split="train")


def missing_column(source: str, rows: Dataset, *wanted: str) -> UsageError:
    """Return the error of a data set that has none of the `wanted` columns."""
    found = ", ".join(rows.column_names)
    problem = f"needs a column {' or '.join(wanted)}; it has {found}"
    return UsageError([Fault(key="dataset", found=source, problem=problem)])
