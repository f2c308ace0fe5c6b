"""Numbers that are one value or an array of values, and operations for both.

Each formula of this package is written once: with ints it computes one configuration, with int64 arrays it computes
many. `+ - * // %` work with both; the functions here are the other operations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from profiler.analytical.formulas.sizes import lazy_numpy as np

Count: TypeAlias = Union[int, "NDArray[Any]"]
"""A whole number, or an int64 array with one number per configuration."""

Flag: TypeAlias = Union[bool, "NDArray[Any]"]
"""A bool, or a boolean array with one value per configuration."""

Number: TypeAlias = Union[float, "NDArray[Any]"]
"""A number, or an array with one number per configuration."""

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Coded(Generic[Value]):
    """A column with few different values: the values, and per configuration the index of its value."""

    values: tuple[Value, ...]
    codes: "NDArray[Any]"
    """Indices into `values`, one per configuration."""


def where(flag: Flag, if_true: Count, if_false: Count) -> Count:
    """Return `if_true` where `flag` is true, else `if_false`."""
    if isinstance(flag, bool):
        return if_true if flag else if_false
    return np.where(flag, if_true, if_false)


def both(first: Flag, second: Flag) -> Flag:
    """Return whether both flags are true."""
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return np.logical_and(first, second)


def negated(flag: Flag) -> Flag:
    """Return whether the flag is false."""
    return not flag if isinstance(flag, bool) else np.logical_not(flag)


def either(first: Flag, second: Flag) -> Flag:
    """Return whether at least one flag is true."""
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first
    return np.logical_or(first, second)


def everywhere(flag: Flag) -> bool:
    """Return whether the flag is true for each configuration."""
    return flag if isinstance(flag, bool) else bool(np.all(flag))


def larger(first: Count, *others: Count) -> Count:
    """Return the largest of the numbers."""
    found = first
    for other in others:
        found = max(found, other) if isinstance(found, int) and isinstance(other, int) else np.maximum(found, other)
    return found


def smaller(first: Count, second: Count) -> Count:
    """Return the smaller of the two numbers."""
    if isinstance(first, int) and isinstance(second, int):
        return min(first, second)
    return np.minimum(first, second)


def rounded_down(value: Number) -> Count:
    """Return the largest whole number that is not larger than `value`."""
    return int(value) if isinstance(value, int | float) else value.astype(np.int64)


def whole_units(value: Count, unit: Count) -> Count:
    """Return `value / unit`, rounded up."""
    return -(-value // unit)


def one_value(column: Value | Coded[Value]) -> Value:
    """Return the value of one configuration, for its words.

    Raises:
        TypeError: There are several configurations.
    """
    if isinstance(column, Coded):
        raise TypeError("several configurations have no words in common")
    return column


def looked_up(column: Value | Coded[Value], function: Callable[[Value], Count]) -> Count:
    """Return `function` of a value, or per configuration of its value."""
    if not isinstance(column, Coded):
        return function(column)
    found: Count = 0
    if len(column.values) == 1:
        return function(column.values[0])
    for code, value in enumerate(column.values):
        result = function(value)
        found = result if code == 0 else np.where(column.codes == code, result, found)
    return found


def holds(column: Value | Coded[Value], function: Callable[[Value], bool]) -> Flag:
    """Return whether `function` is true for a value, or per configuration for its value."""
    if not isinstance(column, Coded):
        return bool(function(column))
    answers = np.array([function(value) for value in column.values], dtype=bool)
    chosen: NDArray[Any] = answers[column.codes]
    return chosen
