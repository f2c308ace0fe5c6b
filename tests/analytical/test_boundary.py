"""The boundary between values that fit and values that do not."""

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.explanation.boundary import Boundary, Judge, boundary_near, largest_that_fits

Together = Callable[[Sequence[int]], object] | None


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


def _judge(largest: float, *, left: Callable[[int], float], per_value: float = 1.0, together: Together = None):
    """Return a judge of values up to `largest`, and the values that it was asked for, in rounds."""
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value <= largest

    return Judge(fits=fits, left=left, per_value=per_value, together=together), asked


@given(
    st.integers(1, 64),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.integers(-5, 10**6),
    st.sampled_from((lambda left: left, lambda left: left**3, lambda left: -left, lambda left: 1, math.sin)),
    st.sampled_from((1.0, 1e-3, 1e3, 0.0)),
)
def test_a_boundary_near_a_guess_is_that_of_the_whole_search(step, limit, allowed_to, guess, bent, per_value):
    """Whatever is guessed, right or wrong, and whatever answers leave, the boundary is where it is."""

    def answer(value: int) -> int | None:
        return value if value % step == 0 and value <= allowed_to else None

    whole = largest_that_fits(answer, lambda value: value < limit, minimum=1, maximum=10**6)
    together: list[int] = []
    for ahead in (None, together.extend):
        judge, asked = _judge(
            limit - 1, left=lambda value: bent(limit - 0.5 - value), per_value=per_value, together=ahead
        )
        found = boundary_near(answer, judge, guess, minimum=step, maximum=10**6)
        assert found == whole
        assert len(set(asked)) <= 60
    assert all(value % step == 0 and value <= allowed_to for value in together)


@pytest.mark.parametrize(
    ("largest", "guess", "per_value", "precision", "rounds"),
    [
        # By hand: 101 lacks 10.5, so that the line ends at 90.
        (90, 100, 1.0, 0.0, [[100, 101], [90, 91]]),
        (100, 100, 1.0, 0.0, [[100, 101]]),
        (47, 45, 1.0, 1 / 128, [[45, 46], [47, 48]]),
        # Nothing is between 30 and 32 but 31: the value below it is asked as well.
        (30, 32, 9.0, 1 / 128, [[32, 33], [30, 31]]),
        # A 128th of 10,000 is 78: three times 77 around the guess, then around 4 times 77 below the end of the line, or
        # around the end of the line between two sides; a third of it.
        (9_300, 10_000, 1.0, 1 / 128, [[9_885, 10_116], [8_893, 9_100], [9_195, 9_405], [9_265, 9_335]]),
        (10_700, 10_000, 1.0, 1 / 128, [[9_885, 10_116], [10_577, 10_823], [10_659, 10_741]]),
        # Both values need 1.7 times more for each than was expected, of which 1.25 count: that leads to 9,106.
        (9_300, 10_000, 0.6, 1 / 128, [[9_885, 10_116], [8_701, 8_902], [9_198, 9_402], [9_266, 9_334]]),
        # A tenth was expected: that leads to 5,209.
        (9_300, 10_000, 0.1, 1 / 128, [[9_885, 10_116], [4_850, 4_961], [9_245, 9_356], [9_282, 9_319]]),
        # Of neighbours the line is theirs, as far as it is 2.5 times as steep as was expected.
        (90, 100, 0.5, 1 / 128, [[100, 101], [90, 91]]),
    ],
)
def test_two_values_are_judged_where_nothing_is_left(largest, guess, per_value, precision, rounds):
    judged: list[list[int]] = []
    judge, asked = _judge(
        largest,
        left=lambda value: largest + 0.5 - value,
        per_value=per_value,
        together=lambda values: judged.append(list(values)),
    )
    found = boundary_near(lambda value: value, judge, guess, minimum=1, maximum=10**6, precision=precision)

    assert judged == rounds
    assert set(asked) <= {value for each in rounds for value in each}
    assert found.largest is not None and found.beyond is not None
    assert found.largest <= largest < found.beyond <= found.largest + max(1, precision * found.largest)


def test_a_line_that_creeps_takes_few_values():
    judge, asked = _judge(300_000, left=lambda value: 1.0 if value <= 300_000 else -1e6, per_value=1e-5)
    assert boundary_near(lambda value: value, judge, 10, minimum=1, maximum=10**6).largest == 300_000
    assert len(asked) <= 60


