"""Keys of trials in a `runs` table: which are numbers, and the value of each."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias

import pandas as pd

from profiler.domain.trials.keys import Group, Kind
from profiler.domain.trials.trial import TRIAL_KEYS, key_named

Number: TypeAlias = int | float
KeyValue: TypeAlias = str | Number | bool | tuple[str, ...] | None


_ROWS_AT_ONCE = 2_000


def is_numeric(key: str) -> bool:
    """Return whether the values of a key are amounts, so that memory can be drawn along it; a seed is none."""
    declared = key_named(key)
    return declared.is_numeric and declared.group is not Group.DATA


_PLACES = {key.name: place for place, key in enumerate(TRIAL_KEYS)}


class KeyValues(Mapping[str, KeyValue]):
    """The value of every key of one trial, without a dictionary of its own: a sweep can have 100,000 trials."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[KeyValue, ...]) -> None:
        """Take the values, in the order of `TRIAL_KEYS`."""
        self._values = values

    def __getitem__(self, key: str) -> KeyValue:
        return self._values[_PLACES[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


def trial_keys(row: Mapping[str, object]) -> KeyValues:
    """Return the value of each key of one row of the `runs` table; None for a column that is missing."""
    return KeyValues(tuple(_value(key.name, row.get(key.name)) for key in TRIAL_KEYS))


def records_of(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of a frame by column, as `to_dict("records")` does in several times the time."""
    return list(each_record(frame))


def each_record(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Yield the rows of a frame by column; only some of them are in memory at a time."""
    names = [str(name) for name in frame.columns]
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        some = frame.iloc[start : start + _ROWS_AT_ONCE]
        columns = [some[name].tolist() for name in frame.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def is_null(value: object) -> bool:
    """Return whether a value of a frame is null: None, NaN or pandas' NA, depending on how the frame was read."""
    return value is None or value is pd.NA or value != value


def _value(name: str, stored: object) -> KeyValue:
    return None if is_null(stored) else _of_text(name, str(stored))


@cache
def _of_text(name: str, text: str) -> KeyValue:
    """Return the value that a text means; equal values are one object."""
    declared = key_named(name)
    if declared.kind is Kind.FLAG:
        return text == "True"
    if declared.kind is Kind.COUNT:
        # A frame read with NumPy's types has 12.0 for 12.
        return int(text.removesuffix(".0"))
    if declared.kind is Kind.NUMBER:
        return float(text)
    if declared.kind is Kind.NAMES:
        return tuple(text.split(","))
    return text if declared.choices is None else declared.choices(text)
