"""A trace on a card: peaks by phase and category, refusal, and the attribution of the peak."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.allocator import AllocatorConfig, CachingAllocator, PhaseMemory, Trace, TraceBuilder, replay_on_card
from profiler.allocator.traces import replay as finding
from profiler.allocator.traces.replay import closed_runs, replay
from profiler.allocator.traces.trace import Categories, ClosedRuns, Integers, places_of
from profiler.domain.memory import Category, Phase

MIB = 1024 * 1024
PLAIN = AllocatorConfig()


def training() -> Trace:
    """11 MiB of weights stay; 5 MiB of activations come and go in forward; 19 MiB of gradients in backward."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(11 * MIB, Category.WEIGHTS)
    builder.enter(Phase.FORWARD)
    activations = builder.allocate(5 * MIB, Category.ACTIVATIONS)
    builder.free(activations)
    builder.enter(Phase.BACKWARD)
    gradients = builder.allocate(19 * MIB + 1, Category.GRADIENTS)
    builder.enter(Phase.OPTIMIZER)
    builder.free(gradients)
    return builder.finished()


def test_slop_belongs_to_the_category_of_its_block():
    # By hand: 11 in a segment of 12, 1 wasted; 5 in a segment of 20; 19 and a bit in that segment, the rest wasted.
    result = replay_on_card(training(), capacity_bytes=None, config=PLAIN)
    assert result.peak_allocated_bytes == 32 * MIB
    assert result.peak_reserved_bytes == 32 * MIB
    assert result.peak_phase is Phase.BACKWARD
    assert result.breakdown == {Category.WEIGHTS: 12 * MIB, Category.GRADIENTS: 20 * MIB}
    assert result.live_bytes == {0: 12 * MIB, 2: 20 * MIB}
    assert result.peak_event == 3
    assert result.events_reached == 5
    assert result.peak_inactive_split_bytes == 15 * MIB
    assert result.peak_unreleasable_bytes == 32 * MIB
    assert result.refusal is None
    assert result.phases == {
        Phase.LOAD: PhaseMemory(peak_allocated_bytes=12 * MIB, peak_reserved_bytes=12 * MIB),
        Phase.FORWARD: PhaseMemory(peak_allocated_bytes=17 * MIB, peak_reserved_bytes=32 * MIB),
        Phase.BACKWARD: PhaseMemory(peak_allocated_bytes=32 * MIB, peak_reserved_bytes=32 * MIB),
        Phase.OPTIMIZER: PhaseMemory(peak_allocated_bytes=32 * MIB, peak_reserved_bytes=32 * MIB),
    }


def test_the_run_ends_at_the_refusal():
    result = replay_on_card(training(), capacity_bytes=31 * MIB, config=PLAIN)
    assert result.refusal is not None
    assert result.refusal.phase is Phase.FORWARD
    assert result.refusal.requested_bytes == 5 * MIB
    assert result.refusal.tried_bytes == 20 * MIB
    assert result.refusal.free_bytes == 19 * MIB
    assert result.refusal.allocated_bytes == result.refusal.reserved_bytes == 12 * MIB
    assert result.events_reached == 1
    assert result.num_alloc_retries == 1
    assert list(result.phases) == [Phase.LOAD, Phase.FORWARD]
    assert result.peak_allocated_bytes == 12 * MIB
    assert result.peak_phase is Phase.LOAD


def test_expandable_segments_fit_where_plain_ones_do_not():
    # 11 and 19 share pages: 40 MiB mapped in all, where plain segments of 12 and 20 need 32.
    expandable = AllocatorConfig(expandable_segments=True)
    result = replay_on_card(training(), capacity_bytes=40 * MIB, config=expandable)
    assert result.refusal is None
    assert result.peak_reserved_bytes == 40 * MIB
    assert result.peak_allocated_bytes == 30 * MIB + 512


def test_the_first_block_can_be_refused():
    result = replay_on_card(training(), capacity_bytes=1, config=PLAIN)
    assert result.peak_allocated_bytes == result.peak_reserved_bytes == 0
    assert result.breakdown == {}
    assert result.peak_event == -1
    assert result.peak_phase is Phase.LOAD
    assert result.refusal is not None


