"""Whole numbers that are one value or a column of them, and the few operations that must serve both.

Every formula of this package is written once. Given ints it computes one configuration, given int64 arrays it computes
a column of them; `+ - * // %` do both by themselves, the functions here do the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Count: TypeAlias = int | NDArray[Any]
"""A whole number, or an int64 array with one for each configuration."""

Truth: TypeAlias = bool | NDArray[Any]
"""True or false, or a boolean array."""

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Coded(Generic[Value]):
    """A column of one of few values: the values, and which of them each configuration has."""

    values: tuple[Value, ...]
    codes: NDArray[Any]
    """Indices into `values`, one a configuration."""


def where(condition: Truth, if_true: Count, if_false: Count) -> Count:
    """`if_true` where `condition` holds, else `if_false`."""
    if isinstance(condition, bool):
        return if_true if condition else if_false
    return np.where(condition, if_true, if_false)


def both(first: Truth, second: Truth) -> Truth:
    """Whether both hold."""
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return np.logical_and(first, second)


def negated(truth: Truth) -> Truth:
    """Whether it does not hold."""
    return not truth if isinstance(truth, bool) else np.logical_not(truth)


def either(first: Truth, second: Truth) -> Truth:
    """Whether one of them holds."""
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first
    return np.logical_or(first, second)


def larger(first: Count, *others: Count) -> Count:
    """The largest of them."""
    found = first
    for other in others:
        found = max(found, other) if isinstance(found, int) and isinstance(other, int) else np.maximum(found, other)
    return found


def smaller(first: Count, second: Count) -> Count:
    """The smaller of the two."""
    if isinstance(first, int) and isinstance(second, int):
        return min(first, second)
    return np.minimum(first, second)


def whole_units(value: Count, unit: Count) -> Count:
    """How many `unit` cover `value`: the quotient, rounded up."""
    return -(-value // unit)


def looked_up(column: Value | Coded[Value], function: Callable[[Value], Count]) -> Count:
    """`function` of a value, or of the value that each configuration has."""
    if not isinstance(column, Coded):
        return function(column)
    found: Count = 0
    if len(column.values) == 1:
        return function(column.values[0])
    for code, value in enumerate(column.values):
        result = function(value)
        found = result if code == 0 else np.where(column.codes == code, result, found)
    return found


def holds(column: Value | Coded[Value], function: Callable[[Value], bool]) -> Truth:
    """Whether `function` is true of a value, or of the value that each configuration has."""
    if not isinstance(column, Coded):
        return bool(function(column))
    answers = np.array([function(value) for value in column.values], dtype=bool)
    chosen: NDArray[Any] = answers[column.codes]
    return chosen
