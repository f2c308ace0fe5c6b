"""Keys of trials in a `runs` table: which are numbers, and the value of each."""

from collections.abc import Mapping
from typing import TypeAlias

import pandas as pd

from profiler.domain.keys import Group, Key, Kind
from profiler.domain.trial import TRIAL_KEYS, key_named

Number: TypeAlias = int | float
KeyValue: TypeAlias = str | Number | bool | tuple[str, ...] | None


def is_numeric(key: str) -> bool:
    """Return whether the values of a key are amounts, so that memory can be drawn along it; a seed is none."""
    declared = key_named(key)
    return declared.is_numeric and declared.group is not Group.DATA


def trial_keys(row: Mapping[str, object]) -> dict[str, KeyValue]:
    """Return the value of each key of one row of the `runs` table; None for a column that is missing."""
    return {key.name: _value(key, row.get(key.name)) for key in TRIAL_KEYS}


def records_of(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of a frame by column, as `to_dict("records")` does in several times the time."""
    names = [str(name) for name in frame.columns]
    columns = [frame[name].tolist() for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def is_null(value: object) -> bool:
    """Return whether a value of a frame is null: None, NaN or pandas' NA, depending on how the frame was read."""
    return value is None or value is pd.NA or value != value


def _value(declared: Key, stored: object) -> KeyValue:
    if is_null(stored):
        return None
    text = str(stored)
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
