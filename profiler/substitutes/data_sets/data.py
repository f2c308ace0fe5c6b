"""Data sets that are unavailable, replaced by rows with the columns that are read."""

from typing import Any

import datasets
from datasets import Dataset, DatasetDict, DatasetInfo, IterableDataset

from profiler.seams.patching import Patch
from profiler.substitutes.data_sets.answering import Answers
from profiler.substitutes.data_sets.answering_sets import MARK, answering_patches, features_of, first_argument
from profiler.substitutes.data_sets.known_datasets import KnownDataset, find_known
from profiler.substitutes.data_sets.rows import make_rows
from profiler.substitutes.options import SubstituteOptions
from profiler.substitutes.replaced import Replaced

_MOST_ROWS = 1 << 16


def data_patches(options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patches of the functions that load data sets, and of what reads those that were replaced."""
    answers = Answers(options, replaced)
    missing = _Missing(options, replaced, answers)
    load_dataset = missing.instead_of(datasets.load_dataset, "path")
    load_from_disk = missing.instead_of(datasets.load_from_disk, "dataset_path")
    return [
        (datasets, "load_dataset", load_dataset),
        (datasets.load, "load_dataset", load_dataset),
        (datasets, "load_from_disk", load_from_disk),
        (datasets.load, "load_from_disk", load_from_disk),
        *answering_patches(answers),
    ]


class _Splits(DatasetDict):
    """The splits of a data set that was replaced: any name is one of them."""

    def __missing__(self, split: str) -> Dataset:
        some = next(iter(self.values()))
        self[split] = some
        return some


class _Missing:
    """Makes data sets in place of those that are unavailable."""

    def __init__(self, options: SubstituteOptions, replaced: Replaced, answers: Answers) -> None:
        self._options = options
        self._replaced = replaced
        self._answers = answers

    def instead_of(self, load: Any, first: str) -> Any:
        """Return `load` with a replacement for what it does not find; `first` is its first argument's name."""

        def loaded(*args: Any, **kwargs: Any) -> Any:
            path, args, kwargs = first_argument(first, args, kwargs)
            try:
                return load(path, *args, **kwargs)
            except (OSError, ValueError) as error:
                if not _is_unavailable(error):
                    raise
                part = kwargs.get("name") or (args[0] if args else None)
                known = find_known(str(path), part if isinstance(part, str) else None) or self._unknown()
                return self._made(known, str(path), split=kwargs.get("split"), streaming=bool(kwargs.get("streaming")))

        return loaded

    def _made(self, known: KnownDataset, name: str, *, split: Any, streaming: bool) -> Any:
        whole = self._rows(known)
        columns = ", ".join(known.columns)
        self._replaced.add(
            "data set", name,
            f"{self._count:,} rows of {columns}; prompts of {self._options.prompt_tokens} tokens, "
            f"completions of {self._options.completion_tokens}",
        )  # fmt: skip
        if isinstance(split, list | tuple):
            return [_streamed(whole) if streaming else whole for _ in split]
        if split is not None:
            return _streamed(whole) if streaming else whole
        if streaming:
            return datasets.IterableDatasetDict({part: _streamed(whole) for part in known.splits})
        return _Splits(dict.fromkeys(known.splits, whole))

    @property
    def _count(self) -> int:
        """Rows of each split: those that the script samples, if they are more."""
        return max(self._options.rows, min(self._answers.reads.sampled, _MOST_ROWS))

    def _unknown(self) -> KnownDataset:
        """Return the columns that the user names, or those that the script reads, and the splits that it takes."""
        reads = self._answers.reads
        splits = tuple(dict.fromkeys((*KnownDataset(columns={}).splits, *reads.splits)))
        return KnownDataset(columns=reads.columns, splits=splits)

    def _rows(self, known: KnownDataset) -> Dataset:
        rows = make_rows(known.columns, self._options, self._count)
        info = DatasetInfo(description=MARK, features=features_of(known.columns))
        return Dataset.from_dict(rows, info=info, features=info.features)


def _streamed(whole: Dataset) -> IterableDataset:
    stream = whole.to_iterable_dataset()
    stream.info.description = MARK
    return stream


def _is_unavailable(error: Exception) -> bool:
    """Return whether a data set is not here, as opposed to being damaged or asked for wrongly."""
    if isinstance(error, ValueError):
        return str(error).startswith("Couldn't find cache")
    return isinstance(error, FileNotFoundError | ConnectionError)