def test_the_larger_of_two_values_is_not_judged_in_vain():
    judge, asked = _judge(90, left=lambda value: 90.5 - value)
    assert boundary_near(lambda value: value, judge, 100, minimum=1, maximum=10**6).largest == 90
    assert asked == [100, 90, 91]


def test_memory_that_does_not_rise_steadily_takes_few_rounds():
    """Fragments of 0.3 % of the memory, and a guess that is 4 % away: three rounds of two in the mean."""
    rounds = []
    for seed in range(200):
        numbers = random.Random(seed)
        end = numbers.randint(1_500, 25_000)
        noise = {value: numbers.gauss(0, 0.006) * end for value in range(1, 2 * end)}
        left = {value: end - value + noise[value] for value in noise}
        judged: list[Sequence[int]] = []
        judge = Judge(
            fits=lambda value, left=left: left[value] >= 0,
            left=lambda value, left=left: left[value],
            per_value=1.2,
            together=judged.append,
        )
        guess = int(end * numbers.uniform(0.96, 1.04))
        found = boundary_near(lambda value: value, judge, guess, minimum=1, maximum=2 * end - 1, precision=1 / 128)
        assert left[found.largest] >= 0 > left[found.beyond]
        assert found.beyond - found.largest <= found.largest / 128
        rounds.append(len(judged))
    assert sum(rounds) / len(rounds) < 3.3
    assert max(rounds) <= 7


def test_a_card_that_is_full_of_fragments_takes_few_rounds():
    """Values from some on do not fit, although by what is left 7 % more should: a line would lead beyond them."""
    rounds = []
    for seed in range(200):
        numbers = random.Random(seed)
        end = numbers.randint(1_500, 25_000)
        judged: list[Sequence[int]] = []
        judge = Judge(
            fits=lambda value, end=end: value <= end,
            left=lambda value, end=end: 1.07 * end - value,
            per_value=1.2,
            together=judged.append,
        )
        guess = int(end * numbers.uniform(0.96, 1.1))
        found = boundary_near(lambda value: value, judge, guess, minimum=1, maximum=2 * end, precision=1 / 256)
        assert found.largest <= end < found.beyond <= found.largest * (1 + 1 / 256)
        rounds.append(len(judged))
    assert sum(rounds) / len(rounds) < 5.3
    assert max(rounds) <= 7


_NEEDED_GIB = {
    "70B, QLoRA": [(4_520, 77.930), (4_568, 78.280), (4_607, 78.557), (4_625, 78.700), (4_654, 78.971), (4_687, 79.184),
        (4_739, 79.608), (4_952, 81.253), (5_006, 81.657), (5_132, 82.544), (5_188, 82.950), (5_189, 84.020)],
    "7B, LoRA": [(21_798, 72.649), (22_050, 73.329), (22_610, 74.934), (22_865, 75.655), (22_901, 75.759),
        (22_937, 76.143), (22_973, 76.034), (23_080, 76.276), (23_186, 76.900), (23_187, 82.884), (23_188, 76.900),
        (23_457, 78.034)],
}  # fmt: skip
"""What simulations of completions of so many tokens need of a card of 79.1 GiB, which fragments fill before."""


@pytest.mark.parametrize(
    ("job", "largest", "guess", "per_value_mib"),
    [("70B, QLoRA", 4_611, 5_160, 9.2), ("7B, LoRA", 22_918, 23_322, 3.06)],
)
def test_searches_of_simulated_jobs_take_four_rounds(job, largest, guess, per_value_mib):
    """They took seven and five while a line led to where nothing is left, steep as the fragments of two values."""
    values, needed = zip(*_NEEDED_GIB[job], strict=True)
    judged: list[Sequence[int]] = []
    judge = Judge(
        fits=lambda value: value <= largest,
        left=lambda value: (79.11 - float(np.interp(value, values, needed))) * 2**30,
        per_value=per_value_mib * 2**20,
        together=judged.append,
    )
    found = boundary_near(lambda value: value, judge, guess, minimum=1, maximum=2**24, precision=1 / 256)
    assert found.largest <= largest < found.beyond <= found.largest * (1 + 1 / 256)
    assert len(judged) <= 4
