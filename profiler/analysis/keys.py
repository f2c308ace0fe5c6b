"""Keys of trials in a `runs` table: which keys there are, which are numbers, and the value of each."""

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import TypeAlias, get_args, get_origin, get_type_hints

import pandas as pd

from profiler.domain.trial import TrialSpec

Number: TypeAlias = int | float
KeyValue: TypeAlias = str | Number | bool | tuple[str, ...] | None

TRIAL_KEYS = tuple(field.name for field in fields(TrialSpec))
"""Every key of a trial, in the order of its specification."""

PLACE_KEYS = ("backend", "gpu")
"""Keys that say where a trial runs."""

CONFIGURATION_KEYS = tuple(key for key in TRIAL_KEYS if key not in PLACE_KEYS)
"""Keys that say what a trial runs: trials that agree in all of them can be compared across cards and backends."""


@cache
def type_of(key: str) -> type:
    """Return the type of a key's values, apart from None."""
    hint = get_type_hints(TrialSpec)[key]
    (found,) = [each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if each is not NoneType]
    kind: type = get_origin(found) or found
    return kind


def is_numeric(key: str) -> bool:
    """Whether the values of a key are numbers, so that memory can be drawn along it."""
    return type_of(key) in (int, float)


def trial_keys(row: Mapping[str, object]) -> dict[str, KeyValue]:
    """Return the value of each key of one row of the `runs` table; None for a column that is missing."""
    return {key: _value(key, row.get(key)) for key in TRIAL_KEYS}


def is_null(value: object) -> bool:
    """Whether a value of a frame is null: None, NaN or pandas' NA, depending on how the frame was read."""
    return value is None or value is pd.NA or value != value


def _value(key: str, stored: object) -> KeyValue:
    if is_null(stored):
        return None
    kind, text = type_of(key), str(stored)
    if kind is bool:
        return text == "True"
    if kind is int:
        # A frame read with NumPy's types has 12.0 for 12.
        return int(text.removesuffix(".0"))
    if kind is float:
        return float(text)
    if kind is tuple:
        return tuple(text.split(","))
    return kind(text) if issubclass(kind, StrEnum) else text
