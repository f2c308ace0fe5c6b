"""A number of bytes with its words: one formula returns both, so that they cannot disagree.

Words are made when they are read: an estimate of one trial rarely needs them, and arrays have none.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from profiler.analytical.formulas.sizes.quantities import Count, Flag, where
from profiler.domain.memory import Category

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
