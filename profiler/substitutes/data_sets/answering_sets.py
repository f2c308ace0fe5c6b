"""Data sets that are unavailable, replaced by sets whose rows answer any column."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, Image, IterableDataset, Value
from datasets.formatting.formatting import LazyBatch, LazyDict

from profiler.seams.patching import Patch
from profiler.substitutes.columns.uses import Classes, Column, ListOf, Record, Shape
from profiler.substitutes.data_sets.answering import AnsweringBatch, AnsweringFunction, AnsweringRow, Answers, make_rows
from profiler.substitutes.data_sets.known_datasets import KnownDataset, find_known, of_trainer
from profiler.substitutes.options import Replaced, SubstituteOptions

MARK = "substitute of the profiler"
"""Description of a data set that was replaced; `select`, `map` and others keep it."""


def is_substitute(data: Any) -> bool:
    """Return whether a data set was made in place of another."""
    return MARK in (data.info.description or "")


def answering_patches(answers: Answers) -> list[Patch]:
    """Return the patches of the classes of data sets."""
    active = _Active(answers)
    patches: list[Patch] = [
        (Dataset, name, _with_columns(getattr(Dataset, name), first, answers))
        for name, first in _NAMING_COLUMNS.items()
    ]
    return [
        *patches,
        (Dataset, "select", _select(Dataset.select)),
        (Dataset, "train_test_split", _train_test_split(Dataset.train_test_split)),
        (Dataset, "remove_columns", _remove(Dataset.remove_columns)),
        (Dataset, "map", active.during(Dataset.map, answers)),
        (Dataset, "filter", active.during(Dataset.filter, answers)),
        (Dataset, "set_transform", _transform(Dataset.set_transform, answers)),
        (Dataset, "__getitem__", _item(Dataset.__getitem__, answers)),
        (Dataset, "__getitems__", _items(Dataset.__getitems__, answers)),
        (Dataset, "__iter__", _rows(Dataset.__iter__, answers)),
        (IterableDataset, "map", _on_the_fly(IterableDataset.map, answers)),
        (IterableDataset, "filter", _on_the_fly(IterableDataset.filter, answers)),
        (IterableDataset, "__iter__", _rows(IterableDataset.__iter__, answers)),
        (LazyDict, "__getitem__", active.lazy(LazyDict.__getitem__)),
        (LazyDict, "get", _get),
    ]


def _names(given: Any) -> list[str]:
    if isinstance(given, str):
        return [given]
    return [name for name in given or () if isinstance(name, str)]


_NAMING_COLUMNS: Mapping[str, str] = {
    "rename_column": "original_column_name",
    "rename_columns": "column_mapping",
    "select_columns": "column_names",
    "cast_column": "column",
    "class_encode_column": "column",
    "sort": "column_names",
    "unique": "column",
}
"""Methods whose first argument, of this name, names columns that must be there."""


def first_argument(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the first argument of a call, given by place or by name, and the others; None if it was left out."""
    if args:
        return args[0], args[1:], kwargs
    return kwargs.get(name), (), {key: given for key, given in kwargs.items() if key != name}


def _with_columns(original: Any, first: str, answers: Answers) -> Any:
    def method(self: Dataset, *args: Any, **kwargs: Any) -> Any:
        names, args, kwargs = first_argument(first, args, kwargs)
        return original(completed(self, _names(names), answers), names, *args, **kwargs)

    return method


def completed(data: Dataset, names: list[str], answers: Answers) -> Dataset:
    """Return a data set that was replaced with the columns that it lacks of `names`."""
    if not is_substitute(data):
        return data
    for name in names:
        if name not in data.column_names:
            shape, values = answers.stored(name, len(data))
            data = data.add_column(name, values, feature=feature_of(shape))
    return data