def test_empty_tensors_take_nothing():
    """`NativeCachingAllocator::allocate`: only sizes above 0 reach the allocator."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    empty = builder.allocate(0, Category.INPUTS)
    builder.allocate(1, Category.INPUTS)
    builder.free(empty)
    result = replay_on_card(builder.finished(), capacity_bytes=None, config=PLAIN)
    assert result.peak_allocated_bytes == 512
    assert result.live_bytes == {1: 512}


def test_phases_without_events_hold_what_was_there():
    builder = TraceBuilder()
    builder.allocate(512, Category.WEIGHTS)
    builder.enter(Phase.REWARD)
    builder.enter(Phase.FORWARD)
    builder.allocate(512, Category.ACTIVATIONS)
    builder.enter(Phase.OPTIMIZER)
    phases = replay_on_card(builder.finished(), capacity_bytes=None, config=PLAIN).phases
    assert {phase: memory.peak_allocated_bytes for phase, memory in phases.items()} == {
        Phase.REWARD: 512,
        Phase.FORWARD: 1024,
        Phase.OPTIMIZER: 1024,
    }


def test_a_trace_without_phases_is_loading():
    builder = TraceBuilder()
    builder.allocate(512, Category.WEIGHTS)
    assert list(replay_on_card(builder.finished(), capacity_bytes=None, config=PLAIN).phases) == [Phase.LOAD]


def test_an_empty_trace_is_refused():
    with pytest.raises(ValueError, match="without events"):
        replay_on_card(TraceBuilder().finished(), capacity_bytes=None, config=PLAIN)


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
            size = draw(st.one_of(st.integers(0, 4000), st.integers(0, 30 * MIB)))
            live.append(builder.allocate(size, draw(st.sampled_from(list(Category)))))
    builder.allocate(1, Category.OTHER)
    return builder.finished()


@given(traces(), st.booleans(), st.one_of(st.none(), st.integers(1, 200 * MIB)))
def test_parts_sum_to_the_peak_on_every_card(trace, expandable, capacity):
    result = replay_on_card(trace, capacity_bytes=capacity, config=AllocatorConfig(expandable_segments=expandable))
    assert sum(result.breakdown.values()) == sum(result.live_bytes.values()) == result.peak_allocated_bytes
    assert max(phase.peak_allocated_bytes for phase in result.phases.values()) == result.peak_allocated_bytes
    assert result.phases[result.peak_phase].peak_allocated_bytes == result.peak_allocated_bytes
    assert result.peak_allocated_bytes <= result.peak_reserved_bytes
    assert (result.refusal is None) == (result.events_reached == len(trace.events))
    if capacity is None:
        assert result.refusal is None
        assert result.num_alloc_retries == 0
        rounded = replay(trace).peak_allocated_bytes
        wasted = 0 if expandable else 31 * MIB
        empty = 512 * sum(size == 0 for size in trace.sizes_bytes)
        assert rounded - empty <= result.peak_allocated_bytes <= rounded + wasted
    else:
        assert result.peak_reserved_bytes <= capacity
        whole = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig(expandable_segments=expandable))
        assert result.refusal is None or result.peak_allocated_bytes <= whole.peak_allocated_bytes


def test_a_growing_cache_fragments_memory():
    # Ten caches in turn, each made anew 1 MiB larger before the old one goes, from 20 to 60 MiB: every segment of a
    # size that was outgrown lies free, and no later block fits into it.
    builder = TraceBuilder()
    builder.enter(Phase.ROLLOUT)
    caches = [builder.allocate(20 * MIB, Category.KV_CACHE) for _ in range(10)]
    for size_mib in range(21, 61):
        for place, old in enumerate(caches):
            caches[place] = builder.allocate(size_mib * MIB, Category.KV_CACHE)
            builder.free(old)
    unlimited = replay_on_card(builder.finished(), capacity_bytes=None, config=PLAIN)
    assert unlimited.peak_reserved_bytes > 5 * unlimited.peak_unreleasable_bytes
    assert unlimited.peak_allocated_bytes <= unlimited.peak_unreleasable_bytes
    enough = unlimited.peak_unreleasable_bytes + 20 * MIB
    on_card = replay_on_card(builder.finished(), capacity_bytes=enough, config=PLAIN)
    assert on_card.refusal is None
    assert on_card.num_alloc_retries > 0
    too_small = replay_on_card(builder.finished(), capacity_bytes=unlimited.peak_allocated_bytes - 1, config=PLAIN)
    assert too_small.refusal is not None


# ---- closed runs -----------------------------------------------------------------------------------------------------

KIB = 1024
SHORT = patch.multiple(finding, _LONGEST_LIFE=4, _FEWEST_EVENTS=2, _FEWEST_ALIKE=1)
"""Closed runs in traces of a few events."""

CONFIGS = (
    PLAIN,
    AllocatorConfig(expandable_segments=True),
    AllocatorConfig(max_split_bytes=8 * MIB),
    AllocatorConfig(roundup_power2_divisions=(4,) * 16),
    AllocatorConfig(per_process_memory_fraction=0.5, garbage_collection_threshold=0.4),
)


def trace_of(events: list[int], sizes_bytes: list[int]) -> Trace:
    return Trace(
        sizes_bytes=sizes_bytes,
        categories=[Category.OTHER] * len(sizes_bytes),
        events=events,
        phase_starts=[(0, Phase.LOAD)],
    )


def test_closed_runs_lie_between_blocks_that_live_for_long() -> None:
    trace = trace_of([1, 2, -2, 3, -3, 4, -1, -4], [512] * 4)
    with patch.multiple(finding, _LONGEST_LIFE=1, _FEWEST_EVENTS=2, _FEWEST_ALIKE=1):
        assert closed_runs(trace) == ClosedRuns(firsts=[1], ends=[5], alike=[0])
    with patch.multiple(finding, _LONGEST_LIFE=1, _FEWEST_EVENTS=2, _FEWEST_ALIKE=2):
        assert list(closed_runs(trace).firsts) == []


def test_a_run_ends_at_a_phase_and_at_an_emptied_cache() -> None:
    events = [1, -1, 2, -2, 3, -3]
    trace = Trace(
        sizes_bytes=[512] * 3,
        categories=[Category.OTHER] * 3,
        events=events,
        phase_starts=[(0, Phase.LOAD), (2, Phase.FORWARD)],
        cache_emptied=[4],
    )
    with SHORT:
        assert closed_runs(trace) == ClosedRuns(firsts=[0, 2, 4], ends=[2, 4, 6], alike=[0, 0, 0])


def decoding(steps: int) -> Trace:
    """Two caches that grow by 2 MiB a step, and between them a product of 3 MiB with its scratch of 1.5 MiB."""
    builder = TraceBuilder()
    builder.enter(Phase.ROLLOUT)
    caches = [builder.allocate(20 * MIB, Category.KV_CACHE) for _ in range(2)]
    for step in range(1, steps + 1):
        for place, old in enumerate(caches):
            caches[place] = builder.allocate((20 + 2 * step) * MIB, Category.KV_CACHE)
            builder.free(old)
            for _ in range(2):
                product = builder.allocate(3 * MIB, Category.ACTIVATIONS)
                builder.free(builder.allocate(3 * MIB // 2, Category.ACTIVATIONS))
                builder.free(product)
    return builder.finished()


def test_a_run_that_happens_again_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = decoding(40)
    expected = replay_on_card(trace, capacity_bytes=None, config=PLAIN)
    allocate, requests = CachingAllocator.allocate, []

    def counted(self: CachingAllocator, size_bytes: int, stream: int = 0) -> object:
        requests.append(size_bytes)
        return allocate(self, size_bytes, stream)

    monkeypatch.setattr(CachingAllocator, "allocate", counted)
    # By hand: 82 caches and 80 runs of 4 requests, of which those are replayed that find other free blocks.
    with patch.object(finding, "_LONGEST_LIFE", 4):
        assert replay_on_card(trace, capacity_bytes=None, config=PLAIN, closed=closed_runs(trace)) == expected
    assert 82 + 4 <= len(requests) < 82 + 20 * 4


def test_a_run_that_finds_another_place_is_replayed() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.free(builder.allocate(12 * MIB, Category.LOGITS))
    for number in range(20):
        builder.allocate(1, Category.INPUTS)
        product = builder.allocate(3 * MIB, Category.ACTIVATIONS)
        builder.free(builder.allocate(1, Category.ACTIVATIONS))
        builder.free(product)
        if number == 9:
            builder.enter(Phase.BACKWARD)
            builder.allocate(17 * MIB // 2, Category.GRADIENTS)
    trace = builder.finished()
    result = replay_on_card(trace, capacity_bytes=None, config=PLAIN, closed=closed_runs(trace))
    # By hand: the run splits 3 MiB off a segment of 12. Once 8.5 MiB of it are in use, the run takes the other 3.5,
    # whose rest is too small to be split off. The last one comes on top of 20 small blocks.
    assert result.phases[Phase.BACKWARD].peak_allocated_bytes == 12 * MIB + 21 * 512
    assert result == replay_on_card(trace, capacity_bytes=None, config=PLAIN)


def test_a_peak_in_a_run_that_happens_again() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    for _ in range(20):
        builder.allocate(512 * KIB, Category.ACTIVATIONS)
        product = builder.allocate(3 * MIB, Category.LOGITS)
        builder.free(builder.allocate(2 * MIB, Category.LOGITS))
        builder.free(product)
    trace = builder.finished()
    result = replay_on_card(trace, capacity_bytes=None, config=PLAIN, closed=closed_runs(trace))
    # By hand: the last of the runs comes on top of all 20 small blocks. It is the same each time but for its level.
    assert result.peak_allocated_bytes == 15 * MIB
    assert result.peak_event == 19 * 5 + 2
    assert result.breakdown == {Category.ACTIVATIONS: 10 * MIB, Category.LOGITS: 5 * MIB}
    assert result == replay_on_card(trace, capacity_bytes=None, config=PLAIN)


COURSES = st.lists(st.sampled_from([1, 100 * KIB, 700 * KIB, 5 * MIB // 4, 3 * MIB, 12 * MIB]), min_size=1, max_size=3)


@st.composite
def repeating(draw: st.DrawFn) -> Trace:
    """Return a trace in which few sequences that free what they allocate happen often."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    courses = draw(st.lists(st.tuples(COURSES, st.booleans()), min_size=1, max_size=2))
    live: list[int] = []
    for _ in range(draw(st.integers(1, 40))):
        action = draw(st.sampled_from(["run", "run", "run", "allocate", "free", "enter", "empty"]))
        if action == "run":
            sizes, is_nested = draw(st.sampled_from(courses))
            made = []
            for size in sizes:
                made.append(builder.allocate(size, Category.ACTIVATIONS))
                if not is_nested and len(made) > 1:
                    builder.free(made.pop(0))
            for block in reversed(made):
                builder.free(block)
        elif action == "enter":
            builder.enter(draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD])))
        elif action == "empty":
            builder.empty_cache()
        elif action == "free" and live:
            builder.free(live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            live.append(builder.allocate(draw(st.integers(0, 24 * MIB)), Category.GRADIENTS))
    builder.allocate(1, Category.OTHER)
    return builder.finished()


@given(repeating(), st.sampled_from(CONFIGS), st.one_of(st.none(), st.integers(1, 100 * MIB)))
@example(decoding(3), PLAIN, None)
def test_closed_runs_change_nothing(trace: Trace, config: AllocatorConfig, capacity: int | None) -> None:
    expected = replay_on_card(trace, capacity_bytes=capacity, config=config)
    with SHORT:
        found = replay_on_card(trace, capacity_bytes=capacity, config=config, closed=closed_runs(trace))
    assert found == expected
    assert list(found.phases) == list(expected.phases)
    assert list(found.live_bytes) == list(expected.live_bytes)


@given(st.lists(st.integers(-3, 3), max_size=6), st.lists(st.integers(-3, 3), max_size=6), st.slices(6))
def test_integers_in_an_array_are_a_sequence(some: list[int], others: list[int], part: slice) -> None:
    packed = Integers(np.array(some, dtype=np.int32))
    assert [*packed] == [packed[place] for place in range(len(packed))] == some
    assert [*packed[part]] == some[part]
    assert (packed == Integers(np.array(others))) == (packed == others) == (tuple(others) == packed) == (some == others)
    assert np.array(packed, dtype=np.int64).tolist() == some


@given(st.lists(st.sampled_from(Category)), st.lists(st.sampled_from(Category)), st.slices(6))
def test_categories_in_an_array_are_a_sequence(some: list[Category], others: list[Category], part: slice) -> None:
    packed = Categories(places_of(some))
    assert [*packed] == [packed[place] for place in range(len(packed))] == some
    assert [*packed[part]] == some[part]
    assert (
        (packed == Categories(places_of(others))) == (packed == others) == (tuple(others) == packed) == (some == others)
    )
    assert places_of(packed) is packed.places


@given(repeating(), st.one_of(st.none(), st.integers(1, 100 * MIB)))
def test_a_trace_in_arrays_has_the_same_replay(trace: Trace, capacity: int | None) -> None:
    packed = replace(trace, **{name: Integers(np.array(getattr(trace, name))) for name in ("events", "sizes_bytes")})
    packed = replace(packed, categories=Categories(places_of(trace.categories)))
    assert packed == trace
    found, expected = (replay_on_card(each, capacity_bytes=capacity, config=PLAIN) for each in (packed, trace))
    assert found == expected
