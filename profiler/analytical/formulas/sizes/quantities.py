"""Numbers of bytes: one value or an array of values, and with the words for them.

Numbers that are one value or an array of values, and operations for both.

Each formula of this package is written once: with ints it computes one configuration, with int64 arrays it computes
many, and with `Itemised` numbers the blocks of one. `+ - * // %` work with all; the functions here are the other
operations.

A number of bytes with its words: one formula returns both, so that they cannot disagree.

Words are made when they are read: an estimate of one trial rarely needs them, and arrays have none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, Union

from profiler.domain.memory import Category


class _LazyNumpy:
    """numpy, imported when one of its names is first used: an estimate of one trial needs none of them."""

    def __getattr__(self, name: str) -> "Callable[..., Array]":
        found: Callable[..., Array] = getattr(import_module("numpy"), name)
        self.__dict__[name] = found
        return found


np = _LazyNumpy()

if TYPE_CHECKING:
    from numpy.typing import NDArray

    class Array:
        """An array of numpy, as far as formulas use it.

        numpy declares a dozen signatures for each operator. With them mypy needs three times as long for the formulas
        as for all else.
        """

        def __add__(self, other: "float | Array") -> "Array": ...
        def __radd__(self, other: float) -> "Array": ...
        def __sub__(self, other: "float | Array") -> "Array": ...
        def __rsub__(self, other: float) -> "Array": ...
        def __mul__(self, other: "float | Array") -> "Array": ...
        def __rmul__(self, other: float) -> "Array": ...
        def __floordiv__(self, other: "float | Array") -> "Array": ...
        def __rfloordiv__(self, other: float) -> "Array": ...
        def __truediv__(self, other: "float | Array") -> "Array": ...
        def __rtruediv__(self, other: float) -> "Array": ...
        def __mod__(self, other: "float | Array") -> "Array": ...
        def __rmod__(self, other: float) -> "Array": ...
        def __neg__(self) -> "Array": ...
        def __lt__(self, other: "float | Array") -> "Array": ...
        def __le__(self, other: "float | Array") -> "Array": ...
        def __gt__(self, other: "float | Array") -> "Array": ...
        def __ge__(self, other: "float | Array") -> "Array": ...
        def __eq__(self, other: object) -> "Array": ...  # type: ignore[override]
        def __ne__(self, other: object) -> "Array": ...  # type: ignore[override]
        def __getitem__(self, index: Any) -> Any: ...  # noqa: ANN401
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...
        def __array__(self) -> Any: ...  # noqa: ANN401
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401


Count: TypeAlias = Union[int, "Array"]
"""A whole number, or an int64 array with one number per configuration."""

Flag: TypeAlias = Union[bool, "Array"]
"""A bool, or a boolean array with one value per configuration."""

Number: TypeAlias = Union[float, "Array"]
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


Parts = tuple[tuple[int, int], ...]
"""Pairs (bytes of a block, how many); a negative number takes away."""

Blocks = Mapping[int, int]
"""Bytes of a block -> how many."""


class Itemised(int):
    """A number of bytes that knows the blocks that it is the sum of.

    The largest of several numbers knows the blocks of all of them, as stages in the order of the arguments: a formula
    that takes the largest of several instants names them in the order in which they happen. Values are those of ints.
    """

    stages: tuple[Parts, ...]

    @classmethod
    def of(cls, value: int, stages: tuple[Parts, ...]) -> "Itemised":
        """Return a number with its stages, at least one."""
        found = cls(value)
        found.stages = stages
        return found

    def __add__(self, other: int) -> "Itemised":
        return Itemised.of(int(self) + int(other), _joined(stages_of(self), stages_of(other)))

    __radd__ = __add__

    def __sub__(self, other: int) -> "Itemised":
        return self + -other if isinstance(other, Itemised) else self + Itemised.of(-other, (((other, -1),),))

    def __rsub__(self, other: int) -> "Itemised":
        return -self + other

    def __neg__(self) -> "Itemised":
        return self * -1

    def __mul__(self, factor: int) -> "Itemised":
        stages = tuple(tuple((size, count * int(factor)) for size, count in parts) for parts in self.stages)
        return Itemised.of(int(self) * int(factor), stages)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> "Itemised":
        return Itemised.of(int(self) // divisor, tuple(_divided(parts, divisor) for parts in self.stages))


def stages_of(value: Count) -> tuple[Parts, ...]:
    """Return the stages of a number; of another than an itemised one, one block, or nothing."""
    if isinstance(value, Itemised):
        return value.stages
    return (((int(value), 1),),) if value else ((),)


def _joined(first: tuple[Parts, ...], second: tuple[Parts, ...]) -> tuple[Parts, ...]:
    """Return the stages of a sum: those of each part while the other is at its largest."""
    if len(first) == 1:
        return tuple(first[0] + parts for parts in second)
    if len(second) == 1:
        return tuple(parts + second[0] for parts in first)
    one, other = max(first, key=_sum_of), max(second, key=_sum_of)
    return (*(parts + other for parts in first), *(one + parts for parts in second if parts is not other))


def _sum_of(parts: Parts) -> int:
    return sum(size * count for size, count in parts)


def _counted(parts: Parts) -> dict[int, int]:
    """Return the number of blocks of each size, which may be negative."""
    found: dict[int, int] = {}
    for size, count in parts:
        if size and count:
            found[size] = found.get(size, 0) + count
    return {size: count for size, count in found.items() if count}


def _divided(parts: Parts, divisor: int) -> Parts:
    """Return an equal share: of the blocks if their numbers can be divided, else of each block."""
    found = _counted(parts)
    if all(count % divisor == 0 for count in found.values()):
        return tuple((size, count // divisor) for size, count in found.items())
    return tuple((size // divisor, count) for size, count in found.items())


def blocks_of(parts: Parts) -> dict[int, int]:
    """Return the blocks of a sum. What is taken away and is no block of the sum makes others smaller, or ends them.

    By hand, 100 + 100 - 30: one block of 100 and one of 70.
    """
    found = _counted(parts)
    missing = -sum(size * count for size, count in found.items() if count < 0)
    blocks = {size: count for size, count in found.items() if count > 0}
    while missing > 0 and blocks:
        size = min((size for size in blocks if size >= missing), default=max(blocks))
        blocks[size] -= 1
        if not blocks[size]:
            del blocks[size]
        if size > missing:
            blocks[size - missing] = blocks.get(size - missing, 0) + 1
        missing -= min(size, missing)
    return blocks


def stage_blocks(value: Count) -> list[dict[int, int]]:
    """Return the blocks of each stage of a number."""
    return [blocks_of(parts) for parts in stages_of(value)]


def largest_blocks(value: Count) -> dict[int, int]:
    """Return the blocks of a number at its largest stage."""
    return blocks_of(max(stages_of(value), key=_sum_of))


def larger(first: Count, *others: Count) -> Count:
    """Return the largest of the numbers."""
    found = first
    for other in others:
        if isinstance(found, Itemised) or isinstance(other, Itemised):
            found = _in_turn(found, other)
        else:
            found = max(found, other) if isinstance(found, int) and isinstance(other, int) else np.maximum(found, other)
    return found


def _in_turn(first: Count, second: Count) -> Itemised:
    """Return the larger of two numbers, of which at least one is itemised, with the stages of both."""
    stages = dict.fromkeys(parts for parts in (*stages_of(first), *stages_of(second)) if parts)
    return Itemised.of(max(int(first), int(second)), tuple(stages) or ((),))


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
    chosen: Array = answers[column.codes]
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
