"""The boundary between values that fit and values that do not."""

import math
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.explanation.boundary import Boundary, boundary_near, largest_that_fits


def _boundary(*, step: int = 1, limit: int, allowed_to: int = 10**9, minimum: int = 1) -> Boundary[int]:
    def answer(value: int) -> int | None:
        return value if value % step == 0 and value <= allowed_to else None

    return largest_that_fits(answer, lambda value: value < limit, minimum=minimum, maximum=10**9)


def test_multiples_of_four_below_ten():
    found = _boundary(step=4, limit=10)
    assert (found.largest, found.beyond) == (8, 12)
    assert (found.at_largest, found.at_beyond) == (8, 12)


def test_nothing_fits():
    assert _boundary(limit=1) == Boundary(largest=None, at_largest=None, beyond=1, at_beyond=1)


def test_nothing_is_allowed():
    assert _boundary(limit=5, allowed_to=0) == Boundary(largest=None, at_largest=None, beyond=None, at_beyond=None)


def test_everything_that_is_allowed_fits():
    found = _boundary(limit=10**9, allowed_to=32_512)
    assert (found.largest, found.beyond) == (32_512, None)


@given(st.integers(1, 64), st.integers(2, 10**6), st.integers(1, 10**6))
def test_the_boundary_is_where_it_is(step, limit, allowed_to):
    found = _boundary(step=step, limit=limit, allowed_to=allowed_to)
    fitting = min(limit - 1, allowed_to) // step * step
    assert found.largest == (fitting or None)
    following = fitting + step
    assert found.beyond == (following if following <= allowed_to else None)


@given(st.integers(1, 64), st.integers(2, 10**8))
def test_a_boundary_is_found_with_few_answers(step, limit):
    asked = []

    def answer(value: int) -> int | None:
        if value % step:
            return None
        asked.append(value)
        return value

    largest_that_fits(answer, lambda value: value < limit, minimum=1, maximum=10**9)
    assert len(asked) <= 2 * 30


@given(
    st.integers(1, 64),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.sampled_from((None, lambda left: left, lambda left: left**3, lambda left: -left, lambda left: 1, math.sin)),
)
def test_a_boundary_near_a_guess_is_that_of_the_whole_search(step, limit, allowed_to, guess, bent):
    """Whatever is guessed, right or wrong, and whatever answers leave, the boundary is where it is."""

    def answer(value: int) -> int | None:
        return value if value % step == 0 and value <= allowed_to else None

    def by(last: int) -> Boundary[int]:
        return largest_that_fits(answer, lambda value: value < last, minimum=1, maximum=10**6)

    guessed = by(guess)
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value < limit

    left = None if bent is None else lambda value: bent(limit - 0.5 - value)
    near = partial(
        boundary_near, answer, fits, (guessed.largest, guessed.beyond), minimum=step, maximum=10**6, left=left
    )
    judged: list[int] = []
    assert near() == near(ahead=judged.extend) == by(limit)
    assert all(value % step == 0 and value <= allowed_to for value in judged)
    assert len(set(asked)) <= 60


@pytest.mark.parametrize(
    ("largest", "precision", "asked_with", "asked_without"),
    [
        # By hand: the guess, one step below, where the line ends, and one above.
        (90, 0.0, [100, 99, 90, 91], 8),
        (100, 0.0, [100, 101], 2),
        # The first step is 156 tokens; the line ends at 9,300, and 36 are the precision.
        (9_300, 1 / 256, [10_000, 9_844, 9_282, 9_318], 9),
        (10_700, 1 / 256, [10_000, 10_001, 10_157, 10_721, 10_682], 9),
    ],
)
def test_what_is_left_says_where_to_ask_next(largest, precision, asked_with, asked_without):
    for left, count in ((lambda value: largest + 0.5 - value, len(asked_with)), (None, asked_without)):
        asked: list[int] = []

        def fits(value: int, asked: list[int] = asked) -> bool:
            asked.append(value)
            return value <= largest

        guess = (100, 101) if largest <= 100 else (10_000, 10_001)
        found = boundary_near(
            lambda value: value, fits, guess, minimum=1, maximum=10**6, precision=precision, left=left
        )
        assert len(dict.fromkeys(asked)) == count, asked
        assert left is None or list(dict.fromkeys(asked)) == asked_with
        assert found.largest is not None and found.beyond is not None
        assert found.largest <= largest < found.beyond <= found.largest + max(1, precision * found.largest)


@pytest.mark.parametrize(
    ("largest", "left", "guess", "precision", "rounds"),
    [
        # By hand: 99, where the boundary is far, then 90 and 91, of which 91 is asked later.
        (90, 0.5, (100, 101), 0.0, [{99}, {90, 91}]),
        # 46 fits too, and so does 47, but not 48.
        (47, 0.5, (45, 46), 1 / 256, [{47, 48}]),
        # The same, but 47 fits because its cache is freed.
        (47, -0.4, (45, 46), 1 / 256, [{47, 48}]),
        (100, 0.5, (100, 101), 0.0, []),
        # 9,318 is what is asked after 9,282.
        (9_300, 0.5, (10_000, 10_001), 1 / 256, [{9_844}, {9_282, 9_318}]),
        (10_700, 0.5, (10_000, 10_001), 1 / 256, [{10_157}, {10_721, 10_680}]),
    ],
)
def test_what_is_probably_asked_next_is_judged_at_the_same_time(largest, left, guess, precision, rounds):
    known, judged = set(guess), []

    def ahead(values: Sequence[int]) -> None:
        if new := set(values) - known:
            judged.append(new)
            known.update(new)

    def fits(value: int) -> bool:
        ahead([value])
        return value <= largest

    found = boundary_near(
        lambda value: value,
        fits,
        guess,
        minimum=1,
        maximum=10**6,
        precision=precision,
        left=lambda value: largest + left - value,
        ahead=ahead,
    )
    assert judged == rounds
    assert found.largest is not None and found.beyond is not None
    assert found.largest <= largest < found.beyond <= found.largest + max(1, precision * found.largest)


def test_a_guess_that_is_right_asks_for_its_two_sides_only():
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value <= 100

    assert boundary_near(lambda value: value, fits, (100, 101), minimum=1, maximum=10**6).largest == 100
    assert set(asked) == {100, 101}
