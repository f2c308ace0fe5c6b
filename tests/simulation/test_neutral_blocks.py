"""Neutral blocks of small steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.memory import MIB
from profiler.simulation.extrapolation.step_template import cycles_until_large, neutral_blocks

KIB = 1024


def left_out(events: list[int], sizes: list[int], growth: list[int] | None = None) -> set[int]:
    """`events` as in a trace: block + 1 for an allocation, -(block + 1) for a free."""
    array = np.array(events)
    growth = growth or [0] * len(sizes)
    return neutral_blocks(array > 0, np.abs(array) - 1, np.array(sizes), np.array(growth))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([1, -1], {0}),
        ([1, 2, -1, -2], {0, 1}),
        ([1, 2, -2, -1], {0, 1}),
        # The first stays; the second is allocated and freed meanwhile.
        ([1, 2, -2], {1}),
        # The second stays, and its place depends on the first.
        ([1, 2, -1], set()),
        ([1, 2, -1, 3, -3], {2}),
    ],
)
def test_sequences_that_free_what_they_allocate_are_neutral(events: list[int], expected: set[int]) -> None:
    assert left_out(events, [512, 512, 512][: max(events)]) == expected


def test_large_blocks_are_extrapolated_and_interrupt_no_sequence() -> None:
    assert left_out([1, 2, -1], [512, MIB + 1]) == {0}
    assert left_out([1, -1], [MIB]) == {0}
    assert left_out([1, -1], [MIB + 1]) == set()


def test_a_growing_block_is_extrapolated_and_interrupts_sequences_while_small() -> None:
    assert left_out([1, 2, -2, -1], [KIB, KIB], [0, 512]) == set()
    assert left_out([1, 2, -2, -1], [KIB, 2 * MIB], [0, 512]) == {0}


def test_nothing_is_neutral_if_a_block_shrinks() -> None:
    assert left_out([1, -1, 2], [512, 4096], [0, -512]) == set()


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.randoms())
def test_no_neutral_block_is_in_use_at_an_extrapolated_event(draws: list[int], random: object) -> None:
    """When an extrapolated block is allocated or freed, no neutral block is in use."""
    events: list[int] = []
    alive: list[int] = []
    blocks = 0
    for draw in draws:
        if draw and alive:
            events.append(-alive.pop(random.randrange(len(alive))))  # type: ignore[attr-defined]
        else:
            blocks += 1
            alive.append(blocks)
            events.append(blocks)
    out = left_out(events, [512] * blocks)
    in_use = 0
    for event in events:
        if abs(event) - 1 in out:
            in_use += 1 if event > 0 else -1
        else:
            assert in_use == 0
    assert in_use == 0


def test_a_segment_ends_when_the_last_block_exceeds_1_mib() -> None:
    sizes, growth = np.array([MIB - 1024, MIB - 4096, 512, 2 * MIB]), np.array([512, 512, 8, 512])
    # 1024 more bytes are still small after 2 cycles, 4096 after 8; the third stays small for 100.
    assert cycles_until_large(sizes, growth, 100) == 9
    assert cycles_until_large(sizes, growth, 2) == 2
    assert cycles_until_large(sizes[2:], growth[2:], 100) == 100
