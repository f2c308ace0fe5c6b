"""The laws of the tables: what `profiler.storage.tables.schema` declares about values, checked over whole columns.

A table is checked batch by batch, so that neither it nor its keys need fit in memory: rows that are in the order of
`runs`, as this program writes them, are compared within each trial, and forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES, Column

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


class _Whole:
    """The sum, or the largest, of the sizes of each trial so far."""

    def __init__(self, trials: int) -> None:
        self.sizes = np.zeros(trials, dtype=np.int64)
        self.is_known = np.zeros(trials, dtype=bool)

    def add(self, rows: NDArray[Any], sizes: NDArray[Any], *, is_sum: bool) -> None:
        """Take the sizes of some rows, by the place of their trial; `_UNKNOWN` is none."""
        known = sizes != _UNKNOWN
        (np.add if is_sum else np.maximum).at(self.sizes, rows[known], sizes[known])
        self.is_known[rows[known]] = True


class Laws:
    """The laws of one table. `problem` is the first that a row breaks; empty if none does."""

    def __init__(self, columns: Sequence[Column], trials: Trials | None, *, in_order: bool = True) -> None:
        """Begin without rows.

        Args:
            columns: The columns of the table.
            trials: The trials that rows may belong to; None for `runs` itself.
            in_order: Whether rows are in the order of `trials`. If they are not, `is_out_of_order` says so, and rows
                have to be checked again without it, which takes memory for each.
        """
        self._columns, self._trials = columns, trials
        self._has_identity = any(column.identifies for column in columns)
        self._in_order = in_order and trials is not None
        self._held: list[tuple[NDArray[Any], NDArray[Any]]] = []
        """Trials and keys of rows that later ones are compared with."""
        self._parts = () if trials is None else tuple(each for each in columns if each.sums_to or each.peaks_at)
        self._wholes = {column.name: _Whole(len(trials.ids)) for column in self._parts} if trials is not None else {}
        self._repeat = ""
        self.is_out_of_order = False
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
        if self._has_identity:
            self._hold(rows, _identities(batch, self._columns, rows))
        for column in self._parts:
            values = pc.fill_null(_array(batch[column.name]), _UNKNOWN).to_numpy(zero_copy_only=False)
            self._wholes[column.name].add(rows, values, is_sum=bool(column.sums_to))

    def finish(self) -> None:
        """Check what rows have to be together: different from each other, and parts of a whole."""
        if self.problem:
            return
        self._compare_held()
        self.problem = self._repeat or next(
            (problem for column in self._parts if (problem := self._whole_problem(column))), ""
        )

    def _hold(self, rows: NDArray[Any], keys: NDArray[Any]) -> None:
        """Take the rows of a batch; forget those of trials that later batches cannot have."""
        if self.is_out_of_order:
            return
        if not self._in_order:
            self._held.append((rows, keys))
            return
        last = self._held[-1][0][-1] if self._held else rows[0]
        if rows[0] < last or (np.diff(rows) < 0).any():
            self.is_out_of_order = True
            self._held.clear()
            return
        self._held.append((rows, keys))
        if rows[-1] > last:
            goes_on = rows == rows[-1]
            self._held[-1] = rows[~goes_on], keys[~goes_on]
            self._compare_held()
            self._held = [(rows[goes_on], keys[goes_on])]

    def _trial_rows(self, batch: pa.Table) -> NDArray[Any]:
        """Return the place of each row's trial among the trials; in `runs` itself, a place per name."""
        if self._trials is not None:
            return _codes(batch[_TRIAL], self._trials.ids)
        return _codes(batch[_TRIAL], pc.unique(batch[_TRIAL]))

    def _compare_held(self) -> None:
        """Find the first two rows with the same key among those that are held."""
        if self._repeat or not self._held:
            return
        rows, keys = (np.concatenate(each) for each in zip(*self._held, strict=True))
        order = np.argsort(keys, kind="stable")
        again = order[1:][np.diff(keys[order]) == 0]
        if again.size:
            names = " and ".join(each.name for each in self._columns if each.identifies)
            self._repeat = f"two rows of {self._trial(rows, int(again[0]))} have the same {names}"

    def _whole_problem(self, column: Column) -> str:
        name, parts = column.sums_to or column.peaks_at, self._wholes[column.name]
        if self._trials is None:
            return ""
        whole = pc.fill_null(self._trials.wholes[name], _UNKNOWN).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(parts.is_known & (parts.sizes != whole))
        if not wrong.size:
            return ""
        place = int(wrong[0])
        said = "unknown" if whole[place] == _UNKNOWN else str(whole[place])
        how = f"{column.name} sum to" if column.sums_to else f"largest {column.name} is"
        trial = f"trial {self._trials.ids[place].as_py()}"
        return f"of {trial} the {how} {parts.sizes[place]}, and {name} in runs.parquet is {said}"

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
