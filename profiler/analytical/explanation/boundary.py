"""The largest value of a key with which a trial fits a card, by bisection."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

GAP = 4096
"""Most values in a row that rules may refuse: a batch size that must be a multiple of 4,096 is still found."""


@dataclass(frozen=True, kw_only=True)
class Boundary(Generic[Answer]):
    """The boundary between values that fit and values that do not."""

    largest: int | None
    """The largest value that fits; None if none does."""
    at_largest: Answer | None
    beyond: int | None
    """The next allowed value, which does not fit; None if every allowed value fits."""
    at_beyond: Answer | None


def largest_that_fits(
    answer: Callable[[int], Answer | None],
    fits: Callable[[Answer], bool],
    *,
    minimum: int,
    maximum: int,
    gap: int = GAP,
) -> Boundary[Answer]:
    """Return the boundary, for memory that never falls with the value.

    By hand, values from 1 of which rules allow multiples of 4, and which fit below 10: 8 fits, 12 does not.

    Args:
        answer: Returns the answer for a value; None if rules refuse the value.
        fits: Whether an answer is one that fits.
        minimum: The smallest value to try.
        maximum: The largest value to try.
        gap: Most values in a row that rules refuse below the largest that they allow.
    """
    search = _Search(answer, fits, gap)
    low = search.next_allowed(minimum, min(minimum + gap, maximum))
    if low is None:
        return Boundary(largest=None, at_largest=None, beyond=None, at_beyond=None)
    if not search.fits_at(low):
        return Boundary(largest=None, at_largest=None, beyond=low, at_beyond=search.at(low))
    low, high = search.doubled(low, maximum)
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        candidate = search.next_allowed(middle, high - 1) or search.previous_allowed(middle, low + 1)
        if candidate is None:
            break
        low, high = (candidate, high) if search.fits_at(candidate) else (low, candidate)
    if high is None:
        return Boundary(largest=low, at_largest=search.at(low), beyond=None, at_beyond=None)
    return Boundary(largest=low, at_largest=search.at(low), beyond=high, at_beyond=search.at(high))


class _Search(Generic[Answer]):
    """Answers that were asked for already, and allowed values near a value."""

    def __init__(self, answer: Callable[[int], Answer | None], fits: Callable[[Answer], bool], gap: int) -> None:
        self._answer, self._fits, self._gap = answer, fits, gap
        self._known: dict[int, Answer | None] = {}

    def at(self, value: int) -> Answer | None:
        if value not in self._known:
            self._known[value] = self._answer(value)
        return self._known[value]

    def fits_at(self, value: int) -> bool:
        found = self.at(value)
        return found is not None and self._fits(found)

    def next_allowed(self, first: int, last: int) -> int | None:
        return next(
            (value for value in range(first, min(first + self._gap, last) + 1) if self.at(value) is not None), None
        )

    def previous_allowed(self, first: int, last: int) -> int | None:
        values = range(first, max(first - self._gap, last) - 1, -1)
        return next((value for value in values if self.at(value) is not None), None)

    def doubled(self, low: int, maximum: int) -> tuple[int, int | None]:
        """Return a value that fits, and a larger allowed one that does not; None for the latter if there is none."""
        ceiling = maximum
        while low < ceiling:
            target = min(max(2 * low, low + 1), ceiling)
            candidate = self.next_allowed(target, ceiling)
            if candidate is None:
                # Rules refuse everything from here on, as beyond a model's context.
                ceiling = target - 1
                candidate = self._last_allowed(low, ceiling)
            if candidate is None:
                return low, None
            if not self.fits_at(candidate):
                return low, candidate
            low = candidate
        return low, None

    def _last_allowed(self, low: int, ceiling: int) -> int | None:
        """Return the largest allowed value above `low` up to `ceiling`, where allowed values end somewhere between."""
        found, refused = None, ceiling + 1
        bottom = low
        while refused - bottom > 1:
            middle = (bottom + refused) // 2
            allowed = self.next_allowed(middle, refused - 1)
            if allowed is None:
                refused = middle
            else:
                found = bottom = allowed
        return found
