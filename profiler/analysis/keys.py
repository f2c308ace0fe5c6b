"""Keys of trials in a `runs` table: which are numbers, and the value of each."""

from collections.abc import Mapping
from typing import TypeAlias

import pandas as pd

from profiler.domain.keys import Kind
from profiler.domain.trial import SPEC_KEYS, key_named

Number: TypeAlias = int | float
KeyValue: TypeAlias = str | Number | bool | tuple[str, ...] | None


def is_numeric(key: str) -> bool:
    """Return whether the values of a key are numbers, so that memory can be drawn along it."""
    return key_named(key).is_numeric


def trial_keys(row: Mapping[str, object]) -> dict[str, KeyValue]:
    """Return the value of each key of one row of the `runs` table; None for a column that is missing."""
    return {key: _value(key, row.get(key)) for key in SPEC_KEYS}


def is_null(value: object) -> bool:
    """Return whether a value of a frame is null: None, NaN or pandas' NA, depending on how the frame was read."""
    return value is None or value is pd.NA or value != value


def _value(key: str, stored: object) -> KeyValue:
    if is_null(stored):
        return None
    declared, text = key_named(key), str(stored)
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
