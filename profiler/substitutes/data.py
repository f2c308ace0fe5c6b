"""Data sets that are unavailable, replaced by rows with the columns that are read."""

from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict, DatasetInfo

from profiler.seams.patching import Patch
from profiler.substitutes.columns_read import columns_read, kind_of
from profiler.substitutes.known_datasets import KnownDataset, find_known
from profiler.substitutes.options import SubstituteOptions
from profiler.substitutes.replaced import Replaced
from profiler.substitutes.rows import make_rows

_MARK = "substitute of the profiler"
"""Description of a data set that was replaced; `select`, `map` and others keep it."""


def data_patches(options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patches of the functions that load data sets."""
    missing = _Missing(options, replaced)
    load_dataset = missing.instead_of(datasets.load_dataset)
    load_from_disk = missing.instead_of(datasets.load_from_disk)
    return [
        (datasets, "load_dataset", load_dataset),
        (datasets.load, "load_dataset", load_dataset),
        (datasets, "load_from_disk", load_from_disk),
        (datasets.load, "load_from_disk", load_from_disk),
        (Dataset, "select", _select(Dataset.select)),
    ]


class _Splits(DatasetDict):
    """The splits of a data set that was replaced: any name is one of them."""

    def __missing__(self, split: str) -> Dataset:
        some = next(iter(self.values()))
        self[split] = some
        return some


class _Missing:
    """Makes data sets in place of those that are unavailable."""

    def __init__(self, options: SubstituteOptions, replaced: Replaced) -> None:
        self._options = options
        self._replaced = replaced

    def instead_of(self, load: Any) -> Any:
        """Return `load` with a replacement for what it does not find."""

        def loaded(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return load(path, *args, **kwargs)
            except (OSError, ValueError) as error:
                if not _is_unavailable(error):
                    raise
                return self._made(str(path), split=kwargs.get("split"), streaming=bool(kwargs.get("streaming")))

        return loaded

    def _made(self, name: str, *, split: Any, streaming: bool) -> Any:
        known = find_known(name) or self._unknown()
        whole = self._rows(known)
        columns = ", ".join(known.columns)
        self._replaced.add(
            "data set", name,
            f"{self._options.rows:,} rows of {columns}; prompts of {self._options.prompt_tokens} tokens, "
            f"completions of {self._options.completion_tokens}",
        )  # fmt: skip
        if isinstance(split, list | tuple):
            return [whole.to_iterable_dataset() if streaming else whole for _ in split]
        if split is not None:
            return whole.to_iterable_dataset() if streaming else whole
        if streaming:
            return datasets.IterableDatasetDict({part: whole.to_iterable_dataset() for part in known.splits})
        return _Splits(dict.fromkeys(known.splits, whole))

    def _unknown(self) -> KnownDataset:
        """Return the columns that the user names, or those that the script reads."""
        if self._options.columns:
            return KnownDataset(columns={name: kind_of(name) for name in self._options.columns})
        script = self._options.script
        return KnownDataset(columns=columns_read("" if script is None else Path(script).read_text()))

    def _rows(self, known: KnownDataset) -> Dataset:
        rows = make_rows(known.columns, self._options, self._options.rows)
        return Dataset.from_dict(rows, info=DatasetInfo(description=_MARK))


def _is_unavailable(error: Exception) -> bool:
    """Return whether a data set is not here, as opposed to being damaged or asked for wrongly."""
    if isinstance(error, ValueError):
        return str(error).startswith("Couldn't find cache")
    return isinstance(error, FileNotFoundError | ConnectionError)


def _select(original: Any) -> Any:
    """Let a script choose as many rows as its own data set has: those of a substitute are repeated."""

    def select(self: Dataset, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if self.info.description == _MARK and len(self):
            indices = [index % len(self) for index in indices]
        return original(self, indices, *args, **kwargs)

    return select