class _Active:
    """Whether a function of the script is being applied to rows of a data set that was replaced."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._depth = 0

    @contextmanager
    def _applying(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def during(self, original: Any, answers: Answers) -> Any:
        """Return `map` or `filter`, while which rows answer; columns that they are told to hand over are made."""

        def method(self: Dataset, function: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not is_substitute(self):
                return original(self, function, *args, **kwargs)
            data = completed(self, _names(kwargs.get("input_columns")), answers)
            if kwargs.get("remove_columns") is not None:
                kwargs["remove_columns"] = [name for name in _names(kwargs["remove_columns"]) if name in data.features]
            with active._applying():
                return original(data, function, *args, **kwargs)

        active = self
        return method

    def lazy(self, original: Any) -> Any:
        """Return the method by which a function that is applied reads a column of its row or batch."""

        def method(row: Any, name: Any) -> Any:
            if not self._depth or name in row or not isinstance(name, str):
                return original(row, name)
            several = isinstance(row, LazyBatch)
            found = [self._answers.one(name) for _ in range(row.pa_table.num_rows if several else 1)]
            row[name] = found if several else found[0]
            return row[name]

        return method


def _get(row: Any, name: Any, default: Any = None) -> Any:
    """Return a column of a row or batch, or `default`: who asks by `get` does without the column."""
    if name not in row:
        return default
    return row[name]


def _select(original: Any) -> Any:
    """Let a script choose as many rows as its own data set has: those of a substitute are repeated."""

    def select(self: Dataset, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if is_substitute(self) and len(self):
            indices = [index % len(self) for index in indices]
        return original(self, indices, *args, **kwargs)

    return select


def _train_test_split(original: Any) -> Any:
    """Let a script split off as many rows as its own data set has: twice the rows that it names are there."""

    def train_test_split(
        self: Dataset, test_size: Any = None, train_size: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        wanted = sum(size for size in (test_size, train_size) if isinstance(size, int))
        if is_substitute(self) and wanted >= len(self):
            self = self.select(range(2 * wanted))
        return original(self, test_size, train_size, *args, **kwargs)

    return train_test_split


def _remove(original: Any) -> Any:
    def remove_columns(self: Dataset, *args: Any, **kwargs: Any) -> Any:
        names, args, kwargs = first_argument("column_names", args, kwargs)
        if is_substitute(self):
            names = [name for name in _names(names) if name in self.column_names]
        return original(self, names, *args, **kwargs)

    return remove_columns


def _transform(original: Any, answers: Answers) -> Any:
    def set_transform(self: Dataset, transform: Any, *args: Any, **kwargs: Any) -> Any:
        if transform is not None and is_substitute(self):
            transform = AnsweringFunction(transform, answers, batched=True)
        return original(self, transform, *args, **kwargs)

    return set_transform


def _item(original: Any, answers: Answers) -> Any:
    def getitem(self: Dataset, key: Any) -> Any:
        if not is_substitute(self):
            return original(self, key)
        if isinstance(key, str):
            return original(completed(self, [key], answers), key)
        return _answering(original(self, key), answers, several=not isinstance(key, int))

    return getitem


def _items(original: Any, answers: Answers) -> Any:
    def getitems(self: Dataset, keys: Any) -> Any:
        found = original(self, keys)
        return [_answering(row, answers) for row in found] if is_substitute(self) else found

    return getitems


def _rows(original: Any, answers: Answers) -> Any:
    def iterate(self: Any) -> Any:
        found = original(self)
        return (_answering(row, answers) for row in found) if is_substitute(self) else found

    return iterate


def _on_the_fly(original: Any, answers: Answers) -> Any:
    def method(self: IterableDataset, function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if function is not None and is_substitute(self) and not kwargs.get("input_columns"):
            function = AnsweringFunction(function, answers, batched=bool(kwargs.get("batched")))
        return original(self, function, *args, **kwargs)

    return method


def _answering(found: Any, answers: Answers, *, several: bool = False) -> Any:
    """Return a plain row, or rows by column, as one that answers; a table of another library stays as it is."""
    if type(found) is not dict:
        return found
    return AnsweringBatch(found, answers=answers) if several else AnsweringRow(found, answers=answers)


_VALUES = {Column.NUMBER: "int64", Column.FRACTION: "float64", Column.FLAG: "bool"}
_MESSAGE = (("role", "content"), ("from", "value"))


def features_of(columns: Mapping[str, Shape]) -> Features:
    """Return the types of several columns."""
    return Features({name: feature_of(shape) for name, shape in columns.items()})


def feature_of(shape: Shape) -> Any:
    """Return the type of a column."""
    match shape:
        case ListOf():
            return [feature_of(shape.of)]
        case Record():
            return {name: feature_of(inner) for name, inner in shape.fields}
        case Classes():
            return ClassLabel(names=list(shape.names))
        case Column.IMAGE:
            return Image()
        case Column.ASKED | Column.ANSWERED | Column.GUIDED | Column.REPLY | Column.TURNS:
            keys = _MESSAGE[shape is Column.TURNS]
            return [{key: Value("string") for key in keys}]
        case _:
            return Value(_VALUES.get(shape, "string"))


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


def modelscope_patches(module: ModuleType) -> list[Patch]:
    """Return the patch of the function by which ModelScope's client loads a data set."""
    load = module.MsDataset.load

    def loaded(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        except OSError:
            name, _, kwargs = first_argument("dataset_name", args, kwargs)
            # The function is replaced as well, and makes the rows.
            return datasets.load_dataset(
                name, kwargs.get("subset_name"), split=kwargs.get("split"), streaming=bool(kwargs.get("use_streaming"))
            )

    return [(module.MsDataset, "load", staticmethod(loaded))]


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
                files = kwargs.get("data_files")
                known = find_known(str(path), part if isinstance(part, str) else None) or of_trainer(sys.modules)
                return self._made(
                    known or self._unknown(),
                    files if isinstance(files, str) else str(path),
                    split=kwargs.get("split"),
                    streaming=bool(kwargs.get("streaming")),
                )

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
