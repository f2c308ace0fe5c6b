"""The boundary between values that fit and values that do not."""

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


@given(st.integers(1, 64), st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 10**5))
def test_a_boundary_near_a_guess_is_that_of_the_whole_search(step, limit, allowed_to, guess):
    """Whatever is guessed, right or wrong, the boundary is where it is."""

    def answer(value: int) -> int | None:
        return value if value % step == 0 and value <= allowed_to else None

    def by(last: int) -> Boundary[int]:
        return largest_that_fits(answer, lambda value: value < last, minimum=1, maximum=10**6)

    guessed = by(guess)
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value < limit

    found = boundary_near(answer, fits, (guessed.largest, guessed.beyond), minimum=step, maximum=10**6)
    assert found == by(limit)
    assert len(set(asked)) <= 40


def test_a_guess_that_is_right_asks_for_its_two_sides_only():
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value <= 100

    assert boundary_near(lambda value: value, fits, (100, 101), minimum=1, maximum=10**6).largest == 100
    assert set(asked) == {100, 101}
