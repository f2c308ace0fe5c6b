"""The laws of the tables: what `profiler.storage.schema` declares about values, checked over whole columns.

A table is checked batch by batch, so that it need not fit in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from profiler.storage.schema import OPTIONAL_TABLES, TABLES, Column

_TRIAL = "trial_id"
_WHOLES = {
    column.sums_to or column.peaks_at
    for columns in (*TABLES.values(), *OPTIONAL_TABLES.values())
    for column in columns
    if column.sums_to or column.peaks_at
}
_UNKNOWN = -1
_MOST_COUNT = 2**31 - 1
"""Larger numbers count as this one where rows are compared."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of a folder, with the columns of `runs` that rows of other tables sum to or peak at."""

    ids: pa.Array
    wholes: dict[str, pa.Array]

    @classmethod
    def of(cls, runs: pa.Table) -> "Trials":
        """Return the trials of a `runs` table."""
        return cls(ids=_array(runs[_TRIAL]), wholes={name: _array(runs[name]) for name in _WHOLES})


class Laws:
    """The laws of one table. `problem` is the first that a row breaks; empty if none does."""

    def __init__(self, columns: Sequence[Column], trials: Trials | None) -> None:
        """Begin without rows.

        Args:
            columns: The columns of the table.
            trials: The trials that rows may belong to; None for `runs` itself.
        """
        self._columns, self._trials = columns, trials
        self._identity: list[NDArray[Any]] = []
        self._rows_of: list[NDArray[Any]] = []
        self._parts = tuple(column for column in columns if column.sums_to or column.peaks_at)
        self._sizes: dict[str, list[NDArray[Any]]] = {column.name: [] for column in self._parts}
        self.problem = ""

    def check(self, batch: pa.Table) -> None:
        """Check rows; the columns are those of the table."""
        if self.problem or not batch.num_rows:
            return
        for column in self._columns:
            problem = _value_problem(batch, column)
            if problem:
                self.problem = problem
                return
        rows = self._trial_rows(batch)
        unknown = np.flatnonzero(rows == _UNKNOWN)
        if unknown.size:
            self.problem = f"{_named(batch, int(unknown[0]))} is not in runs.parquet, so its rows are of another sweep"
            return
        self._rows_of.append(rows)
        self._identity.append(_identities(batch, self._columns, rows))
        for name, sizes in self._sizes.items():
            values = _array(batch[name])
            sizes.append(pc.fill_null(values, _UNKNOWN).to_numpy(zero_copy_only=False))

    def finish(self) -> None:
        """Check what rows have to be together: different from each other, and parts of a whole."""
        if self.problem or not self._rows_of:
            return
        rows = np.concatenate(self._rows_of)
        self.problem = self._repeated(rows) or next(
            (problem for column in self._parts if (problem := self._whole_problem(column, rows))), ""
        )

    def _trial_rows(self, batch: pa.Table) -> NDArray[Any]:
        """Return the place of each row's trial among the trials; in `runs` itself, a place per name."""
        if self._trials is not None:
            return _codes(batch[_TRIAL], self._trials.ids)
        return _codes(batch[_TRIAL], pc.unique(batch[_TRIAL]))

    def _repeated(self, rows: NDArray[Any]) -> str:
        if not any(column.identifies for column in self._columns):
            return ""
        keys = np.concatenate(self._identity)
        order = np.argsort(keys, kind="stable")
        again = order[1:][np.diff(keys[order]) == 0]
        if not again.size:
            return ""
        names = " and ".join(each.name for each in self._columns if each.identifies)
        return f"two rows of {self._trial(rows, int(again[0]))} have the same {names}"

    def _whole_problem(self, column: Column, rows: NDArray[Any]) -> str:
        name = column.sums_to or column.peaks_at
        if self._trials is None:
            return ""
        sizes = np.concatenate(self._sizes[column.name])
        known = sizes != _UNKNOWN
        found = np.zeros(len(self._trials.ids), dtype=np.int64)
        (np.add if column.sums_to else np.maximum).at(found, rows[known], sizes[known])
        whole = pc.fill_null(self._trials.wholes[name], _UNKNOWN).to_numpy(zero_copy_only=False)
        present = np.zeros(len(found), dtype=bool)
        present[rows[known]] = True
        wrong = np.flatnonzero(present & (found != whole))
        if not wrong.size:
            return ""
        place = int(wrong[0])
        said = "unknown" if whole[place] == _UNKNOWN else str(whole[place])
        how = f"{column.name} sum to" if column.sums_to else f"largest {column.name} is"
        trial = f"trial {self._trials.ids[place].as_py()}"
        return f"of {trial} the {how} {found[place]}, and {name} in runs.parquet is {said}"

    def _trial(self, rows: NDArray[Any], place: int) -> str:
        return "one trial" if self._trials is None else f"trial {self._trials.ids[int(rows[place])].as_py()}"


