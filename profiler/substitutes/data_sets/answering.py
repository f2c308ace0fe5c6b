"""Columns of a replaced data set that nobody foresaw: answered when the script reads them.

The source of a script does not say every column that it reads, and a library may read one by a name of its own. A row
then answers with a value whose shape fits its use in the source, or its name.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from profiler.substitutes.columns.columns_read import Reads, reads_of
from profiler.substitutes.columns.own_sources import own_sources
from profiler.substitutes.columns.shapes import Column, ListOf, Shape, described
from profiler.substitutes.columns.uses import kind_of
from profiler.substitutes.data_sets.rows import value
from profiler.substitutes.options import SubstituteOptions
from profiler.substitutes.replaced import Replaced


class Answers:
    """Values of columns by name."""

    def __init__(self, options: SubstituteOptions, replaced: Replaced) -> None:
        self._options = options
        self._replaced = replaced
        self._given: Counter[str] = Counter()

    @cached_property
    def reads(self) -> Reads:
        """What the script reads from rows."""
        if self._options.columns:
            return Reads({name: kind_of(name) for name in self._options.columns})
        return reads_of(own_sources(self._options.script), self._options.arguments)

    def shape(self, name: str) -> Shape:
        """Return the shape of a column, and note that it was asked for."""
        shape = self.reads.shape(name)
        self._replaced.add("column", name, f"{described(shape)}, as the script reads it")
        return shape

    def stored(self, name: str, count: int) -> tuple[Shape, list[Any]]:
        """Return the shape of a column, and `count` values as datasets stores them."""
        shape = self.shape(name)
        return shape, [value(shape, row, self._options) for row in range(count)]

    def one(self, name: str) -> Any:
        """Return the value of a column in a row that has none, as a script reads it."""
        shape = self.shape(name)
        self._given[name] += 1
        return decoded(shape, value(shape, self._given[name], self._options))


def decoded(shape: Shape, found: Any) -> Any:
    """Return a value as a script reads it: the file of an image becomes an image of pillow."""
    if isinstance(shape, ListOf):
        return [decoded(shape.of, each) for each in found]
    if shape is not Column.IMAGE:
        return found
    from PIL import Image

    return Image.open(io.BytesIO(found["bytes"]))


class AnsweringRow(dict[Any, Any]):
    """A row that answers any column that is read by ``row["name"]``; `in` and `get` know only those that it has."""

    def __init__(self, columns: Iterable[Any] = (), *, answers: Answers | None = None) -> None:
        super().__init__(columns)
        self._answers = answers

    def __missing__(self, name: Any) -> Any:
        """Make the value of a column that the row lacks, and keep it."""
        if self._answers is None or not isinstance(name, str):
            raise KeyError(name)
        self[name] = self._answers.one(name)
        return self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a plain row: what is sent to another process was read already."""
        return (dict, (dict(self),))


class AnsweringBatch(AnsweringRow):
    """Several rows by column, which answer any column with as many values as they have rows."""

    def __missing__(self, name: Any) -> Any:
        """Make the values of a column that the rows lack, and keep them."""
        if self._answers is None or not isinstance(name, str):
            raise KeyError(name)
        rows = len(next(iter(self.values()), ()))
        self[name] = [self._answers.one(name) for _ in range(rows)]
        return self[name]


class AnsweringFunction:
    """A function of a script that gets rows, or batches of them, that answer."""

    def __init__(self, function: Callable[..., Any], answers: Answers, *, batched: bool) -> None:
        self.function = function
        self.answers = answers
        self.row = AnsweringBatch if batched else AnsweringRow

    def __call__(self, row: Any, *rest: Any, **options: Any) -> Any:
        """Call the function with a row that answers."""
        answering = self.row(row, answers=self.answers) if isinstance(row, Mapping) else row
        return self.function(answering, *rest, **options)
