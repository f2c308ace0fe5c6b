"""Peaks of hand-worked traces, and what holds for every trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.allocator import Trace, TraceBuilder
from profiler.allocator.traces.replay import replay
from profiler.domain.memory import Category, Phase

KIB = 1024


def two_phases() -> Trace:
    """1,000 B of weights stay; 3,000 B of activations come and go in forward; 600 B come in backward."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(1000, Category.WEIGHTS)
    builder.enter(Phase.FORWARD)
    activations = builder.allocate(3000, Category.ACTIVATIONS)
    builder.free(activations)
    builder.enter(Phase.BACKWARD)
    builder.allocate(600, Category.GRADIENTS)
    return builder.finished()


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    # By hand: 1000 -> 1024, 3000 -> 3072, 600 -> 1024.
    peaks = replay(two_phases())
    assert peaks.peak_allocated_bytes == 1024 + 3072
    assert peaks.peak_phase is Phase.FORWARD
    assert peaks.phases == {Phase.LOAD: 1024, Phase.FORWARD: 4096, Phase.BACKWARD: 2048}
    assert peaks.breakdown == {Category.WEIGHTS: 1024, Category.ACTIVATIONS: 3072}
    assert peaks.refusal is None


def test_a_card_refuses_the_first_allocation_that_does_not_fit() -> None:
    peaks = replay(two_phases(), capacity_bytes=4095)
    assert peaks.refusal is not None
    assert peaks.refusal.phase is Phase.FORWARD
    assert peaks.refusal.requested_bytes == 3000
    assert peaks.refusal.allocated_bytes == 1024
    # The peak is the highest before failing, and what comes after never happened.
    assert peaks.peak_allocated_bytes == 1024
    assert Phase.BACKWARD not in peaks.phases


def test_a_card_that_fits_exactly_refuses_nothing() -> None:
    assert replay(two_phases(), capacity_bytes=4096).refusal is None


def test_a_card_too_small_for_the_first_block_has_no_peak() -> None:
    peaks = replay(two_phases(), capacity_bytes=1)
    assert peaks.peak_allocated_bytes == 0
    assert peaks.breakdown == {}
    assert peaks.refusal is not None
    assert peaks.refusal.phase is Phase.LOAD


def test_memory_that_was_there_counts_in_a_phase_that_allocates_nothing() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(512, Category.WEIGHTS)
    builder.enter(Phase.REWARD)
    builder.enter(Phase.FORWARD)
    builder.allocate(512, Category.ACTIVATIONS)
    assert replay(builder.finished()).phases[Phase.REWARD] == 512


def test_a_block_attributed_later_was_always_of_that_category() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.OPTIMIZER)
    block = builder.allocate(512, Category.WORKSPACE)
    builder.attribute(block, Category.OPTIMIZER_STATE)
    assert replay(builder.finished()).breakdown == {Category.OPTIMIZER_STATE: 512}


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="without events"):
        replay(TraceBuilder().finished())


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    live: list[int] = []
    for _ in range(draw(st.integers(1, 30))):
        action = draw(st.sampled_from(["allocate", "free", "enter"]))
        if action == "enter":
            builder.enter(draw(st.sampled_from(list(Phase))))
        elif action == "free" and live:
            builder.free(live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            live.append(builder.allocate(draw(st.integers(1, 10_000)), draw(st.sampled_from(list(Category)))))
    builder.allocate(1, Category.OTHER)
    return builder.finished()


@given(traces())
def test_parts_sum_to_the_peak_and_the_highest_phase_is_the_peak(trace: Trace) -> None:
    peaks = replay(trace)
    assert sum(peaks.breakdown.values()) == peaks.peak_allocated_bytes
    assert max(peaks.phases.values()) == peaks.peak_allocated_bytes
    assert peaks.phases[peaks.peak_phase] == peaks.peak_allocated_bytes
    assert peaks.peak_allocated_bytes % 512 == 0


@given(traces(), st.integers(1, 40 * KIB))
def test_a_capacity_is_never_exceeded_and_refuses_only_what_exceeds_it(trace: Trace, capacity: int) -> None:
    limited, unlimited = replay(trace, capacity_bytes=capacity), replay(trace)
    assert limited.peak_allocated_bytes <= capacity
    assert (limited.refusal is None) == (unlimited.peak_allocated_bytes <= capacity)
    if limited.refusal is not None:
        assert limited.refusal.allocated_bytes + limited.refusal.requested_bytes + 511 >= capacity
        assert sum(limited.breakdown.values()) == limited.peak_allocated_bytes
        assert max(limited.phases.values()) == limited.peak_allocated_bytes