def _value_problem(batch: pa.Table, column: Column) -> str:
    """Return which value the declaration of its column excludes; empty if none."""
    values = batch[column.name]
    if not column.null and values.null_count:
        return _sentence(batch, column, _first(pc.is_null(values)), "which the column does not allow")
    if column.words is not None:
        words = pa.array([word.value for word in column.words], pa.string())
        wrong = (_codes(values, words) == _UNKNOWN) & ~_is_null(values)
        if wrong.any():
            allowed = f"and allowed are {', '.join(column.words)}"
            return _sentence(batch, column, int(np.argmax(wrong)), allowed)
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
        return _sentence(batch, column, _first(pc.invert(pc.is_finite(values))), "and it has to be a finite number")
    smallest = pc.min(values).as_py() if column.least is not None else None
    if smallest is not None and smallest < column.least:
        return _sentence(
            batch, column, _first(pc.less(values, column.least)), f"and at least {column.least} is allowed"
        )
    return ""


def _sentence(batch: pa.Table, column: Column, row: int, law: str) -> str:
    value = batch[column.name][row].as_py()
    shown = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return f"{column.name} of {_named(batch, row)} is {shown}, {law}"


def _named(batch: pa.Table, row: int) -> str:
    return f"trial {batch[_TRIAL][row].as_py()}"


def _first(wrong: pa.ChunkedArray) -> int:
    return int(np.argmax(pc.fill_null(wrong, False).to_numpy()))


def _array(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _is_null(values: pa.ChunkedArray) -> NDArray[Any]:
    found: NDArray[Any] = pc.is_null(values).to_numpy()
    return found


def _codes(values: pa.ChunkedArray, known: pa.Array) -> NDArray[Any]:
    """Return the place of each value in `known`; `_UNKNOWN` for other values and null."""
    found = _array(values)
    if pa.types.is_dictionary(found.type):
        of_word = np.append(_places(found.dictionary, known), _UNKNOWN)
        places: NDArray[Any] = of_word[pc.fill_null(found.indices, len(of_word) - 1).to_numpy(zero_copy_only=False)]
        return places
    return _places(found, known)


def _places(values: pa.Array, known: pa.Array) -> NDArray[Any]:
    places = pc.index_in(values, value_set=_array(known))
    found: NDArray[Any] = pc.fill_null(places, _UNKNOWN).to_numpy(zero_copy_only=False)
    return found


def _identities(batch: pa.Table, columns: Sequence[Column], rows: NDArray[Any]) -> NDArray[Any]:
    """Return one number per row, equal for rows whose identifying columns are."""
    found = rows.astype(np.int64)
    for column in columns:
        if not column.identifies or column.name == _TRIAL:
            continue
        if column.words is not None:
            found = found * len(column.words) + _codes(batch[column.name], pa.array([*column.words], pa.string()))
        else:
            numbers = _array(batch[column.name]).to_numpy(zero_copy_only=False)
            found = found * (_MOST_COUNT + 1) + np.minimum(numbers, _MOST_COUNT)
    return found
