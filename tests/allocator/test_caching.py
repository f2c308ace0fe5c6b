"""The caching allocator against sequences worked by hand, and what holds for every sequence."""

from itertools import pairwise

import pytest
from hand_worked import SCENARIOS, layout
from hand_worked_streams import SCENARIOS as STREAMS
from hypothesis import given
from hypothesis import strategies as st
from mutants import loaded

from profiler.allocator import AllocatorConfig, CachingAllocator, OutOfMemoryError, parse_alloc_conf
from profiler.allocator.settings import SMALL_BYTES, block_bytes, segment_bytes

MIB = 1024 * 1024


@pytest.mark.parametrize("scenario", [*SCENARIOS, *STREAMS], ids=lambda scenario: scenario.__name__)
def test_hand_worked(scenario):
    scenario(loaded())


CONFIGS = st.sampled_from(
    [
        parse_alloc_conf(text)
        for text in (
            "",
            "expandable_segments:True",
            "max_split_size_mb:24",
            "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
            "large_segment_size_mb:32,max_split_size_mb:40,max_non_split_rounding_mb:32",
            "expandable_segments:True,per_process_memory_fraction:0.6",
        )
    ]
)
SIZES = st.one_of(
    st.integers(1, 3000),
    st.integers(1, 3 * MIB),
    st.integers(1 * MIB, 60 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB, 24 * MIB]),
)
STEPS = st.lists(st.one_of(SIZES, st.integers(-1000, -1)), min_size=1, max_size=60)
"""A positive number is a request, a negative one frees the block of that number among those in use."""
CAPACITIES = st.integers(10 * MIB, 300 * MIB)


def run(allocator, steps, check=lambda: None):
    """(address, bytes) of each block, None for a refusal."""
    live, made = [], []
    for step in steps:
        if step < 0:
            if live:
                allocator.free(live.pop(step % len(live)))
        else:
            try:
                live.append(allocator.allocate(step))
                made.append((live[-1].address, live[-1].size_bytes))
            except OutOfMemoryError:
                made.append(None)
        check()
    return live, made


def check_structure(allocator):
    segments = allocator.segments()
    stats = allocator.stats()
    ranges = []
    for segment in segments:
        for left, right in pairwise(segment):
            assert left.address + left.size_bytes == right.address
            assert left.allocated or right.allocated
            assert left.after is right
            assert right.before is left
        assert len({block.pool for block in segment}) == 1
        ranges.append((segment[0].address, segment[-1].address + segment[-1].size_bytes))
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    blocks = [block for segment in segments for block in segment]
    assert all(block.size_bytes >= 512 and block.size_bytes % 512 == 0 for block in blocks)
    assert all(block.requested_bytes <= block.size_bytes for block in blocks if block.allocated)
    in_use = sum(block.size_bytes for block in blocks if block.allocated)
    free = sum(block.size_bytes for block in blocks if not block.allocated)
    inactive = sum(
        block.size_bytes for block in blocks if not block.allocated and block.is_split and block.expandable is None
    )
    assert in_use == stats.allocated_bytes <= stats.peak_allocated_bytes
    assert in_use + free == stats.reserved_bytes <= stats.peak_reserved_bytes
    assert inactive == stats.inactive_split_bytes <= stats.peak_inactive_split_bytes
    assert in_use + inactive <= stats.peak_unreleasable_bytes
    for pool in {block.pool for block in blocks}:
        free_blocks = [block for block in blocks if block.pool is pool and not block.allocated]
        assert sorted(free_blocks, key=lambda block: (block.size_bytes, block.order, block.address)) == pool.in_order()
        assert all(block.requested_bytes <= SMALL_BYTES for block in blocks if block.allocated and block.pool.is_small)


@given(STEPS, CONFIGS, CAPACITIES)
def test_blocks_never_overlap_and_parts_sum_to_segments(steps, config, capacity):
    allocator = CachingAllocator(capacity_bytes=capacity, config=config)

    def check():
        check_structure(allocator)
        assert allocator.stats().peak_reserved_bytes <= capacity

    live, _ = run(allocator, steps, check)
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.segments() == []
    assert allocator.stats().reserved_bytes == allocator.stats().allocated_bytes == 0


@given(STEPS, CONFIGS, CAPACITIES)
def test_same_events_same_result(steps, config, capacity):
    first, second = (CachingAllocator(capacity_bytes=capacity, config=config) for _ in range(2))
    assert run(first, steps)[1] == run(second, steps)[1]
    assert first.stats() == second.stats()
    assert layout(first) == layout(second)


@given(STEPS, CONFIGS)
def test_a_card_without_end_refuses_nothing(steps, config):
    allocator = CachingAllocator(capacity_bytes=None, config=config)
    assert None not in run(allocator, steps)[1]
    assert allocator.stats().num_alloc_retries == 0


@given(STEPS)
def test_expandable_segments_waste_less_than_a_page_at_their_end_if_nothing_was_freed(steps):
    """And hold no more than what was asked for, rounded, and the open page of each pool."""
    config = AllocatorConfig(expandable_segments=True)
    allocator = CachingAllocator(capacity_bytes=None, config=config)
    requests = [step for step in steps if step > 0]
    run(allocator, requests)
    assert allocator.stats().allocated_bytes == sum(block_bytes(size, config) for size in requests)
    assert allocator.stats().reserved_bytes - allocator.stats().allocated_bytes < (20 + 2) * MIB


@given(STEPS)
def test_reserved_is_at_most_a_segment_a_request(steps):
    config = AllocatorConfig()
    allocator = CachingAllocator(capacity_bytes=None, config=config)
    run(allocator, steps)
    requests = [step for step in steps if step > 0]
    assert allocator.stats().reserved_bytes <= sum(
        segment_bytes(block_bytes(size, config), config) for size in requests
    )


@given(STEPS, CONFIGS, CAPACITIES)
def test_a_refusal_is_true(steps, config, capacity):
    """What is refused does not fit next to the segments that are in use."""
    allocator = CachingAllocator(capacity_bytes=capacity, config=config)
    for step in (step for step in steps if step > 0):
        try:
            allocator.allocate(step)
        except OutOfMemoryError as error:
            held = sum(block.size_bytes for segment in allocator.segments() for block in segment)
            assert held == error.reserved_bytes == allocator.stats().reserved_bytes
            assert error.free_bytes == capacity - held
            problem = int(capacity * config.per_process_memory_fraction)
            assert error.tried_bytes + held > problem or config.expandable_segments
