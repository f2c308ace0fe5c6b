"""Numbers of bytes: one value or an array of values, and with the words for them.

Numbers that are one value or an array of values, and operations for both.

Each formula of this package is written once: with ints it computes one configuration, with int64 arrays it computes
many. `+ - * // %` work with both; the functions here are the other operations.

A number of bytes with its words: one formula returns both, so that they cannot disagree.

Words are made when they are read: an estimate of one trial rarely needs them, and arrays have none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, Union

from profiler.domain.memory import Category

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:

    class _LazyNumpy:
        """numpy, imported when one of its names is first used: an estimate of one trial needs none of them."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  anything that numpy has
            found = self.__dict__[name] = getattr(import_module("numpy"), name)
            return found

    np = _LazyNumpy()

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


LONGEST = 50
"""Most characters of the words of a number."""

Words = Callable[[], str]
"""The factors of a number: its short form."""

UNNAMED: Words = str
"""No words: of a part that others name, or of nothing."""


class Term(NamedTuple):
    """A number of bytes and its words. A named tuple, because an estimate makes hundreds of them."""

    size: Count
    words: Words = UNNAMED

    @property
    def text(self) -> str:
        """The words of one configuration; empty where there are no bytes."""
        return self.words() if self.size else ""

    def plus(self, other: "Term") -> "Term":
        """Return the sum, whose words are those of both parts that have bytes."""
        size = self.size + other.size
        if other.words is UNNAMED:
            return Term(size, self.words)
        if self.words is UNNAMED:
            return Term(size, other.words)
        return Term(size, lambda: " + ".join(text for text in (self.text, other.text) if text))

    def including(self, rest: "Term") -> "Term":
        """Return the sum in the words of this part alone; in those of `rest` where this part has no bytes."""
        return Term(self.size + rest.size, lambda: self.text or rest.text)

    def only_if(self, flag: Flag) -> "Term":
        """Return the term where `flag` is true, and 0 elsewhere."""
        return Term(where(flag, self.size, 0), self.words)


NOTHING = Term(0)

Terms = Mapping[Category, Term]
"""Numbers by category. A category that is absent has 0 bytes."""


def chosen(flag: Flag, if_true: Term, if_false: Term) -> Term:
    """Return the number and the words of one of two terms."""
    return Term(where(flag, if_true.size, if_false.size), lambda: if_true.words() if bool(flag) else if_false.words())


@dataclass(frozen=True, kw_only=True)
class HeadBytes:
    """Bytes of one stage of the LM head, by category."""

    logits: Term = NOTHING
    """Tensors as wide as the vocabulary, and log-probabilities."""
    activations: Term = NOTHING
    """Hidden states and their gradients."""
    gradients: Term = NOTHING
    """Gradients of the weight of the head."""


def added(*parts: Terms) -> Terms:
    """Return the sum of `parts`, by category."""
    sums = dict(parts[0])
    for part in parts[1:]:
        for category, term in part.items():
            sums[category] = sums[category].plus(term) if category in sums else term
    return sums


def times(factor: Count, terms: Terms) -> Terms:
    """Return `terms` with every number multiplied by `factor`, and without words."""
    return {category: Term(factor * term.size) for category, term in terms.items()}
