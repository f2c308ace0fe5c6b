"""Origins of the names in a script: rows of a data set, or the value of a column, one or many of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from profiler.substitutes.columns.uses import Use


@dataclass(frozen=True)
class Rows:
    """One row, or several."""

    many: bool


@dataclass(frozen=True, eq=False)
class Value:
    """The value of a column, or of each of several rows."""

    use: Use
    many: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and other.use is self.use and other.many == self.many

    def __hash__(self) -> int:
        return hash((id(self.use), self.many))


Origin = Rows | Value
Origins = frozenset[Origin]
NOTHING: Origins = frozenset()


def elements_of(origins: Origins, index: int = 0) -> Origins:
    """Return the origins of one of several values."""
    return frozenset(element_of(origin, index) for origin in origins)


def element_of(origin: Origin, index: int) -> Origin:
    """Return the origin of one of several values, taken by `index`."""
    if isinstance(origin, Rows):
        return Rows(many=False)
    return Value(origin.use, many=False) if origin.many else Value(origin.use.one(index), many=False)


def several_of(origin: Origin) -> Origin:
    """Return the origin of a list of such values."""
    return Rows(many=True) if isinstance(origin, Rows) else Value(origin.use, many=True)


def all_of(several: Iterable[Origins]) -> Origins:
    """Return the origins of several expressions together."""
    return frozenset(origin for each in several for origin in each)
