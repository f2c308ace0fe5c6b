"""The largest value of a key with which a trial fits a card, by bisection."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

GAP = 4096
"""Most values in a row that rules may refuse: a batch size that must be a multiple of 4,096 is still found."""

_FIRST_STEP = 64
"""A guess is first left by this part of it (our choice): the estimate is mostly within some percent."""


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
    if high is None:
        return Boundary(largest=low, at_largest=search.at(low), beyond=None, at_beyond=None)
    low, high = search.halved(low, high)
    return Boundary(largest=low, at_largest=search.at(low), beyond=high, at_beyond=search.at(high))


def boundary_near(
    answer: Callable[[int], Answer | None],
    fits: Callable[[Answer], bool],
    guess: tuple[int | None, int | None],
    *,
    minimum: int,
    maximum: int,
    gap: int = GAP,
    precision: float = 0.0,
) -> Boundary[Answer]:
    """Return the boundary, searched from a guess in steps that double, for answers that are dear.

    By hand, a guess of 100 and 101 where 90 is the largest that fits: 100, 99, 97, 93 and 85 are asked, then those
    between 85 and 93. The first step is a 64th of the value.

    Args:
        answer: Returns what `fits` judges; None if rules refuse the value. It is cheap.
        fits: Whether an answer is one that fits; it may be asked again about the same answer.
        guess: A value that should fit, and the next allowed one, which should not; either may be None.
        minimum: The smallest allowed value.
        maximum: The largest value to try.
        gap: Most values in a row that rules refuse below the largest that they allow.
        precision: Part of a value by which `beyond` may be larger than the next allowed value.
    """
    search = _Search(answer, fits, gap)
    low, high = guess
    if low is not None and not search.fits_at(low):
        low, high = search.stepped_down(low, minimum)
    elif high is not None and search.fits_at(high):
        low, high = search.stepped_up(high, maximum)
    if low is not None and high is not None:
        low, high = search.halved(low, high, precision)
    return Boundary(
        largest=low,
        at_largest=search.at(low) if low is not None else None,
        beyond=high,
        at_beyond=search.at(high) if high is not None else None,
    )


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

    def halved(self, low: int, high: int, precision: float = 0.0) -> tuple[int, int]:
        """Return allowed values that fit and do not, next to each other or as near as `precision` says."""
        while high - low > max(1, precision * low):
            middle = (low + high) // 2
            candidate = self.next_allowed(middle, high - 1) or self.previous_allowed(middle, low + 1)
            if candidate is None:
                break
            low, high = (candidate, high) if self.fits_at(candidate) else (low, candidate)
        return low, high

    def stepped_down(self, high: int, minimum: int) -> tuple[int | None, int]:
        """Return a value that fits, and one above it that does not; None for the former if there is none."""
        step = max(1, high // _FIRST_STEP)
        while high > minimum:
            candidate = self.previous_allowed(max(minimum, high - step), minimum)
            if candidate is None:
                return None, high
            if self.fits_at(candidate):
                return candidate, high
            high, step = candidate, 2 * step
        return None, high

    def stepped_up(self, low: int, maximum: int) -> tuple[int, int | None]:
        """Return a value that fits, and one above it that does not; None for the latter if there is none."""
        step, ceiling = max(1, low // _FIRST_STEP), maximum
        while low < ceiling:
            target = min(low + step, ceiling)
            candidate = self.next_allowed(target, ceiling)
            if candidate is None:
                ceiling = target - 1
                candidate = self._last_allowed(low, ceiling)
            if candidate is None:
                return low, None
            if not self.fits_at(candidate):
                return low, candidate
            low, step = candidate, 2 * step
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
